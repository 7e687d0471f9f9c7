// Sources of a model's weights: a Hugging Face directory or an Octavo checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_format.h"
#include "checkpoint/safetensors.h"
#include "model/architecture/config.h"
#include "model/architecture/tensor_parallel.h"

namespace octavo {

// The parameters of a model. Opening it checks that all exist and have the right shapes. Used by one thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& model_config() const = 0;
  virtual std::filesystem::path path() const = 0;  // Returns the path that opens the same weights again.
  // Returns a text that distinguishes these weights from others at the same path.
  virtual std::string identity() const = 0;
  // Returns sentences for the user about unusual properties of the model. Each names the directory.
  virtual std::vector<std::string> notes() const { return {}; }
  // Returns the value of kHfMetaKey (checkpoint/hf_format.h) in checkpoints of a run that begins from these weights.
  virtual nlohmann::json hugging_face() const = 0;
  // Compares the checksums of the parts that will be read, if there are checksums (Checkpoint::verify).
  virtual void verify(std::span<const TensorPart> /*parts*/) {}
  // Reads elements [begin, end) of some columns of a 2-dimensional parameter, flattened row by row, or of a whole
  // parameter if there are no columns, as float32. The name is one of ParameterLayout. Throws an InputError that names
  // the element if one is NaN or infinite, or the piece if it is damaged.
  virtual void read(const std::string& parameter_name, ColumnRange columns, int64_t begin, int64_t end, float* out) = 0;
};

// A Hugging Face directory: config.json with model.safetensors, or with model.safetensors.index.json and its shards.
// Throws an InputError that names the file and tensor if a tensor is missing, has another shape, is not a float, does
// not belong to this model, or is in another directory. Names without the prefix "model." are those of a model that was
// saved without its head. Buffers of old exports (rotary_emb.inv_freq) and a tied model's replica of its embedding are
// ignored. A tied model may have only the replica. If the replica has other values, the model is read as untied, as in
// transformers, and notes() says so. notes() also names the keys of config.json that are ignored (ignored_hf_keys).
class HfWeights : public WeightSource {
 public:
  // If `needs_files` is false, a directory that lacks files of weights is accepted, and its weights cannot be read.
  explicit HfWeights(const std::filesystem::path& dir, bool needs_files = true);

  const ModelConfig& model_config() const override { return config_; }
  std::filesystem::path path() const override { return dir_; }
  std::string identity() const override;
  void read(const std::string& parameter_name, ColumnRange columns, int64_t begin, int64_t end, float* out) override;
  std::vector<std::string> notes() const override { return notes_; }
  nlohmann::json hugging_face() const override { return hugging_face_; }

 private:
  // A tensor in a file, under the name that it has there.
  struct Stored {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };
  void open_files();
  void open_sharded();
  void add(const SafetensorsFile& file, const SafetensorsEntry& entry);
  void untie_other_head();
  void check_tensors() const;
  void check_shape(const std::string& name, const std::vector<int64_t>& shape) const;

  std::filesystem::path dir_;
  std::vector<std::string> notes_;
  nlohmann::json hugging_face_;
  ModelConfig config_;
  std::list<SafetensorsFile> files_;       // A list, because the addresses of files must not change.
  std::map<std::string, Stored> tensors_;  // By the names in ParameterLayout.
};

// The master weights of a checkpoint.
class CheckpointWeights : public WeightSource {
 public:
  explicit CheckpointWeights(Checkpoint checkpoint);

  const ModelConfig& model_config() const override { return checkpoint_.model_config(); }
  std::filesystem::path path() const override { return checkpoint_.path(); }
  std::string identity() const override { return checkpoint_.identity(); }
  void verify(std::span<const TensorPart> parts) override { checkpoint_.verify(parts); }
  // Returns what an export of the checkpoint would write.
  nlohmann::json hugging_face() const override;
  void read(const std::string& parameter_name, ColumnRange columns, int64_t begin, int64_t end, float* out) override;
  Checkpoint& checkpoint() { return checkpoint_; }

 private:
  Checkpoint checkpoint_;
};

}  // namespace octavo
