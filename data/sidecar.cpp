#include "data/sidecar.h"

#include <cstdint>
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

// Null where there is none that can be read: training does not need it.
Json read_sidecar(const std::string& path) {
  try {
    if (!path_exists(path)) return nullptr;
    Json json = parse_json(read_input_file(path, kMaxSidecarBytes), path);
    return json.is_object() ? json : Json();
  } catch (const InputError&) {
    return nullptr;
  }
}

// Null unless it is an integer.
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

// Nothing where it cannot be read: a tokenizer that is no longer there, or somewhere else.
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

}  // namespace

void SidecarCheck::check_tokenizer(const std::string& path, const Json& tokenizer) {
  if (!tokenizer.is_string() || same_tokenizers_.contains(tokenizer)) return;
  CHECK_INPUT(may_be_same(tokenizer, config_.tokenizer),
              "{} has the tokenizer {}, but data.tokenizer is {}, expected the same", path,
              tokenizer.get<std::string>(), config_.tokenizer);
  same_tokenizers_.insert(tokenizer);
}

void SidecarCheck::check(const std::string& token_file) {
  const std::string path = token_file_prefix(token_file) + ".json";
  const Json sidecar = read_sidecar(path);
  if (sidecar.is_null()) return;
  check_tokenizer(path, sidecar.value("tokenizer", Json()));
  const Json vocab_size = integer_of(sidecar, "vocab_size");
  CHECK_INPUT(!vocab_size.is_number_unsigned() || vocab_size.get<uint64_t>() <= static_cast<uint64_t>(vocab_size_),
              "{} has vocab_size {}, but model.vocab_size is {}, expected at least as many", path, vocab_size.dump(),
              vocab_size_);
  check_special_token(path, sidecar, "bos", config_.bos_id);
  check_special_token(path, sidecar, "eos", config_.eos_id);
}

}  // namespace octavo
