// The sequence of the training samples.
//
// Sample g takes the next window (data/window_order.h) of a dataset (data/mixture.h). So its tokens depend on g and the
// data config only, not on the number of ranks, and any sample is reached directly.
//
// The state is g and the number of windows taken from each dataset.
//
// A stage of a run begins at a sample, and its datasets continue where earlier stages ended (DataConfig::origin).
// Sample g then depends on g and the data config of its stage.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/config.h"
#include "data/mixture.h"
#include "data/tokens/fingerprint.h"
#include "data/tokens/token_stream.h"
#include "data/window_order.h"

namespace octavo {

// Error for a loader state that was saved with other data or another order.
class OtherData : public InputError {
 public:
  using InputError::InputError;
};

// Throws an InputError unless the JSON has the members of a SampleStream::state_json(), whatever data it belongs to.
void check_stream_state(const nlohmann::json& state);

// Location of the tokens of a sample.
struct Sample {
  int64_t index = 0;  // g.
  int64_t dataset = 0;
  Window window;
  bool operator==(const Sample&) const = default;
};

struct StreamState {
  int64_t next_sample = 0;
  std::vector<int64_t> windows;  // Number of windows taken from each dataset.
  bool operator==(const StreamState&) const = default;
};

// Movable. read() and state_json(state) may be called from several threads at any time, other methods by one thread at
// a time.
class SampleStream {
 public:
  // Opens `sources` (config.train or config.validation) and reads them as `config` says. A token outside [0,
  // vocab_size) is refused when it is read; 0 disables this check. config.origin applies to config.train. Throws an
  // InputError that names the config key or file if an option is impossible (seq_len below 1, negative or all-zero
  // weights, bos_id or eos_id outside the vocabulary), a dataset has no tokens, a sidecar contradicts the config
  // (data/sidecar.h; not checked if vocab_size is 0), or data.document_mask is set and nothing divides the documents of
  // a dataset.
  SampleStream(const DataConfig& config, const std::vector<DatasetSource>& sources, int64_t vocab_size);

  int64_t seq_len() const { return seq_len_; }
  // Returns sentences about token files with several names, about documents that contain a bos or eos already, and
  // about ids that override those of a sidecar.
  const std::vector<std::string>& notes() const { return notes_; }
  bool document_mask() const { return config_.document_mask; }
  int64_t num_datasets() const { return static_cast<int64_t>(datasets_.size()); }
  const std::string& name(int64_t dataset) const { return at(dataset).name; }
  // Return the number of tokens and of windows of one epoch of a dataset, bos and eos included.
  int64_t num_tokens(int64_t dataset) const { return at(dataset).stream.num_tokens(); }
  int64_t num_windows(int64_t dataset) const { return at(dataset).order.num_windows(); }
  // Returns the number of tokens of one epoch of all datasets with a weight above 0.
  int64_t num_tokens() const;
  // Returns the number of epochs after `windows` windows of a dataset were read: their tokens per token of the dataset.
  double epochs(int64_t dataset, int64_t windows) const;
  // Returns the number of windows taken from a dataset by the first `samples` samples, to within one.
  int64_t expected_windows(int64_t dataset, int64_t samples) const;

  // Locates sample next_sample() and advances to the next one. Reads nothing.
  Sample next();
  // Moves forward or back to sample g (Mixture::seek).
  void seek(int64_t g);
  int64_t next_sample() const { return config_.origin.sample + mixture_.next_sample(); }

  // Reads a sample that next() located. `tokens` is [seq_len + 1]. For the first document_start.size()
  // tokens, `document_start` receives the position in the sample of the first token of the token's document, or 0 if
  // the document began before the sample. Throws like TokenStream::read.
  void read(const Sample& sample, std::span<int32_t> tokens, std::span<int32_t> document_start) const;

  // Returns the path of the file in which a sample begins.
  const std::string& path_of(const Sample& sample) const {
    return at(sample.dataset).stream.path_at(sample.window.begin);
  }

  StreamState state() const;
  // Returns a state as JSON, together with the data that it belongs to: the datasets with their fingerprints and
  // modification times at opening (data/tokens/fingerprint.h), the order, and seq_len. Independent of ranks and batch
  // size.
  nlohmann::json state_json(const StreamState& state) const;
  // Throws an InputError if the JSON is malformed, and OtherData if it belongs to other datasets, weights, seq_len,
  // order or bos/eos.
  void restore(const nlohmann::json& json);
  // Returns a sentence for each dataset whose fingerprint equals the one in the JSON, although some of its files were
  // modified later than all files were then. Only datasets whose fingerprint reads samples of the text count.
  std::vector<std::string> modified_since(const nlohmann::json& json) const;

 private:
  struct Dataset {
    std::string name;
    std::string fingerprint;
    std::vector<SampledFile> sampled;  // Files that the fingerprint samples.
    TokenStream stream;
    WindowOrder order;
    int64_t windows_before = 0;  // Windows taken by earlier stages.
  };
  int64_t taken(int64_t dataset) const { return at(dataset).windows_before + mixture_.taken(dataset); }
  const Dataset& at(int64_t dataset) const { return datasets_[static_cast<size_t>(dataset)]; }
  void check_belongs(const nlohmann::json& json) const;
  void check_dataset(size_t dataset, const nlohmann::json& saved, const nlohmann::json& next_sample) const;

  DataConfig config_;  // Data config without its lists of datasets.
  int64_t seq_len_;
  std::vector<Dataset> datasets_;
  std::vector<int64_t> weights_;
  Mixture mixture_;
  std::vector<std::string> notes_;
};

}  // namespace octavo
