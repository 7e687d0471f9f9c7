// Writes the byte tokenizer (data/tokens/byte_tokenizer.h) as files that Hugging Face transformers can load: a
// byte-level BPE without merges, whose tokens are the single bytes with the names that GPT-2 uses for them.
#pragma once

#include <vector>

#include "checkpoint/checkpoint_format.h"

namespace octavo {

// Returns tokenizer.json and tokenizer_config.json. The special tokens are <|bos|>, <|eos|> and <|pad|>; the tokenizer
// adds none of them to a text.
std::vector<CarriedFile> byte_tokenizer_files();

// Returns whether a tokenizer.json is the tokenizer that byte_tokenizer_files() returns (data/tokenizer_identity.h).
bool is_byte_tokenizer(const CarriedFile& tokenizer);

}  // namespace octavo
