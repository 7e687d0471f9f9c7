// What PREFIX.json beside a token file says of its tokens (data/tokens/token_writer.h) against what a run takes them
// for: with another tokenizer, vocabulary or other special tokens a model would learn from ids that mean something
// else.
//
// A file without one, or without some of its fields, is as good: other programs write token files too.
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

  // InputError, naming both sides, when the sidecar of `token_file` has
  //   a larger vocab_size than the model's;
  //   another bos or eos than data.bos_id or data.eos_id, where both are there;
  //   another tokenizer than data.tokenizer: bytes on one side alone, or files that are both there and differ.
  void check(const std::string& token_file);

 private:
  void check_tokenizer(const std::string& path, const nlohmann::json& tokenizer);

  const DataConfig& config_;
  int64_t vocab_size_;
  std::set<std::string> same_tokenizers_;  // those compared already
};

// Finds the ids that `config` leaves to the token files (bos_auto, eos_auto): those that the sidecars of all
// `token_files` name, none where no sidecar names one. UnreadableFile when a token file is missing; InputError naming
// two files that name different ids, a file that names one and a file that names none included, or a sidecar that is
// not JSON.
void find_document_tokens(DataConfig& config, const std::vector<std::string>& token_files);

}  // namespace octavo
