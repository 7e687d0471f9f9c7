// Converts text to token ids and back for `octavo generate`. Tokenizers are the byte tokenizer, or a Hugging Face
// tokenizer.json, which a child process serves: scripts/hf_tokenizer.py, with Python's `tokenizers` package.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/inputs/tokenizer_source.h"
#include "app/text/tokenizer_answer.h"
#include "checkpoint/checkpoint.h"
#include "data/config.h"

namespace octavo {

class TextTokenizer {
 public:
  virtual ~TextTokenizer() = default;
  virtual std::vector<int32_t> encode(const std::string& text) = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) = 0;
  // Returns what the files of the tokenizer say about texts. Empty for the byte tokenizer, which has no files.
  virtual TextEnds ends() const { return {}; }
  virtual bool is_byte() const { return false; }
};

// Returns the files of a Hugging Face tokenizer as checkpoints store them: `path` under the name kTokenizerName, and
// the other files of a tokenizer that its folder has, such as tokenizer_config.json. If `path` is
// PREFIX.tokenizer.json, the names of the other files begin with "PREFIX." too. Returns an empty list if `path` is not
// a file.
std::vector<AttachedFile> read_tokenizer_files(const std::filesystem::path& path);
// Returns the tokenizer's files that a run stores in its checkpoints: the files of data.tokenizer, or else, if the file
// is missing or is another tokenizer now, those in the checkpoint that the run resumes. Warns if there are none.
std::vector<AttachedFile> tokenizer_to_attach(const DataConfig& config, const Checkpoint* resumed);
bool is_tokenizer_file(std::string_view name);

// Opens the tokenizer `name`: "byte", or the path of a tokenizer.json. Throws an InputError if the file is missing or
// cannot be used.
std::unique_ptr<TextTokenizer> open_tokenizer(const std::string& name);

// Returns the tokens that begin and end a text of a model with the metadata `meta`, whose config has the section
// `data`. A text of a model that Octavo trained begins with data.bos_id, if there is one, and a text of another model
// with the token that transformers puts there. data.eos_id and all ids that the files of the model name end a text.
TextEnds text_ends(const nlohmann::json& meta, const DataConfig& data, const TextTokenizer& tokenizer);

}  // namespace octavo
