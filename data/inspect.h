// `octavo inspect` for token files and samples.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/config.h"

namespace octavo {

// What is in a token file; reads all of it. Keys: path, format, dtype, documents, sequences, tokens, document_length
// {min, mean, max}, token_id {min, max}, sidecar (the content of PREFIX.json, or null), problems (sentences; of a
// sidecar that contradicts the file) and intact (no problem). For vocabularies of up to 1024 (the sidecar's, otherwise
// the largest id + 1) also entropy_nats {unigram, bigram}, of this very file, per token:
//
//   unigram   H(x)           = -sum_b p(b) ln p(b)                over all tokens
//   bigram    H(x_t|x_{t-1}) = -sum_{a,b} p(a, b) ln p(b|a)       over neighbours within a document
//
// the losses of the best models that look at no and at one token of context. null where there is no such token or pair.
// InputError when the file itself is broken or missing.
nlohmann::ordered_json inspect_token_file(const std::string& path);

// `octavo inspect CONFIG --samples A:B`: the global training samples begin to end-1, those of data.skip too, one JSON
// object a line, exactly
//   {"sample":g,"dataset":d,"epoch":e,"window":w,"tokens":[seq_len + 1 ids]}
// with the number of the dataset in data.train.
// InputError when the range is not 0 <= begin <= end.
void write_samples(const DataConfig& config, int64_t begin, int64_t end, std::ostream& out);

}  // namespace octavo
