#include "data/tokenizer_identity.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files/json_input.h"

namespace octavo {

namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "scores are hashed as they are in memory");

constexpr size_t kBlockBytes = 64;

constexpr std::array<uint32_t, 64> kRoundConstants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const unsigned char* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void add_block(const unsigned char* block, std::array<uint32_t, 8>& state) {
  std::array<uint32_t, 64> words;
  for (size_t i = 0; i < 16; ++i) words[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(words[i - 15], 7) ^ std::rotr(words[i - 15], 18) ^ words[i - 15] >> 3;
    const uint32_t s1 = std::rotr(words[i - 2], 17) ^ std::rotr(words[i - 2], 19) ^ words[i - 2] >> 10;
    words[i] = words[i - 16] + s0 + words[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRoundConstants[i] + words[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> result{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += result[i];
}

// Returns the SHA-256 (FIPS 180-4) of the bytes as 64 hex digits.
std::string sha256(std::string bytes) {
  const uint64_t bits = 8 * bytes.size();
  bytes += '\x80';
  bytes.append((2 * kBlockBytes - 8 - bytes.size() % kBlockBytes) % kBlockBytes, '\0');
  for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(bits >> shift & 0xFF));
  std::array<uint32_t, 8> state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  for (size_t begin = 0; begin < bytes.size(); begin += kBlockBytes) {
    add_block(reinterpret_cast<const unsigned char*>(bytes.data()) + begin, state);
  }
  std::string text;
  for (const uint32_t word : state) text += fmt::format("{:08x}", word);
  return text;
}

// The fields whose hash identifies a tokenizer.
class Fields {
 public:
  void add(std::string_view field) { bytes_ += fmt::format("{}:{}", field.size(), field); }
  void add(int64_t number) { add(std::to_string(number)); }
  std::string hash() && { return sha256(std::move(bytes_)); }

 private:
  std::string bytes_;
};

// Returns json[key], or null if it is missing.
const Json& member(const Json& json, const char* key) {
  static const Json kNull;
  const auto found = json.find(key);
  return found == json.end() ? kNull : *found;
}

void add_vocabulary(const Json& vocabulary, Fields& fields) {
  if (vocabulary.is_array()) {
    for (size_t id = 0; id < vocabulary.size(); ++id) {
      const double score = vocabulary[id].at(1).get<double>();
      fields.add("token");
      fields.add(static_cast<int64_t>(id));
      fields.add(vocabulary[id].at(0).get_ref<const std::string&>());
      fields.add({reinterpret_cast<const char*>(&score), sizeof(score)});
    }
    return;
  }
  std::vector<std::pair<int64_t, std::string_view>> tokens;
  for (const auto& [token, id] : vocabulary.items()) tokens.emplace_back(as_integer(id, "an id"), token);
  std::ranges::sort(tokens);
  for (const auto& [id, token] : tokens) {
    fields.add("token");
    fields.add(id);
    fields.add(token);
  }
}

void add_merges(const Json& merges, Fields& fields) {
  for (const Json& merge : merges) {
    fields.add("merge");
    if (!merge.is_string()) {
      CHECK_INPUT(merge.is_array() && merge.size() == 2, "a merge is {}, expected two tokens", merge.dump());
      for (const Json& token : merge) fields.add(token.get_ref<const std::string&>());
      continue;
    }
    const std::string_view both = merge.get_ref<const std::string&>();
    const size_t space = both.find(' ');
    CHECK_INPUT(space != std::string_view::npos, "a merge is '{}', expected two tokens", both);
    fields.add(both.substr(0, space));
    fields.add(both.substr(space + 1));
  }
}

void add_added_tokens(const Json& added, Fields& fields) {
  std::vector<std::tuple<int64_t, std::string, bool>> tokens;
  for (const Json& token : added) {
    tokens.emplace_back(integer_at(token, "id", "an added token"), token.at("content").get<std::string>(),
                        token.value("special", false));
  }
  std::ranges::sort(tokens);
  for (const auto& [id, content, special] : tokens) {
    fields.add("added");
    fields.add(id);
    fields.add(content);
    fields.add(special ? 1 : 0);
  }
}

}  // namespace

std::string tokenizer_hash(std::string_view content, const std::string& path) {
  try {
    const Json tokenizer = parse_json(content, "the content");
    CHECK_INPUT(tokenizer.is_object() && member(tokenizer, "model").is_object(), "it has no model");
    const Json& model = tokenizer.at("model");
    Fields fields;
    const Json& type = member(model, "type");
    fields.add(type.is_null() ? std::string() : type.get<std::string>());
    add_vocabulary(member(model, "vocab"), fields);
    add_merges(member(model, "merges"), fields);
    add_added_tokens(member(tokenizer, "added_tokens"), fields);
    return std::move(fields).hash();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: is not a Hugging Face tokenizer.json: {}", path, error.what()));
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: is not a Hugging Face tokenizer.json: {}", path, reason_of(error)));
  }
}

}  // namespace octavo
