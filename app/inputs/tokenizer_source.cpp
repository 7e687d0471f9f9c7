#include "app/inputs/tokenizer_source.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "app/config/stages.h"
#include "app/inputs/model_path.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "data/sidecar.h"
#include "data/tokenizer_identity.h"
#include "data/tokens/byte_tokenizer.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

std::string describe(const DataConfig& data) {
  const auto text = [](const std::optional<int32_t>& id) { return id ? std::to_string(*id) : "none"; };
  return fmt::format("bos {} and eos {}", text(data.bos_id), text(data.eos_id));
}

bool is_file_name(const std::string& tokenizer) {
  return tokenizer != kAutoTokenizer && tokenizer != kByteTokenizerName && tokenizer != kUnknownTokenizer;
}

bool may_be_bytes(int64_t vocab_size) { return vocab_size <= ByteTokenizer::kVocabSize; }

// Returns the text as one word of a shell command.
std::string shell_word(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

// Returns the tokenizer.json at `path`. A file that an export wrote for the byte tokenizer counts as byte.
ModelTokenizer read_tokenizer(const std::string& path) {
  const std::string hash = tokenizer_hash(read_input_file(path), path);
  return {hash == kByteTokenizerHash ? kByteTokenizerName : path, hash};
}

bool is_known(const std::optional<ModelTokenizer>& tokenizer) {
  return tokenizer && (tokenizer->name != kUnknownTokenizer || !tokenizer->hash.empty());
}

// Returns the tokenizer that the sidecars of the token files name (find_tokenizer in data/sidecar.h).
std::optional<ModelTokenizer> tokenizer_of_data(const Config& config, Purpose purpose) {
  const std::optional<SidecarTokenizer> found = find_tokenizer(token_files_of(config, purpose));
  if (!found) return std::nullopt;
  return ModelTokenizer{found->name.empty() ? kUnknownTokenizer : found->name, found->hash};
}

std::string describe(const ModelTokenizer& tokenizer) {
  return tokenizer.hash.empty() ? tokenizer.name
                                : fmt::format("{} (hash {}...)", tokenizer.name, tokenizer.hash.substr(0, 12));
}

bool differ(const std::string& hash, const ModelTokenizer& other) {
  return !hash.empty() && !other.hash.empty() && hash != other.hash;
}

// Returns the tokenizer.json that a checkpoint contains, or null.
const ListedFile* attached_tokenizer(const Checkpoint& checkpoint) {
  const auto& files = checkpoint.files();
  const auto found = std::ranges::find(files, kTokenizerName, &ListedFile::name);
  return found == files.end() ? nullptr : &*found;
}

std::string attached_path(const Checkpoint& checkpoint) { return (checkpoint.path() / kTokenizerName).string(); }

// Returns the tokenizer of the model that a run begins from. If a directory has none, returns kUnknownTokenizer and
// sets `problem`, because training does not need one.
ModelTokenizer tokenizer_of_initial(const std::string& init_from, std::string& problem) {
  const ModelPath model = resolve_model(init_from);
  if (model.is_checkpoint) {
    const Checkpoint checkpoint(model.path);
    ModelTokenizer tokenizer = tokenizer_of_checkpoint(checkpoint);
    if (attached_tokenizer(checkpoint) != nullptr) tokenizer.name = attached_path(checkpoint);
    return tokenizer;
  }
  try {
    return tokenizer_of_directory(model.path);
  } catch (const UnreadableFile& error) {
    problem = error.what();
    return {kUnknownTokenizer, ""};
  }
}

}  // namespace

std::string find_tokenizer_file(const std::string& path) {
  std::error_code error;
  if (!path_exists(path) || !is_directory_at(path)) {
    CHECK_AS(UnreadableFile, fs::is_regular_file(path, error),
             "the tokenizer {} is not a file, expected a tokenizer.json, or a folder that has one", path);
    return path;
  }
  const fs::path folder = path;
  if (path_exists(folder / kTokenizerName)) return (folder / kTokenizerName).string();
  std::string others;
  for (const char* name : {"tokenizer.model", "vocab.json", "merges.txt"}) {
    if (path_exists(folder / name)) others += (others.empty() ? "" : " and ") + std::string(name);
  }
  CHECK_AS(UnreadableFile, !others.empty(), "the tokenizer {}: the folder has no {}", path, kTokenizerName);
  throw UnreadableFile(
      fmt::format("the tokenizer {}: the folder has {}, but no {}; python3 -c 'from sys import argv; from transformers "
                  "import AutoTokenizer; AutoTokenizer.from_pretrained(argv[1]).save_pretrained(argv[1])' {} makes one",
                  path, others, kTokenizerName, shell_word(path)));
}

ModelTokenizer tokenizer_of_directory(const std::string& dir) { return read_tokenizer(find_tokenizer_file(dir)); }

ModelTokenizer tokenizer_of_checkpoint(const Checkpoint& checkpoint) {
  const auto recorded = [&](const std::string& place) { return find_value<std::string>(checkpoint.meta(), place); };
  ModelTokenizer tokenizer{recorded("/config/data/tokenizer").value_or(kUnknownTokenizer),
                           recorded(fmt::format("/{}", kTokenizerHashKey)).value_or("")};
  if (const ListedFile* attached = attached_tokenizer(checkpoint)) {
    const std::string path = attached_path(checkpoint);
    if (!is_file_name(tokenizer.name)) tokenizer.name = path;
    if (tokenizer.hash.empty()) {
      try {
        tokenizer.hash = tokenizer_hash(checkpoint.read_file(*attached), path);
      } catch (const InputError&) {  // An earlier version attached any file. Damage is reported when the run reads it.
      }
    }
  }
  if (tokenizer.name != kByteTokenizerName || !tokenizer.hash.empty()) return tokenizer;
  if (may_be_bytes(checkpoint.model_config().vocab_size)) return {kByteTokenizerName, kByteTokenizerHash};
  return {kUnknownTokenizer, ""};
}

