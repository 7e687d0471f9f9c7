// The identity of a Hugging Face tokenizer: the hash of its vocabulary, merges and special tokens. Two tokenizer.json
// with equal hashes give a text equal ids, wherever they lie and however they are formatted. Sidecars (PREFIX.json) and
// checkpoints record the hash as "tokenizer_hash".
//
// The hash is the SHA-256 of a sequence of fields. A field is the number of its bytes in decimal, a colon, and the
// bytes. Text is UTF-8 and a number is decimal. The fields are
//
//   the type of the model ("BPE"), or "" if there is none;
//   for each entry of model.vocab, in rising order of the id and then of the token's bytes: "token", the id, the token,
//     and, if the vocabulary is a list of [token, score], the score as 8 bytes, a little-endian double;
//   for each entry of model.merges in order: "merge", the left and the right token. An entry is a list of two tokens,
//     or a text that its first space divides;
//   for each added token, in rising order of the id and then of its content's bytes: "added", the id, the content, and
//     1 if the token is special, else 0.
//
// scripts/tokenizing/tokenizer_files.py computes the same hash.
#pragma once

#include <string>
#include <string_view>

namespace octavo {

// Name of the byte tokenizer in configs and sidecars.
inline constexpr const char* kByteTokenizerName = "byte";
// Name of the tokenizer in a config if it is unknown, because the model that a run begins from has none.
inline constexpr const char* kUnknownTokenizer = "none";
// Name of the tokenizer in a config before the tokenizer is resolved (app/inputs/tokenizer_source.h).
inline constexpr const char* kAutoTokenizer = "auto";
// Key of the hash in sidecars and in the metadata of checkpoints.
inline constexpr const char* kTokenizerHashKey = "tokenizer_hash";
// Hash of the byte tokenizer as an export writes it (app/text/tokenizer_files.h).
inline constexpr const char* kByteTokenizerHash = "ad6dce21ec3c6b927846d1cfe2cba88f39e1192235ff44be163db80339e28db9";

// Returns the hash of a tokenizer.json. `path` names it in messages. Throws an InputError if the content is not a
// tokenizer.json.
std::string tokenizer_hash(std::string_view content, const std::string& path);

}  // namespace octavo
