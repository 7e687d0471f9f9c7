#include "data/sidecar.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "data/tokenizer_identity.h"
#include "data/tokens/token_file.h"

namespace octavo {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSidecarBytes = int64_t{1} << 20;

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

// Returns the hash of the tokenizer `name`, "byte" or the path of a tokenizer.json. Empty if it cannot be read, such as
// a file that was moved.
std::string hash_of_named(const std::string& name) {
  if (name == kByteTokenizerName) return kByteTokenizerHash;
  try {
    return tokenizer_hash(read_input_file(name), name);
  } catch (const InputError&) {
    return "";
  }
}

// Returns the tokenizer that a sidecar names. Returns nothing if the sidecar names none, or if `compared` contains the
// tokenizer. Adds it to `compared`.
std::optional<SidecarTokenizer> new_tokenizer(const std::string& path, const Json& sidecar,
                                              std::set<std::string>& compared) {
  if (sidecar.is_null()) return std::nullopt;
  const auto text = [&](const char* key) {
    return find_value<std::string>(sidecar, fmt::format("/{}", key)).value_or("");
  };
  SidecarTokenizer found{path, text("tokenizer"), text(kTokenizerHashKey)};
  if (!compared.insert(found.name + "\n" + found.hash).second) return std::nullopt;
  if (found.hash.empty()) found.hash = hash_of_named(found.name);
  if (found.name.empty() && found.hash.empty()) return std::nullopt;
  return found;
}

bool is_byte(const SidecarTokenizer& tokenizer) {
  return tokenizer.name == kByteTokenizerName || tokenizer.hash == kByteTokenizerHash;
}

// Returns whether both may be the same. Without both hashes, only "byte" is known to differ from a file.
bool may_be_same(const SidecarTokenizer& a, const SidecarTokenizer& b) {
  return a.hash.empty() || b.hash.empty() ? is_byte(a) == is_byte(b) : a.hash == b.hash;
}

std::string describe(const SidecarTokenizer& tokenizer) {
  if (tokenizer.hash.empty()) return tokenizer.name;
  return fmt::format("{} (hash {}...)", tokenizer.name, tokenizer.hash.substr(0, 12));
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

// Throws an InputError if the sidecar has other counts than the token file, because it then describes another file.
void check_counts(const std::string& path, const Json& sidecar, const std::string& token_file) {
  const TokenFileCounts counts = count_tokens(token_file);
  const auto check = [&](const char* name, int64_t count) {
    const Json said = integer_of(sidecar, name);
    CHECK_INPUT(said.is_null() || said == count,
                "{} has {} {}, but {} has {}, expected the same: write both again, or remove a sidecar of other data",
                path, name, said.dump(), token_file, count);
  };
  check("tokens", counts.tokens);
  if (counts.documents) check("documents", *counts.documents);
}

void check_same_token(const char* name, const NamedTokens& a, const std::optional<int32_t>& id_of_a,
                      const NamedTokens& b, const std::optional<int32_t>& id_of_b) {
  CHECK_INPUT(id_of_a == id_of_b,
              "{}, but {}, expected the same in all sidecars where data.{}_id is auto; set it to the id that all these "
              "files use, or to null for none",
              a.describe(name, id_of_a), b.describe(name, id_of_b), name);
}

// A token file of a folder. `dataset` is empty unless the file is a part of a dataset.
struct DatasetPart {
  std::string file;
  int64_t part = 0, parts = 0;  // Part 1 to `parts`.
  std::string dataset;          // Equal for all parts of the same inputs and options.
};

DatasetPart read_part(const std::string& file) {
  const Json sidecar = read_sidecar_if_possible(sidecar_path(file));
  if (!sidecar.is_object() || !sidecar.contains("part")) return {.file = file, .dataset = {}};
  DatasetPart found{file, find_value<int64_t>(sidecar, "/part").value_or(-1),
                    find_value<int64_t>(sidecar, "/parts").value_or(-1),
                    find_value<std::string>(sidecar, "/parts_of").value_or("")};
  CHECK_INPUT(found.part >= 1 && found.part <= found.parts && !found.dataset.empty(),
              "{}: has part {} of {} of dataset {}, expected a part from 1 on and the hash of a dataset, as "
              "tokenize_hf.py --part writes them",
              sidecar_path(file), found.part, found.parts, sidecar.value("parts_of", Json()).dump());
  check_counts(sidecar_path(file), sidecar, file);
  return found;
}

void check_folder_of_parts(const std::string& folder, const std::vector<DatasetPart>& files) {
  const auto first = std::ranges::find_if(files, [](const DatasetPart& file) { return !file.dataset.empty(); });
  if (first == files.end()) return;
  std::map<int64_t, std::string> found;
  for (const DatasetPart& file : files) {
    CHECK_INPUT(!file.dataset.empty(),
                "{} is not a part of a dataset, but {} in the same folder is one by its PREFIX.json, expected only the "
                "parts of one dataset; move the file to another folder",
                file.file, first->file);
    CHECK_INPUT(file.dataset == first->dataset && file.parts == first->parts,
                "{} is part {} of {} of another dataset than {}, which is part {} of {}, expected parts that "
                "tokenize_hf.py made from the same inputs with the same tokenizer and options; remove one of them, or "
                "make it again",
                file.file, file.part, file.parts, first->file, first->part, first->parts);
    const auto [other, is_new] = found.try_emplace(file.part, file.file);
    CHECK_INPUT(is_new, "{} and {} are both part {} of {}, expected each part once; remove one of them", other->second,
                file.file, file.part, file.parts);
  }
  int64_t missing = 1;
  while (found.contains(missing)) ++missing;
  CHECK_INPUT(missing > first->parts,
              "{}: has {} of the {} parts of a dataset, and part {} is missing; make it with tokenize_hf.py --part "
              "{}/{}, or copy it there",
              folder, found.size(), first->parts, missing, missing, first->parts);
}

}  // namespace

std::optional<SidecarTokenizer> find_tokenizer(const std::vector<std::string>& token_files) {
  std::optional<SidecarTokenizer> first;
  std::set<std::string> compared;
  for (const std::string& file : token_files) {
    const std::string path = sidecar_path(file);
    const auto found = new_tokenizer(path, read_sidecar_if_possible(path), compared);
    if (!found) continue;
    if (!first) first = found;
    CHECK_INPUT(may_be_same(*first, *found),
                "{} has the tokenizer {}, but {} has {}, expected the same in all sidecars", first->path,
                describe(*first), path, describe(*found));
    // The other sidecars are compared with a hash rather than a name, if there is one.
    if (first->hash.empty() && !found->hash.empty()) first = found;
  }
  return first;
}

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

void check_parts(const std::vector<std::string>& token_files) {
  std::map<std::string, std::vector<DatasetPart>> folders;
  for (const std::string& file : token_files)
    folders[std::filesystem::path(file).parent_path().string()].push_back(read_part(file));
  for (const auto& [folder, parts] : folders) check_folder_of_parts(folder, parts);
}

SidecarCheck::SidecarCheck(const DataConfig& config, int64_t vocab_size)
    : config_(config), vocab_size_(vocab_size), configured_{"", config.tokenizer, config.tokenizer_hash} {
  if (configured_.hash.empty()) configured_.hash = hash_of_named(config.tokenizer);
}

void SidecarCheck::check_tokenizer(const std::string& path, const Json& sidecar) {
  // A run without a name for its tokenizer may still have the hash (app/inputs/tokenizer_source.h).
  const bool has_no_name = config_.tokenizer == kUnknownTokenizer || config_.tokenizer == kAutoTokenizer;
  if (has_no_name && config_.tokenizer_hash.empty()) return;
  const auto found = new_tokenizer(path, sidecar, same_tokenizers_);
  CHECK_INPUT(!found || may_be_same(*found, configured_),
              "{} has the tokenizer {}, but data.tokenizer is {}, expected the same", path, describe(*found),
              describe(configured_));
}

// Adds a sentence if the sidecar has another id. Ids that are not integers are ignored: the run does not rely on them.
void SidecarCheck::compare_token(const std::string& path, const Json& sidecar, const char* name,
                                 const std::optional<int32_t>& configured) {
  const Json id = integer_of(sidecar, name);
  if (!configured || id.is_null() || id == *configured) return;
  overrides_.emplace(name, fmt::format("data.{0}_id {1} overrides {0} {2} of {3}", name, *configured, id.dump(), path));
}

void SidecarCheck::check(const std::string& token_file) {
  const std::string path = sidecar_path(token_file);
  const Json sidecar = read_sidecar_if_possible(path);
  if (sidecar.is_null()) return;
  check_counts(path, sidecar, token_file);
  check_tokenizer(path, sidecar);
  const Json vocab_size = integer_of(sidecar, "vocab_size");
  CHECK_INPUT(!vocab_size.is_number_unsigned() || vocab_size.get<uint64_t>() <= static_cast<uint64_t>(vocab_size_),
              "{} has vocab_size {}, but model.vocab_size is {}, expected at least that value", path, vocab_size.dump(),
              vocab_size_);
  compare_token(path, sidecar, "bos", config_.bos_id);
  compare_token(path, sidecar, "eos", config_.eos_id);
}

std::vector<std::string> SidecarCheck::overrides() const {
  std::vector<std::string> sentences;
  for (const auto& [name, sentence] : overrides_) sentences.push_back(sentence);
  return sentences;
}

}  // namespace octavo
