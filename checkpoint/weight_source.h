// Where the weights of a model come from: a Hugging Face directory or an Octavo checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_format.h"
#include "checkpoint/safetensors.h"
#include "model/column_range.h"
#include "model/config.h"

namespace octavo {

// The parameters of a model, all there and of the right shapes (checked on opening). Used by one thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& model_config() const = 0;
  virtual std::filesystem::path path() const = 0;  // that opens the same again
  // What a message tells these weights from others of the same path by.
  virtual std::string identity() const = 0;
  // What is unusual about the weights and a user should be told: a line naming the directory, or nothing.
  virtual std::string note() const { return {}; }
  // Compares the checksums of what is about to be read, where there are any (Checkpoint::verify).
  virtual void verify(std::span<const TensorPart> /*parts*/) {}
  // Elements [begin, end) of the flattened parameter, as float32. A name of ParameterLayout. InputError naming the
  // element where one is NaN or infinite, or the piece where it is damaged.
  void read(const std::string& parameter_name, int64_t begin, int64_t end, float* out) {
    read(parameter_name, {}, begin, end, out);
  }
  // The same of some columns of a 2-dimensional parameter, flattened row by row: elements [begin, end) of `columns`.
  virtual void read(const std::string& parameter_name, ColumnRange columns, int64_t begin, int64_t end, float* out) = 0;
};

// A Hugging Face directory: config.json with model.safetensors, or with model.safetensors.index.json and its shards.
// InputError naming the file and tensor when one is missing, misshapen, no float or not of this model, or elsewhere
// than in this directory. Buffers of old exports (rotary_emb.inv_freq) and a tied model's copy of its embedding are
// ignored; where that is no copy but other values, the model is not tied, as transformers has it, and note() says so.
class HfWeights : public WeightSource {
 public:
  explicit HfWeights(const std::filesystem::path& dir);

  const ModelConfig& model_config() const override { return config_; }
  std::filesystem::path path() const override { return dir_; }
  std::string identity() const override;
  using WeightSource::read;
  void read(const std::string& parameter_name, ColumnRange columns, int64_t begin, int64_t end, float* out) override;
  std::string note() const override { return note_; }
  const nlohmann::json& json() const { return json_; }  // config.json

 private:
  void open_files();
  void open_sharded();
  void untie_other_head();
  void check_tensors() const;
  void check_shape(const std::string& name, const std::vector<int64_t>& shape) const;

  std::filesystem::path dir_;
  std::string note_;
  nlohmann::json json_;
  ModelConfig config_;
  std::list<SafetensorsFile> files_;  // at addresses that stay
  std::map<std::string, const SafetensorsFile*> tensors_;
};

// The master weights of a checkpoint.
class CheckpointWeights : public WeightSource {
 public:
  explicit CheckpointWeights(Checkpoint checkpoint);

  const ModelConfig& model_config() const override { return checkpoint_.model_config(); }
  std::filesystem::path path() const override { return checkpoint_.path(); }
  std::string identity() const override { return checkpoint_.identity(); }
  void verify(std::span<const TensorPart> parts) override { checkpoint_.verify(parts); }
  using WeightSource::read;
  void read(const std::string& parameter_name, ColumnRange columns, int64_t begin, int64_t end, float* out) override;
  Checkpoint& checkpoint() { return checkpoint_; }

 private:
  Checkpoint checkpoint_;
};

// Opens whichever of the two is at `path`; InputError when it is neither.
std::unique_ptr<WeightSource> open_weights(const std::string& path);

}  // namespace octavo
