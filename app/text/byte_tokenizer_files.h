// The byte tokenizer (data/tokens/byte_tokenizer.h) as files that Hugging Face transformers loads: a byte-level BPE
// without merges, whose tokens are the bytes under the names that GPT-2 gave them.
#pragma once

#include <vector>

#include "checkpoint/checkpoint_format.h"

namespace octavo {

// Returns tokenizer.json and tokenizer_config.json. bos, eos and pad are <|bos|>, <|eos|> and <|pad|>. None is added to
// a text.
std::vector<CarriedFile> byte_tokenizer_files();

// Returns whether a tokenizer.json with that content is the byte tokenizer.
bool is_byte_tokenizer(const CarriedFile& tokenizer);

}  // namespace octavo
