// Makes files of tokenizers that Hugging Face transformers can load.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint_format.h"

namespace octavo {

inline constexpr const char* kTokenizerConfigName = "tokenizer_config.json";

// Returns a tokenizer_config.json, from which transformers reads the names of the special tokens. `tokenizer` is the
// tokenizer.json. `bos_id` and `eos_id` are an id, or a list whose first id is used. Any other JSON means that there is
// no such token. The padding token is the special token whose name contains "pad", or else the eos token. Returns
// nothing if `tokenizer` is not a tokenizer.json.
std::optional<AttachedFile> make_tokenizer_config(const AttachedFile& tokenizer, const nlohmann::json& bos_id,
                                                  const nlohmann::json& eos_id);

// Returns tokenizer.json and tokenizer_config.json of the byte tokenizer (data/tokens/byte_tokenizer.h): a byte-level
// BPE without merges, whose tokens are the single bytes with the names that GPT-2 uses for them. The special tokens are
// <|bos|>, <|eos|> and <|pad|>; the tokenizer adds none of them to a text.
std::vector<AttachedFile> byte_tokenizer_files();

// Returns whether a tokenizer.json is the tokenizer that byte_tokenizer_files() returns (data/tokenizer_identity.h).
bool is_byte_tokenizer(const AttachedFile& tokenizer);

}  // namespace octavo
