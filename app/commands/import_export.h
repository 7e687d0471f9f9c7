// Converts models between Hugging Face directories and checkpoints. Only one tensor at a time is in memory. Importing
// and exporting a model preserves its float32 values exactly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_format.h"
#include "core/dtype.h"

namespace octavo {

struct ImportReport {
  int64_t parameters = 0;
  bool tokenizer = false;  // Whether the checkpoint contains a tokenizer, or names the byte tokenizer.
};
// Converts a Hugging Face directory to a checkpoint of step 0 and makes `checkpoint_dir` the directory of that
// checkpoint. The checkpoint has float32 weights, no optimizer states, and the tokenizer if there is one. Logs what is
// unusual about the weights (WeightSource::notes). The checkpoint is written under a temporary name next to the final
// one, and then renamed. Throws an InputError if the path exists and is not a checkpoint, or if it is a checkpoint of a
// run and `overwrite` is false.
ImportReport import_hf(const std::string& hf_dir, const std::string& checkpoint_dir, bool overwrite = false);

// Returns the metadata of a checkpoint that is imported from `hf_dir`: the path of `hf_dir`, `hugging_face`
// (WeightSource::hugging_face), which an export writes back, and the name of the tokenizer. `tokenizer` has the
// tokenizer's files (read_tokenizer_files in app/text/tokenizer.h), or is empty.
nlohmann::json import_meta(const std::string& hf_dir, const nlohmann::json& hugging_face,
                           const std::vector<AttachedFile>& tokenizer);

struct ExportOptions {
  DType dtype = DType::kFloat32;            // Either float32 or bfloat16.
  int64_t max_shard_bytes = 5'000'000'000;  // Maximum size of the tensors in one file. Several files get an index.
  bool overwrite = false;                   // Whether to replace a model that was not written by an export.
  SavedWeights weights = SavedWeights::kMaster;
};

struct ExportReport {
  std::vector<std::string> files;  // Names of the written files, without the directory.
  int64_t step = 0;                // Step of the checkpoint.
  int64_t parameters = 0;
  int64_t bytes = 0;  // Size of the tensors in bytes.
  // Tokenizer that the checkpoint names but does not contain, and that is therefore not exported.
  std::string tokenizer_elsewhere;
};

// Converts a checkpoint, or the newest one of a directory of checkpoints or of a run, to a Hugging Face directory:
// config.json, generation_config.json, weights and the tokenizer's files. The tokenizer is the one in the checkpoint,
// or else the byte tokenizer. If the directory has an earlier export, its weights are replaced after the new ones are
// complete, and its tokenizer's files are removed; all other files stay. Throws an InputError if the directory has a
// model of another origin.
ExportReport export_hf(const std::string& model, const std::string& hf_dir, const ExportOptions& options = {});

}  // namespace octavo
