// Sources of a model's weights: a Hugging Face directory or an Octavo checkpoint.
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
#include "model/architecture/column_range.h"
#include "model/architecture/config.h"

namespace octavo {

// The parameters of a model. Opening it checks that all exist and have the right shapes. Used by one thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& model_config() const = 0;
  virtual std::filesystem::path path() const = 0;  // Returns the path that opens the same weights again.
  // Returns a text that distinguishes these weights from others at the same path.
  virtual std::string identity() const = 0;
  // Returns a line about unusual weights that a user should see, with the directory, or an empty text.
  virtual std::string note() const { return {}; }
  // Compares the checksums of the parts that will be read, if there are checksums (Checkpoint::verify).
  virtual void verify(std::span<const TensorPart> /*parts*/) {}
  // Reads elements [begin, end) of the flattened parameter as float32. The name is one of ParameterLayout. Throws an
  // InputError that names the element if one is NaN or infinite, or the piece if it is damaged.
  void read(const std::string& parameter_name, int64_t begin, int64_t end, float* out) {
    read(parameter_name, {}, begin, end, out);
  }
  // Reads elements [begin, end) of some columns of a 2-dimensional parameter, flattened row by row.
  virtual void read(const std::string& parameter_name, ColumnRange columns, int64_t begin, int64_t end, float* out) = 0;
};

// A Hugging Face directory: config.json with model.safetensors, or with model.safetensors.index.json and its shards.
// Throws an InputError that names the file and tensor if a tensor is missing, has another shape, is not a float, does
// not belong to this model, or is in another directory. Buffers of old exports (rotary_emb.inv_freq) and a tied model's
// replica of its embedding are ignored. If the replica has other values, the model is read as untied, as in
// transformers, and note() says so.
class HfWeights : public WeightSource {
 public:
  explicit HfWeights(const std::filesystem::path& dir);

  const ModelConfig& model_config() const override { return config_; }
  std::filesystem::path path() const override { return dir_; }
  std::string identity() const override;
  using WeightSource::read;
  void read(const std::string& parameter_name, ColumnRange columns, int64_t begin, int64_t end, float* out) override;
  std::string note() const override { return note_; }
  const nlohmann::json& json() const { return json_; }  // config.json.

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
  std::list<SafetensorsFile> files_;  // A list, because the addresses of files must not change.
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

// Opens the Hugging Face directory or checkpoint at `path`. Throws an InputError if it is neither.
std::unique_ptr<WeightSource> open_weights(const std::string& path);

}  // namespace octavo
