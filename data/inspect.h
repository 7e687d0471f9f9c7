// Implements `octavo inspect` for token files and samples.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/config.h"

namespace octavo {

// Reads a whole token file and returns facts about it. Keys: path, format, dtype, documents, sequences, tokens,
// document_length {min, mean, max}, token_id {min, max}, sidecar (the content of PREFIX.json, or null), problems
// (sentences, for example about a sidecar that contradicts the file) and intact (no problem). If the vocabulary has at
// most 1024 ids, there is also entropy_nats {unigram, bigram} per token of this file. The sidecar tells the size of the
// vocabulary. Without a sidecar the size is the largest id + 1.
//
//   unigram   H(x)           = -sum_b p(b) ln p(b)                over all tokens
//   bigram    H(x_t|x_{t-1}) = -sum_{a,b} p(a, b) ln p(b|a)       over neighbours within a document
//
// The unigram entropy is the lowest loss on this file that a model without context can reach, the bigram entropy that
// of a model that sees the previous token only. They are null if there is no token or no such pair. Throws an
// InputError if the file is broken or missing.
nlohmann::ordered_json inspect_token_file(const std::string& path);

// Implements `octavo inspect CONFIG --samples A:B`: writes the global training samples begin to end-1, including those
// of data.skip, as one JSON object per line, exactly
//   {"sample":g,"dataset":d,"epoch":e,"window":w,"tokens":[seq_len + 1 ids]}
// `dataset` is the index of the dataset in data.train. Throws an InputError unless 0 <= begin <= end.
void write_samples(const DataConfig& config, int64_t begin, int64_t end, std::ostream& out);

// Implements `octavo inspect CONFIG --samples A:B --text`: writes the samples as text for people. A line names sample,
// dataset and tokens, and the text of these tokens follows. Each document in a sample has a line of its own. `decode`
// returns the text of token ids. Control characters in it are escaped.
void write_sample_texts(const DataConfig& config, int64_t begin, int64_t end,
                        const std::function<std::string(const std::vector<int32_t>&)>& decode, std::ostream& out);

}  // namespace octavo