TokenizerChoice choose_tokenizer(const TokenizerFacts& facts) {
  const std::optional<ModelTokenizer>& trained = facts.resumed ? facts.resumed : facts.initial;
  if (facts.given == kAutoTokenizer) {
    if (is_known(trained)) return {*trained};
    if (trained) return {facts.data.value_or(*trained)};
    if (facts.has_byte_vocabulary || facts.data) return {{kByteTokenizerName, kByteTokenizerHash}};
    return {
        {kUnknownTokenizer, ""},
        "neither data.tokenizer nor a token file names a tokenizer, so checkpoints contain none, and octavo generate "
        "cannot use them"};
  }
  if (!facts.given_is_there) {
    if (facts.resumed && !facts.resumed->hash.empty()) return {{facts.given, facts.resumed->hash}};
    return {.tokenizer = {facts.given, ""},
            .error = fmt::format("data.tokenizer is {}, which does not exist", facts.given)};
  }
  TokenizerChoice choice{{facts.given, facts.given_hash}};
  if (!trained || !differ(facts.given_hash, *trained)) return choice;
  if (facts.resumed) {
    choice.error = fmt::format(
        "data.tokenizer is {}, but the checkpoint was trained with another tokenizer, {}; expected the same, or auto",
        describe(choice.tokenizer), describe(*trained));
  } else {
    choice.note = fmt::format("data.tokenizer is {}, but the model that the run begins from has another tokenizer, {}",
                              describe(choice.tokenizer), describe(*trained));
  }
  return choice;
}

std::string resolve_tokenizer(Config& config, Purpose purpose, const std::optional<Checkpoint>& resumed) {
  DataConfig& data = config.data;
  if (purpose == Purpose::kSynthetic) return "";
  TokenizerFacts facts{.given = data.tokenizer};
  std::string problem;
  if (resumed) facts.resumed = tokenizer_of_checkpoint(*resumed);
  if (!resumed && !config.init_from.empty()) facts.initial = tokenizer_of_initial(config.init_from, problem);
  if (facts.given == kByteTokenizerName) facts.given_hash = kByteTokenizerHash;
  if (is_file_name(facts.given)) {
    try {
      const std::string path = find_tokenizer_file(facts.given);
      facts.given = path;
      facts.given_hash = read_tokenizer(path).hash;
    } catch (const UnreadableFile& error) {
      problem = error.what();
      facts.given_is_there = false;
    }
  }
  facts.has_byte_vocabulary = may_be_bytes(config.model.vocab_size);
  const bool has_model = facts.resumed || facts.initial;
  if (facts.given == kAutoTokenizer && !is_known(facts.resumed) && !is_known(facts.initial) &&
      (has_model || !facts.has_byte_vocabulary)) {
    facts.data = tokenizer_of_data(config, purpose);
  }
  const TokenizerChoice choice = choose_tokenizer(facts);
  if (!choice.error.empty() && !facts.given_is_there) throw UnreadableFile(problem);
  CHECK_INPUT(choice.error.empty(), "{}", choice.error);
  data.tokenizer = choice.tokenizer.name;
  data.tokenizer_hash = choice.tokenizer.hash;
  const bool is_unknown = !problem.empty() && (facts.data || data.tokenizer == kUnknownTokenizer);
  return is_unknown ? fmt::format("{}, so the tokenizer of the model is unknown", problem) : choice.note;
}

std::vector<std::string> token_files_of(const Config& config, Purpose purpose) {
  std::vector<DatasetSource> sources = config.data.validation;
  if (purpose == Purpose::kTrain) {
    for (const Config& stage : stage_configs(config))
      sources.insert(sources.end(), stage.data.train.begin(), stage.data.train.end());
  }
  std::vector<std::string> files;
  for (const DatasetSource& source : sources) {
    if (source.weight == 0) continue;
    const std::vector<std::string> found = token_files_of(source);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

void take_document_tokens(const nlohmann::json& recorded, DataConfig& data) {
  const auto take = [&](const char* key, bool& is_auto, std::optional<int32_t>& id) {
    if (!std::exchange(is_auto, false)) return;
    const nlohmann::json& found = recorded.at(key);
    id = found.is_number_integer() ? std::optional(found.get<int32_t>()) : std::nullopt;
  };
  take("bos_id", data.bos_auto, data.bos_id);
  take("eos_id", data.eos_auto, data.eos_id);
}

std::string resolve_document_tokens(Config& config, Purpose purpose, const std::optional<Checkpoint>& resumed) {
  DataConfig& data = config.data;
  if (purpose == Purpose::kSynthetic || !(data.bos_auto || data.eos_auto)) return "";
  const nlohmann::json loader = resumed ? resumed->meta().value("loader", nlohmann::json()) : nlohmann::json();
  if (!loader.contains("bos_id") || !loader.contains("eos_id")) {
    find_document_tokens(data, token_files_of(config, purpose));
    if (data.bos_id || data.eos_id) return "";
    return "no token file names a bos or eos, so documents run together unless their tokens contain one; data.bos_id "
           "or data.eos_id inserts one, and null says that none is wanted";
  }
  DataConfig named = data;
  take_document_tokens(loader, data);
  try {
    find_document_tokens(named, token_files_of(config, purpose));
  } catch (const InputError&) {  // Ignored, because this run does not use the ids in the sidecars.
    return "";
  }
  if (named.bos_id == data.bos_id && named.eos_id == data.eos_id) return "";
  return fmt::format("the run keeps {} around documents, as in its earlier steps, although its token files name {}",
                     describe(data), describe(named));
}

}  // namespace octavo
