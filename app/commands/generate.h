// Decisions of `octavo generate`, for its tests.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "app/text/tokenizer.h"
#include "data/config.h"

namespace octavo {

// Returns the tokens at the beginning and the end of a text of the model with this metadata. `data` is its config. A
// text of a trained model begins with the bos of the run's documents, if they have one. A text of another model begins
// with the token that transformers puts there. The eos of the run and all ids that the files of the model name end it.
TextEnds text_ends(const nlohmann::json& meta, const DataConfig& data, const TextTokenizer& tokenizer);

}  // namespace octavo
