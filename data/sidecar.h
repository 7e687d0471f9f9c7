// Compares PREFIX.json of a token file (data/tokens/token_writer.h) with the config. With another tokenizer, vocabulary
// or other special tokens a model would learn from ids that mean something else.
//
// A file without a sidecar, or without some of its fields, is accepted, because other programs write token files too.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "data/config.h"

namespace octavo {

class SidecarCheck {
 public:
  // `config` must outlive the check.
  SidecarCheck(const DataConfig& config, int64_t vocab_size) : config_(config), vocab_size_(vocab_size) {}

  // Throws an InputError that names both sides if the sidecar of `token_file` has
  //   - a larger vocab_size than the model;
  //   - another bos or eos than data.bos_id or data.eos_id, if both are given;
  //   - another tokenizer than data.tokenizer: bytes on one side only, or two existing files that differ.
  void check(const std::string& token_file);

 private:
  void check_tokenizer(const std::string& path, const nlohmann::json& tokenizer);

  const DataConfig& config_;
  int64_t vocab_size_;
  std::set<std::string> same_tokenizers_;  // Tokenizers that were already found to be equal.
};

// Sets the ids that `config` leaves to the token files (bos_auto, eos_auto) to those that the sidecars of all
// `token_files` name, or to none if no sidecar names one. Throws an UnreadableFile if a token file is missing, and an
// InputError if two files name different ids, one names an id and another none, or a sidecar is not JSON.
void find_document_tokens(DataConfig& config, const std::vector<std::string>& token_files);

}  // namespace octavo
