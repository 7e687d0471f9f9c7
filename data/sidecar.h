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

}  // namespace octavo
