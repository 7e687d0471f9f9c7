// The `data:` section of the config: what is read, in what order, and how it is cut into samples. app/ fills it from
// YAML; SampleStream, Loader and ValidationSet check the values they use and name the key of a wrong one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo {

struct DatasetSource {
  // Token files, one row of tokens in this order: each PREFIX, PREFIX.bin or PREFIX.idx of a Megatron indexed dataset,
  // an llm.c .bin shard, or a folder of them. At least one.
  std::vector<std::string> paths = {};
  std::string name = {};  // in logs and metrics; empty: dataset_names() finds one
  // Share of the samples that comes from this dataset, relative to the other weights (they need not sum to 1).
  // 0: never read.
  double weight = 1.0;
  double max_epochs = 0;  // passes over it of which more are reported (DataConfig::on_max_epochs); 0: any number
  bool operator==(const DatasetSource&) const = default;
};

// The sources' names, or the last part of their first path where they have none; of several alike, the later ones with
// "_2", "_3" and so on behind.
std::vector<std::string> dataset_names(const std::vector<DatasetSource>& sources);

// The token files of a dataset in their order, those of its folders included (find_token_files in
// data/tokens/token_row.h).
std::vector<std::string> token_files_of(const DatasetSource& source);

enum class Shuffle {
  kLcg,   // windows in the order of the LCG permutation, a new one every epoch
  kNone,  // windows in file order, over and over
};

enum class OnMaxEpochs { kWarn, kError };

// Global samples [begin, end).
struct SampleRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const SampleRange&) const = default;
};

// Where a stage of a run begins in a dataset.
struct DatasetOrigin {
  int64_t id = 0;     // of the dataset in the whole run, which its order is drawn by
  int64_t draws = 0;  // windows that the stages before took of it
  bool operator==(const DatasetOrigin&) const = default;
};

// And in all of them.
struct DataOrigin {
  int64_t sample = 0;                        // its first
  std::vector<DatasetOrigin> datasets = {};  // of data.train; empty: numbered from 0, nothing taken of them
  bool operator==(const DataOrigin&) const = default;
};

struct DataConfig {
  std::vector<DatasetSource> train = {};
  std::vector<DatasetSource> validation = {};
  // A sample is one token longer: inputs are its first seq_len, targets its last.
  int64_t seq_len = 8192;
  Shuffle shuffle = Shuffle::kLcg;
  // Tokens that the loader puts before and after every document.
  std::optional<int32_t> bos_id = {};
  std::optional<int32_t> eos_id = {};
  // Whether the ids are still to be found: those that the token files' sidecars name (find_document_tokens).
  bool bos_auto = false;
  bool eos_auto = false;
  // Whether attention stays within documents, and the loss leaves out targets of the next one.
  bool document_mask = false;
  OnMaxEpochs on_max_epochs = OnMaxEpochs::kWarn;
  bool allow_overlap = false;                      // between train and validation (data/overlap.h)
  std::vector<SampleRange> skip = {};              // that training passes over
  std::optional<int64_t> resume_from_sample = {};  // where the data goes on, whatever a checkpoint says
  int64_t reader_threads = 4;                      // that read samples ahead
  std::string tokenizer = "byte";
  uint64_t seed = 1234;
  DataOrigin origin = {};
};

}  // namespace octavo
