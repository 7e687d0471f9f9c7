// The `data:` section of the config: what is read, in what order, and how it is cut into samples. app/ fills it from
// YAML; SampleStream, Loader and ValidationSet check the values they use and name the key of a wrong one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo {

struct DatasetSource {
  // Token file: PREFIX, PREFIX.bin or PREFIX.idx of a Megatron indexed dataset, or an llm.c .bin shard.
  std::string path = {};
  // Share of the tokens that comes from this dataset, relative to the other weights (they need not sum to 1).
  // 0: never read.
  double weight = 1.0;
};

enum class Shuffle {
  kLcg,   // documents in the order of the LCG permutation, a new one every epoch
  kNone,  // documents in file order, over and over, in a single lane
};

struct DataConfig {
  std::vector<DatasetSource> train = {};
  std::vector<DatasetSource> validation = {};
  // A sample is one token longer: inputs are its first seq_len, targets its last.
  int64_t seq_len = 8192;
  Shuffle shuffle = Shuffle::kLcg;
  std::optional<int32_t> bos_id = {};
  std::optional<int32_t> eos_id = {};
  // A token attends within its own document only, and no target is the first token of another.
  bool document_mask = false;
  // Sample g comes from lane g mod lanes. 1 when shuffle is none.
  int64_t lanes = 1024;
  std::string tokenizer = "byte";
  uint64_t seed = 1234;
};

}  // namespace octavo
