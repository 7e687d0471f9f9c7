// Compares PREFIX.json of a token file (data/tokens/token_writer.h) with the config. With another tokenizer or
// vocabulary a model would learn from ids that mean something else.
//
// A file without a sidecar, or without some of its fields, is accepted, because other programs write token files too.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data/config.h"

namespace octavo {

// A tokenizer that a sidecar names.
struct SidecarTokenizer {
  std::string path = {};  // Path of the sidecar.
  std::string name = {};  // "byte", or the path of a tokenizer.json. Empty if the sidecar only has a hash.
  std::string hash = {};  // Identity of the tokenizer (data/tokenizer_identity.h). Empty means unknown.
};

class SidecarCheck {
 public:
  // Requires: `config` outlives the check.
  SidecarCheck(const DataConfig& config, int64_t vocab_size);

  // Throws an InputError that names both sides if the sidecar of `token_file` has a larger vocab_size than the model,
  // or another tokenizer than data.tokenizer. Tokenizers are compared by their hashes (data/tokenizer_identity.h). A
  // sidecar without a hash is compared by the tokenizer that it names, if that file still exists.
  void check(const std::string& token_file);

  // Returns a sentence for each of bos and eos whose id in the config differs from that in a checked sidecar. The
  // sentence names the first such sidecar.
  std::vector<std::string> overrides() const;

 private:
  void check_tokenizer(const std::string& path, const nlohmann::json& sidecar);
  void compare_token(const std::string& path, const nlohmann::json& sidecar, const char* name,
                     const std::optional<int32_t>& configured);

  const DataConfig& config_;
  int64_t vocab_size_;
  SidecarTokenizer configured_;                   // data.tokenizer.
  std::set<std::string> same_tokenizers_;         // Tokenizers that were already found to be equal.
  std::map<std::string, std::string> overrides_;  // Sentences by the name of the token.
};

// Returns the tokenizer that the sidecars of the files name, or nothing if none names one. Throws an InputError if two
// name different ones.
std::optional<SidecarTokenizer> find_tokenizer(const std::vector<std::string>& token_files);

// Checks the token files of folders. If a sidecar says that its file is a part of a dataset (tokenize_hf.py --part),
// the folder must have all parts of the dataset, each once and with the number of tokens that its sidecar states, and
// no other token file. Throws an InputError otherwise. Folders without parts may have any token files.
void check_parts(const std::vector<std::string>& token_files);

// Sets the ids that `config` leaves to the token files (bos_auto, eos_auto) to those that the sidecars of all
// `token_files` name, or to none if no sidecar names one. Throws an UnreadableFile if a token file is missing, and an
// InputError if two files name different ids, one names an id and another none, or a sidecar is not JSON.
void find_document_tokens(DataConfig& config, const std::vector<std::string>& token_files);

}  // namespace octavo
