// tokenizer_config.json, from which Hugging Face transformers takes the names of a tokenizer's special tokens.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "checkpoint/checkpoint_format.h"

namespace octavo {

inline constexpr const char* kTokenizerConfigName = "tokenizer_config.json";

// Returns the file that belongs to `tokenizer`, a tokenizer.json. `bos_id` and `eos_id` are ids, lists of which the
// first counts, or anything else where there is none. The padding token is the special token whose name has "pad",
// otherwise that of eos. Returns nothing when `tokenizer` is not a tokenizer.json.
std::optional<CarriedFile> make_tokenizer_config(const CarriedFile& tokenizer, const nlohmann::json& bos_id,
                                                 const nlohmann::json& eos_id);

}  // namespace octavo
