// Makes tokenizer_config.json, from which Hugging Face transformers reads the names of a tokenizer's special tokens.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "checkpoint/checkpoint_format.h"

namespace octavo {

inline constexpr const char* kTokenizerConfigName = "tokenizer_config.json";

// Returns tokenizer_config.json for `tokenizer`, a tokenizer.json. `bos_id` and `eos_id` are an id, or a list whose
// first id is used; any other JSON means that there is no such token. The padding token is the special token whose name
// contains "pad", or else the eos token. Returns nothing if `tokenizer` is not a tokenizer.json.
std::optional<CarriedFile> make_tokenizer_config(const CarriedFile& tokenizer, const nlohmann::json& bos_id,
                                                 const nlohmann::json& eos_id);

}  // namespace octavo
