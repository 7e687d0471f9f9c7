// The `data:` section of the config: what is read, in which order, and how it is divided into samples. app/ fills it
// from YAML. SampleStream, Loader and ValidationSet check the values that they use and name the key of a wrong one.
// BatchSchedule tells the number of samples of each step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo {

struct DatasetSource {
  // Token files that form one stream of tokens in this order. Each path is PREFIX, PREFIX.bin or PREFIX.idx of a
  // Megatron indexed dataset, an llm.c .bin shard, or a folder of token files. At least one.
  std::vector<std::string> paths = {};
  std::string name = {};  // Name in logs and metrics. If empty, dataset_names() chooses one.
  // Share of the samples from this dataset, relative to the other weights. 0 means that the dataset is never read.
  double weight = 1.0;
  double max_epochs = 0;  // Number of epochs above which DataConfig::on_max_epochs acts. 0 means unlimited.
  bool operator==(const DatasetSource&) const = default;
};

// Returns the names of the sources, by default the last part of their first path. Equal names get "_2", "_3" and so on.
std::vector<std::string> dataset_names(const std::vector<DatasetSource>& sources);

// Returns the token files of a dataset in order, including those in its folders (find_token_files in
// data/tokens/token_stream.h, which also says what `repeated` gets). Throws an InputError if a folder has some but not
// all parts of a dataset (check_parts in data/sidecar.h).
std::vector<std::string> token_files_of(const DatasetSource& source, std::vector<std::string>* repeated = nullptr);

enum class Shuffle {
  kLcg,   // Pseudo-random order of the windows, a new one every epoch.
  kNone,  // File order of the windows in every epoch.
};

enum class OnMaxEpochs { kWarn, kError };

// Range [begin, end) of global samples.
struct SampleRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const SampleRange&) const = default;
};

// State of a dataset at the beginning of a stage (app/config/stages.h).
struct DatasetOrigin {
  int64_t id = 0;       // Number of the dataset in the whole run. The order of its windows is drawn from the number.
  int64_t windows = 0;  // Windows that earlier stages took from the dataset.
  bool operator==(const DatasetOrigin&) const = default;
};

// State of all datasets at the beginning of a stage.
struct DataOrigin {
  int64_t sample = 0;  // First sample of the stage.
  // One element per dataset of data.train. Empty means that they are numbered from 0 and nothing was taken.
  std::vector<DatasetOrigin> datasets = {};
  bool operator==(const DataOrigin&) const = default;
};

struct DataConfig {
  std::vector<DatasetSource> train = {};
  std::vector<DatasetSource> validation = {};
  // Number of inputs per sample. A sample has one token more: inputs are the first seq_len tokens, targets the last
  // seq_len.
  int64_t seq_len = 8192;
  Shuffle shuffle = Shuffle::kLcg;
  // Tokens that the loader inserts before and after every document, unless the documents of a file have them already.
  std::optional<int32_t> bos_id = {};
  std::optional<int32_t> eos_id = {};
  // Whether find_document_tokens() must still take the ids from the sidecars (PREFIX.json) of the token files.
  bool bos_auto = false;
  bool eos_auto = false;
  // Whether attention stays within documents and targets of the next document do not count in the loss.
  bool document_mask = false;
  OnMaxEpochs on_max_epochs = OnMaxEpochs::kWarn;
  // Whether training and validation may have files in common (data/overlap.h).
  bool allow_overlap = false;
  std::vector<SampleRange> skip = {};              // Ranges of samples that training skips.
  std::optional<int64_t> resume_from_sample = {};  // Sample at which the data continues, regardless of the checkpoint.
  int64_t reader_threads = 4;                      // Number of threads that read samples ahead.
  // "byte", the path of a tokenizer.json, or another name in data/tokenizer_identity.h.
  std::string tokenizer = "byte";
  std::string tokenizer_hash = {};  // Identity of the tokenizer (data/tokenizer_identity.h). Empty means unknown.
  uint64_t seed = 1234;
  DataOrigin origin = {};
};

// Returns the ranges in rising order, with touching ranges joined. Throws an InputError if a range is empty.
std::vector<SampleRange> merged_ranges(std::vector<SampleRange> ranges);

// Returns the index after the last of the next `count` samples that begin at `begin` and lie in none of the ranges.
int64_t end_of_samples(const std::vector<SampleRange>& skip, int64_t begin, int64_t count);

// Batch size for a number of steps.
struct BatchPhase {
  int64_t batch_size = 1;
  int64_t steps = 1;
  bool operator==(const BatchPhase&) const = default;
};

// The number of samples of each step. It depends on the step only, so samples, tokens and learning rates are the same
// on any mesh and after any number of resumes.
class BatchSchedule {
 public:
  // The phases of `warmup` follow each other from step 1 on. All later steps take `batch_size`.
  explicit BatchSchedule(int64_t batch_size, std::vector<BatchPhase> warmup = {});

  // Returns the number of samples of step `step`, from 1.
  int64_t batch_size(int64_t step) const;
  // Returns the number of samples of the first `steps` steps together.
  int64_t samples(int64_t steps) const;

 private:
  int64_t batch_size_;
  std::vector<BatchPhase> warmup_;
};

}  // namespace octavo
