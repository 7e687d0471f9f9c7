// Converts between Hugging Face directories and checkpoints, tensor by tensor, so memory holds one tensor at a time.
// Import and export give back the same float32 values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_format.h"
#include "core/dtype.h"

namespace octavo {

// Hugging Face directory -> a checkpoint of step 0 at `checkpoint_dir` itself: float32 weights, no moments, and the
// tokenizer if there is one. Says in the log what is unusual about the weights (WeightSource::note). Written
// under a temporary name beside it and renamed. InputError when something other than a checkpoint is already there.
// A checkpoint that was not imported is replaced only with `overwrite`.
struct ImportReport {
  int64_t parameters = 0;
  bool tokenizer = false;  // Whether the checkpoint carries a tokenizer.
};
ImportReport import_hf(const std::string& hf_dir, const std::string& checkpoint_dir, bool overwrite = false);

// Returns the meta of a checkpoint that is imported from a Hugging Face directory with this config.json: the ids for an
// export back, and the tokenizer for text in and out.
nlohmann::json import_meta(const std::string& hf_dir, const nlohmann::json& hf_config, bool has_tokenizer);
// Returns the files of the directory's tokenizer. Empty for the byte tokenizer, for which Octavo needs no files.
std::vector<CarriedFile> imported_tokenizer(const std::string& hf_dir);

struct ExportOptions {
  DType dtype = DType::kFloat32;            // float32 or bfloat16.
  int64_t max_shard_bytes = 5'000'000'000;  // Maximum size of the tensors in a file. Several files get an index.
  bool overwrite = false;                   // Whether to replace a model that is not an earlier export.
  SavedWeights weights = SavedWeights::kMaster;
};

struct ExportReport {
  std::vector<std::string> files;  // Written files, without the directory.
  int64_t step = 0;                // Step of the checkpoint.
  int64_t parameters = 0;
  int64_t bytes = 0;                // Bytes of the tensors.
  std::string tokenizer_elsewhere;  // The tokenizer that the checkpoint names but does not carry. It is not copied.
};

// A checkpoint (or the newest of a directory of them or of a run) -> a Hugging Face directory: config.json,
// generation_config.json, weights and the tokenizer's files: those that the checkpoint carries, or those of the byte
// tokenizer. The weights of an earlier export in the directory are replaced, once the new ones are whole, and with them
// its tokenizer's files go; other files stay. InputError where it holds a model of another origin.
ExportReport export_hf(const std::string& model, const std::string& hf_dir, const ExportOptions& options = {});

}  // namespace octavo
