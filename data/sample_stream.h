// The training samples: exact, elastic and O(1).
//
// Sample g takes a dataset (data/mixture.h), and of that dataset the next window (data/window_order.h). So its tokens
// are a function of g and the data config alone, never of the number of ranks, and any sample is reached at once.
//
// State: g, and how many windows each dataset has given.
//
// A stage of a run begins at a sample and in its datasets where the stages before end (DataConfig::origin): sample g is
// then a function of g and the stage's data config.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/config.h"
#include "data/mixture.h"
#include "data/tokens/token_row.h"
#include "data/window_order.h"

namespace octavo {

// A loader state that was saved with other data, or another order of it.
class OtherData : public InputError {
 public:
  using InputError::InputError;
};

// InputError unless the JSON has the members of a SampleStream::state_json(), whatever data it belongs to.
void check_stream_state(const nlohmann::json& state);

// Where the tokens of a sample lie.
struct Sample {
  int64_t index = 0;  // g
  int64_t dataset = 0;
  Window window;
  bool operator==(const Sample&) const = default;
};

struct StreamState {
  int64_t next_sample = 0;
  std::vector<int64_t> draws;  // windows taken of each dataset
  bool operator==(const StreamState&) const = default;
};

// Movable. read() may be called from several threads at any time, state_json(state) too; the rest by one at a time.
class SampleStream {
 public:
  // Opens `sources` (config.train or config.validation) and reads them as `config` says. Every token read must lie in
  // [0, vocab_size); 0 checks nothing. config.origin is that of config.train. InputError naming the config key or file
  // when the options are impossible (seq_len below 1, negative or all-zero weights, bos_id or eos_id outside the
  // vocabulary), a dataset has no tokens, or what stands beside a file says that they are others (data/sidecar.h; not
  // for a vocab_size of 0).
  SampleStream(const DataConfig& config, const std::vector<DatasetSource>& sources, int64_t vocab_size);

  int64_t seq_len() const { return seq_len_; }
  bool document_mask() const { return config_.document_mask; }
  int64_t num_datasets() const { return static_cast<int64_t>(datasets_.size()); }
  const std::string& name(int64_t dataset) const { return at(dataset).name; }
  // Of one pass over a dataset: its tokens, bos and eos included, and its windows.
  int64_t num_tokens(int64_t dataset) const { return at(dataset).row.num_tokens(); }
  int64_t num_windows(int64_t dataset) const { return at(dataset).order.num_windows(); }
  // Of one pass over every dataset of weight above 0.
  int64_t num_tokens() const;
  // How often `draws` windows go over a dataset.
  double epochs(int64_t dataset, int64_t draws) const;
  // Windows taken of a dataset once the samples before sample `samples` are, to within one.
  int64_t expected_draws(int64_t dataset, int64_t samples) const;

  // Locates sample next_sample() and goes on to the one after it; reads nothing.
  Sample next();
  // Goes on, or back, to sample g (Mixture::seek).
  void seek(int64_t g);
  int64_t next_sample() const { return config_.origin.sample + mixture_.next_sample(); }

  // Reads a sample that next() located. `tokens` is [seq_len + 1]. `document_start`, as long or shorter, receives for
  // each token the position in the sample of the first token of its document, 0 when the document began before the
  // sample. Throws as TokenRow::read.
  void read(const Sample& sample, std::span<int32_t> tokens, std::span<int32_t> document_start) const;

  StreamState state() const;
  // A state as JSON, with what it belongs to: the datasets and their fingerprints (data/tokens/fingerprint.h), as they
  // were when they were opened, the order, seq_len. Independent of ranks and batch size.
  nlohmann::json state_json(const StreamState& state) const;
  // InputError when the JSON is malformed; OtherData when it is of other datasets, weights, seq_len, order or bos/eos.
  // Of a dataset without a fingerprint, as earlier versions saved it, the count of tokens must do.
  void restore(const nlohmann::json& json);

 private:
  struct Dataset {
    std::string name;
    double weight = 1;
    std::string fingerprint;
    TokenRow row;
    WindowOrder order;
    int64_t draws_before = 0;  // by the stages before
  };
  int64_t taken(int64_t dataset) const { return at(dataset).draws_before + mixture_.taken(dataset); }
  const Dataset& at(int64_t dataset) const { return datasets_[static_cast<size_t>(dataset)]; }
  void check_belongs(const nlohmann::json& json) const;
  void check_dataset(size_t dataset, const nlohmann::json& saved, const nlohmann::json& next_sample) const;

  DataConfig config_;  // without the lists of datasets
  int64_t seq_len_;
  std::vector<Dataset> datasets_;
  std::vector<int64_t> weights_;
  Mixture mixture_;
};

}  // namespace octavo
