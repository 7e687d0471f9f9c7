// Finds the tokenizer of a run or a model, and the tokens around its documents if the config leaves them to the token
// files (data.bos_id: auto).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config_check.h"
#include "checkpoint/checkpoint.h"

namespace octavo {

inline constexpr const char* kTokenizerName = "tokenizer.json";

// The tokenizer that a model was trained with.
struct ModelTokenizer {
  // "byte", the path of a tokenizer.json, or kUnknownTokenizer (data/tokenizer_identity.h).
  std::string name = {};
  std::string hash = {};  // Empty means unknown.
};

// Returns the path of the tokenizer.json that `path`, a file or a folder, names. Throws an UnreadableFile that names
// what is missing. For a folder with a tokenizer in another format, the message has the command that converts it.
std::string find_tokenizer_file(const std::string& path);

// Returns the tokenizer in a Hugging Face directory. Throws like find_tokenizer_file(), and an InputError if the file
// is no tokenizer.json.
ModelTokenizer tokenizer_of_directory(const std::string& dir);

// Returns the tokenizer that a checkpoint contains or names. Earlier versions recorded their default, byte, for models
// of any tokenizer. So byte without a hash counts only if the vocabulary is not larger than that of bytes.
ModelTokenizer tokenizer_of_checkpoint(const Checkpoint& checkpoint);

// Facts about the tokenizers of a run.
struct TokenizerFacts {
  std::string given = {};                      // data.tokenizer. A folder is replaced with the file in it.
  std::string given_hash = {};                 // Empty if `given` is auto, or a file that is missing.
  bool given_is_there = true;                  // False if `given` is a file that is missing.
  std::optional<ModelTokenizer> resumed = {};  // Tokenizer of the checkpoint that the run resumes.
  std::optional<ModelTokenizer> initial = {};  // Tokenizer of the model that the run begins from.
  std::optional<ModelTokenizer> data = {};     // Tokenizer that the sidecars of the token files name.
  bool has_byte_vocabulary = true;             // Whether the model's vocabulary is not larger than that of bytes.
};

struct TokenizerChoice {
  ModelTokenizer tokenizer;
  std::string note = {};   // Warning for the user. Empty if there is none.
  std::string error = {};  // Reason why the run cannot begin. Empty if it can.
};

// Decides which tokenizer a run uses:
//   - the given one. If the run resumes a checkpoint, it must be the checkpoint's, or else there is an error. If it
//     differs from that of the initial weights, there is a note.
//   - a given file that is missing, if the resumed checkpoint contains its tokenizer.
//   - with auto, that of the resumed checkpoint or of the initial weights. If that is unknown, the one that the data
//     names. Without such a model, the byte tokenizer, or kUnknownTokenizer with a note if the vocabulary is larger
//     than that of bytes and the data names no tokenizer.
TokenizerChoice choose_tokenizer(const TokenizerFacts& facts);

// Sets data.tokenizer and data.tokenizer_hash of a run that resumes `resumed`, and returns the note of the choice.
// Throws an UnreadableFile if the tokenizer is missing. Throws an InputError if it is no tokenizer.json, differs from
// the checkpoint's tokenizer, or is unknown while the sidecars of the token files name different ones.
std::string resolve_tokenizer(Config& config, Purpose purpose, const std::optional<Checkpoint>& resumed);

// Returns the token files of data.train in all stages and of data.validation, or of data.validation only for an
// evaluation.
std::vector<std::string> token_files_of(const Config& config, Purpose purpose);

// Resolves data.bos_id and data.eos_id if they are auto. A run that resumes a checkpoint, `resumed`, uses the ids that
// the checkpoint was trained with; any other command uses the ids in the sidecars of the token files. For synthetic
// data nothing is read or set. Returns a sentence if a checkpoint and the sidecars differ, or if there are no ids, else
// an empty text. Throws like find_document_tokens() (data/sidecar.h).
std::string resolve_document_tokens(Config& config, Purpose purpose, const std::optional<Checkpoint>& resumed);

// Sets data.bos_id and data.eos_id, if they are auto, to the ids in `recorded`, which is a loader state or the data
// section of a config.
void take_document_tokens(const nlohmann::json& recorded, DataConfig& data);

}  // namespace octavo
