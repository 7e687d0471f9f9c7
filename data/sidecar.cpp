#include "data/sidecar.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "data/tokens/token_file.h"

namespace octavo {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSidecarBytes = int64_t{1} << 20;
constexpr const char* kByteTokenizer = "byte";

std::string sidecar_path(const std::string& token_file) { return token_file_prefix(token_file) + ".json"; }

// Returns the sidecar, or null if there is none.
Json read_sidecar(const std::string& path) {
  if (!path_exists(path)) return nullptr;
  Json json = parse_json(read_input_file(path, kMaxSidecarBytes), path);
  CHECK_INPUT(json.is_object(), "{}: is not a JSON object, expected a sidecar as octavo pack writes it, or no file",
              path);
  return json;
}

// Returns the sidecar, or null if there is none or it cannot be read.
Json read_sidecar_if_possible(const std::string& path) {
  try {
    return read_sidecar(path);
  } catch (const InputError&) {
    return nullptr;
  }
}

// Returns json[key], or null unless it is an integer.
Json integer_of(const Json& sidecar, const char* key) {
  const Json value = sidecar.value(key, Json());
  return value.is_number_integer() ? value : Json();
}

void check_special_token(const std::string& path, const Json& sidecar, const char* name,
                         const std::optional<int32_t>& configured) {
  const Json id = integer_of(sidecar, name);
  CHECK_INPUT(id.is_null() || !configured || id == *configured,
              "{} has {} {}, but data.{}_id is {}, expected the same or null", path, name, id.dump(), name,
              *configured);
}

// Returns the content of a file, or nothing if it cannot be read, such as a tokenizer that was moved.
std::optional<std::string> content_of(const std::string& path) {
  try {
    return read_input_file(path);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

bool may_be_same(const std::string& a, const std::string& b) {
  if (a == b) return true;
  if (a == kByteTokenizer || b == kByteTokenizer) return false;
  const std::optional<std::string> content = content_of(a);
  const std::optional<std::string> other = content ? content_of(b) : std::nullopt;
  return !content || !other || *content == *other;
}

// Returns the bos or eos of a sidecar. The run relies on it, so anything except an id or null is an error.
std::optional<int32_t> document_token(const std::string& path, const Json& sidecar, const char* name) {
  const Json id = sidecar.is_null() ? Json() : sidecar.value(name, Json());
  if (id.is_null()) return std::nullopt;
  constexpr int32_t kLargest = std::numeric_limits<int32_t>::max();
  CHECK_INPUT(id.is_number_integer() && id >= 0 && id <= kLargest, "{} has {} {}, expected null or an id from 0 to {}",
              path, name, id.dump(), kLargest);
  return id.get<int32_t>();
}

// Ids of bos and eos that the sidecar of a token file names.
struct NamedTokens {
  std::string path;  // Path of the sidecar.
  bool has_sidecar = false;
  std::optional<int32_t> bos, eos;

  std::string describe(const char* name, const std::optional<int32_t>& id) const {
    if (id) return fmt::format("{} has {} {}", path, name, *id);
    return has_sidecar ? fmt::format("{} has no {}", path, name) : fmt::format("there is no {}", path);
  }
};

NamedTokens named_tokens(const std::string& token_file) {
  const std::string path = sidecar_path(token_file);
  const Json sidecar = read_sidecar(path);
  if (sidecar.is_null()) (void)count_tokens(token_file);  // Refuses a missing token file.
  return {path, !sidecar.is_null(), document_token(path, sidecar, "bos"), document_token(path, sidecar, "eos")};
}

void check_same_token(const char* name, const NamedTokens& a, const std::optional<int32_t>& id_of_a,
                      const NamedTokens& b, const std::optional<int32_t>& id_of_b) {
  CHECK_INPUT(id_of_a == id_of_b,
              "{}, but {}, expected the same in all sidecars where data.{}_id is auto; set it to the id that all these "
              "files use, or to null for none",
              a.describe(name, id_of_a), b.describe(name, id_of_b), name);
}

}  // namespace

void find_document_tokens(DataConfig& config, const std::vector<std::string>& token_files) {
  std::optional<NamedTokens> first;
  for (const std::string& file : token_files) {
    if (!config.bos_auto && !config.eos_auto) return;
    const NamedTokens named = named_tokens(file);
    if (!first) first = named;
    if (config.bos_auto) check_same_token("bos", *first, first->bos, named, named.bos);
    if (config.eos_auto) check_same_token("eos", *first, first->eos, named, named.eos);
  }
  if (config.bos_auto && first) config.bos_id = first->bos;
  if (config.eos_auto && first) config.eos_id = first->eos;
  config.bos_auto = config.eos_auto = false;
}

void SidecarCheck::check_tokenizer(const std::string& path, const Json& tokenizer) {
  if (!tokenizer.is_string() || same_tokenizers_.contains(tokenizer)) return;
  CHECK_INPUT(may_be_same(tokenizer, config_.tokenizer),
              "{} has the tokenizer {}, but data.tokenizer is {}, expected the same", path,
              tokenizer.get<std::string>(), config_.tokenizer);
  same_tokenizers_.insert(tokenizer);
}

void SidecarCheck::check(const std::string& token_file) {
  const std::string path = sidecar_path(token_file);
  const Json sidecar = read_sidecar_if_possible(path);
  if (sidecar.is_null()) return;
  check_tokenizer(path, sidecar.value("tokenizer", Json()));
  const Json vocab_size = integer_of(sidecar, "vocab_size");
  CHECK_INPUT(!vocab_size.is_number_unsigned() || vocab_size.get<uint64_t>() <= static_cast<uint64_t>(vocab_size_),
              "{} has vocab_size {}, but model.vocab_size is {}, expected at least that value", path, vocab_size.dump(),
              vocab_size_);
  check_special_token(path, sidecar, "bos", config_.bos_id);
  check_special_token(path, sidecar, "eos", config_.eos_id);
}

}  // namespace octavo
