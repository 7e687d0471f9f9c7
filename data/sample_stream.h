// The training samples: exact, elastic and O(1).
//
// A sample is seq_len + 1 consecutive tokens of a lane; the next sample of that lane begins after it. Global sample g
// comes from lane g mod lanes, so its tokens depend on g and the data config alone, never on the number of ranks.
//
// Order of the documents of one dataset of N documents: think of all epochs' permutations one after the other, so that
// position q is document permutation(epoch q div N)[q mod N]. Lane j reads the positions j, j + lanes, j + 2 lanes, ...
// Hence every document is read exactly once an epoch, also when there are fewer documents than lanes. With shuffle none
// there is one lane and the permutation is the identity. bos_id and eos_id, where set, stand around every document and
// count as its tokens. A document without tokens contributes nothing.
//
// Several datasets: a lane at a document boundary takes the dataset that is furthest behind its weight, that is the
// largest weight_d / (sum of weights) * (tokens consumed by the lane) - (tokens of d consumed by the lane), the first
// one of equals. The comparison is made in integers, so every machine and compiler takes the same one.
//
// State: for each lane and dataset the position, the offset in the document at that position, and the tokens of
// finished documents, which the mixing needs and which cannot be had from the position without walking every length
// before it. At most one dataset of a lane has an offset above 0: the one being read.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <vector>

#include "data/config.h"
#include "data/permutation.h"
#include "data/token_file.h"

namespace octavo {

struct StreamOptions {
  int64_t seq_len = 8192;
  Shuffle shuffle = Shuffle::kLcg;
  int64_t lanes = 1024;  // taken as 1 when shuffle is kNone
  uint64_t seed = 1234;
  std::optional<int32_t> bos_id = {}, eos_id = {};
  // One per dataset, relative to one another; all 1 when empty.
  std::vector<double> weights = {};
  // Every emitted token must lie in [0, vocab_size); 0 checks nothing.
  int64_t vocab_size = 0;
};

// Where the tokens of a sample come from.
struct Sample {
  int64_t index = 0;    // global sample g
  int64_t lane = 0;     // g mod lanes
  int64_t dataset = 0;  // of the sample's first token
  int64_t epoch = 0;    // of the sample's first token: position div N of its document
};

// All that changes while a stream is read. Plain integers, cheap to copy once a step.
struct StreamState {
  struct Cursor {
    int64_t position = 0;  // in the sequence of all epochs' documents
    int64_t offset = 0;    // tokens of that document already emitted, bos included
    int64_t consumed = 0;  // tokens of the documents finished before it
    bool operator==(const Cursor&) const = default;
  };
  int64_t next_sample = 0;
  std::vector<Cursor> cursors;  // [lanes, datasets]
  bool operator==(const StreamState&) const = default;
};

// Movable; used by one thread at a time, except for state_json, which may be called at any time.
class SampleStream {
 public:
  // Takes over the files. InputError naming the config key or file when the options are impossible (seq_len or lanes
  // below 1, negative or all-zero weights, bos_id or eos_id outside the vocabulary) or a dataset has no tokens.
  SampleStream(StreamOptions options, std::vector<TokenFile> files);
  // Opens `sources` (config.train or config.validation) and reads them as `config` says. With vocab_size above 0 the
  // files are checked against it here (TokenFile::check_vocabulary) and each token again when it is emitted.
  SampleStream(const DataConfig& config, const std::vector<DatasetSource>& sources, int64_t vocab_size);

  int64_t seq_len() const { return options_.seq_len; }
  int64_t num_lanes() const { return options_.lanes; }
  // Tokens of one pass over every dataset of weight above 0, bos and eos included.
  int64_t num_tokens() const;
  const TokenFile& file(int64_t dataset) const { return datasets_[static_cast<size_t>(dataset)].file; }
  int64_t num_datasets() const { return static_cast<int64_t>(datasets_.size()); }
  // Tokens of one pass over a dataset, bos and eos included.
  int64_t num_tokens(int64_t dataset) const { return datasets_[static_cast<size_t>(dataset)].epoch_tokens; }
  // Global index of the sample that next() gives.
  int64_t next_sample() const { return state_.next_sample; }

  // Reads the next global sample. `tokens` is [seq_len + 1]. `document_start`, as long or empty when not wanted,
  // receives for each token the position in the sample of the first token of its document, 0 when the document began in
  // an earlier sample. `info` may be null. Error naming file, document and position when a token lies outside the
  // vocabulary.
  void next(std::span<int32_t> tokens, std::span<int32_t> document_start, Sample* info);

  // Passes over `count` samples; the same state as reading them, but only lengths are looked at: a few nanoseconds a
  // document. A single lane of a single dataset passes over whole epochs at once.
  void skip(int64_t count);

  const StreamState& state() const { return state_; }
  // `state` must come from this stream (or one of the same datasets and options).
  void set_state(const StreamState& state) { state_ = state; }
  // The state as JSON, with what it belongs to: datasets, lanes, seed. Independent of ranks and batch size.
  nlohmann::json state_json() const;
  nlohmann::json state_json(const StreamState& state) const;
  // InputError when the JSON is malformed or of other lanes, datasets, document counts, order or bos/eos.
  void restore(const nlohmann::json& json);

 private:
  struct Dataset {
    TokenFile file;
    uint64_t weight = 1;       // integer share, of total_weight_
    int64_t epoch_tokens = 0;  // bos and eos included
    // Permutations in use, by epoch modulo the size: lanes are at most a few epochs apart unless documents are few.
    struct Cached {
      int64_t epoch;
      Permutation permutation;
    };
    std::vector<std::optional<Cached>> cache;
  };
  // The document that a lane is in, or at the beginning of.
  struct Reading {
    int64_t dataset, document, epoch;
    int64_t length;  // bos and eos included
    StreamState::Cursor* cursor;
  };

  void set_weights();
  Reading current(int64_t lane);
  int64_t choose_dataset(const StreamState::Cursor* cursors) const;
  int64_t document_at(int64_t dataset, int64_t epoch, int64_t index);
  void advance(const Reading& reading, int64_t count) const;
  void copy_tokens(const Reading& reading, std::span<int32_t> out) const;
  void check_tokens(const Reading& reading, std::span<const int32_t> ids) const;
  void skip_tokens(int64_t lane, int64_t count);
  int64_t skip_epochs(const Reading& reading, int64_t count) const;
  StreamState parse_state(const nlohmann::json& json) const;
  void check_cursors(const StreamState& state);

  StreamOptions options_;
  int64_t extra_tokens_ = 0;  // bos and eos of a document
  std::vector<Dataset> datasets_;
  std::vector<int64_t> active_;  // datasets of weight above 0
  uint64_t total_weight_ = 0;
  StreamState state_;
};

}  // namespace octavo
