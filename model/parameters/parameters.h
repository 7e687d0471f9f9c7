// The parameters of a Llama model: names, shapes, order and initial values.
//
// Parameters have their Hugging Face names. They are stored in one flat order, in units that are sharded, gathered and
// reduced as a whole: all norm weights of the model (a few megabytes, always gathered), the embedding table, the
// matrices of each block, and lm_head unless it is tied. The sublayers of a block list its parameters (block_sublayers
// in model/architecture/block_spec.h). The parameters of one linear are adjacent, so that matmuls read them as one [q +
// 2 kv, hidden] and one [2 ffn, hidden] matrix. Every parameter except those inside such a matrix starts at a multiple
// of kParameterAlignment elements. Padding is zero and stays zero.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/stream.h"
#include "kernels/math/matrix_range.h"
#include "model/architecture/block_spec.h"
#include "model/architecture/config.h"
#include "model/architecture/tensor_parallel.h"

namespace octavo {

inline constexpr int64_t kParameterAlignment = 256;

struct ParameterSpec {
  std::string name;            // Hugging Face name: "model.layers.3.self_attn.q_proj.weight".
  std::vector<int64_t> shape;  // [out, in] or [hidden], this rank's part.
  int64_t offset = 0;          // Index of the parameter's first element in the flat order.
  // Standard deviation of the normal distribution of initial values. 0: all ones (norm weights).
  double init_std = 0;
  size_t unit = 0;
  // Index of the linear that has the parameter, counted over all linears of the model's blocks. -1: none.
  int64_t linear = -1;

  // Shape of the whole parameter, and the row and column where the part begins.
  std::vector<int64_t> whole_shape;
  int64_t row_begin = 0;
  int64_t column_begin = 0;
  // Rows of zeros after the part of a table, up to local_config().vocab_size rows. They are padding of the flat order,
  // so initialization, optimizers and checkpoints skip them. Only matmuls read and write them.
  int64_t padding_rows = 0;
  // False for a replica, whose elements another rank of the group or an earlier part of this rank also holds. A replica
  // does not count in the gradient norm and is not saved.
  bool counts = true;

  int64_t numel() const { return numel_of(shape); }
  // Maps the elements of this part, flattened and counted from element `begin`, to their indices in the flattened whole
  // parameter.
  MatrixRange range(int64_t begin) const;
  // Returns the index in the flattened whole parameter of element i of this part.
  int64_t whole_index(int64_t i) const { return static_cast<int64_t>(range(i).index(0)); }
  // Returns the range of columns of the whole parameter that the part has. Returns (0, 0) if the part has all columns.
  // Element i of the part is element column_offset() + i of these columns, flattened row by row.
  ColumnRange columns() const;
  int64_t column_offset() const { return shape.size() < 2 ? 0 : row_begin * shape[1]; }
  bool decayed() const { return shape.size() >= 2; }  // Returns whether weight decay applies.
};

struct ParameterUnit {
  // Name in messages: "norms", "embedding", "block 3" or "lm_head".
  std::string name;
  int64_t begin = 0;  // Index of the unit's first element in the flat order.
  // Index after the unit's last element in the flat order, padding included.
  int64_t end = 0;
  bool is_norms = false;
  int64_t layer = -1;  // Layer of the block, or -1 if the unit is not a block.
};

// Blocks [begin, end) of a model.
struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Blocks of a stage of a model: a range for each of its chunks, in rising order. The stage with the first block of the
// model also has the embedding, and the stage with the last block the head.
using StageLayers = std::vector<LayerRange>;

// Layout of all parameters of a stage, which may be the whole model.
class ParameterLayout {
 public:
  static constexpr size_t kNorms = 0;
  // Unit of the table of the embedding or of a tied lm_head, on stages that have it.
  static constexpr size_t kEmbedding = 1;
  // Returns the unit of a block of the stage.
  size_t block_unit(int64_t layer) const;
  // Returns the unit of lm_head, which is the embedding's if tied.
  // Requires: has_head().
  size_t head_unit() const { return specs_[lm_head_].unit; }
  // Without `stage`, the layout is that of the whole model.
  explicit ParameterLayout(const ModelConfig& config, TensorRank tensor = {}, StageLayers stage = {});

  const ModelConfig& config() const { return config_; }  // Returns the config of the whole model.
  const StageLayers& stage() const { return stage_; }
  // Returns the numbers of the stage's blocks in the model, in rising order.
  const std::vector<int64_t>& layers() const { return layers_; }
  bool has_embedding() const { return layers_.front() == 0; }
  bool has_head() const { return layers_.back() + 1 == config_.num_layers; }

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // Returns the layout of another tensor-parallel rank.
  ParameterLayout of_rank(int64_t rank) const {
    return ParameterLayout(config_, {.rank = rank, .size = tensor_.size}, stage_);
  }
  // Returns the layout of the whole model on one rank.
  ParameterLayout whole() const { return ParameterLayout(config_); }
  const TensorRank& tensor() const { return tensor_; }
  // Returns the first part with that name. If a rank has several replicas of kv heads, each is a part. Throws if there
  // is none.
  const ParameterSpec& find(std::string_view name) const;
  const std::vector<ParameterUnit>& units() const { return units_; }

 private:
  void begin_unit(std::string name, int64_t layer = -1);
  void end_unit();
  // Returns this rank's share of the rows, or of the columns, of a matrix.
  ParameterSpec share_of(Divided divided, std::string name, int64_t rows, int64_t columns) const;
  void add_table(const char* unit, const char* name, bool counts);
  void add(ParameterSpec spec);
  void align_next();
  void add_norms(const ModelConfig& config);
  void add_block(const std::vector<LinearSpec>& linears, const ModelConfig& config, int64_t layer);
  void add_linear(const LinearSpec& linear, const ModelConfig& config, int64_t layer, int64_t index);
  void add_kv_heads(const std::string& name, const ModelConfig& config, int64_t linear);

  ModelConfig config_;
  TensorRank tensor_;
  StageLayers stage_;
  std::vector<int64_t> layers_;
  size_t first_block_unit_ = 0;
  std::vector<ParameterUnit> units_;
  std::vector<ParameterSpec> specs_;
  std::unordered_map<std::string, size_t> first_of_name_;  // Index in specs_ of the first part with each name.
  size_t lm_head_ = 0;                                     // Index of lm_head's weight in specs_.
  int64_t total_elements_ = 0;
};

// Returns the elements of one parameter in a flat buffer, padding rows included, as a 1- or 2-dimensional tensor.
// `begin` is the index in the flat order of the buffer's first element.
Tensor parameter_view(const Tensor& flat, const ParameterSpec& spec, int64_t begin = 0);

// Function that returns a tensor of a parameter, such as its gathered weights or its gradient.
using ParameterView = std::function<Tensor(const ParameterSpec&)>;

// Returns a name such as "model.layers.3.self_attn.q_proj.weight".
std::string layer_parameter(int64_t layer, std::string_view name);

// Returns this rank's W [out, in] of a linear of block `layer`, or its gradient.
Tensor linear_matrix(const ParameterView& view, const ParameterLayout& layout, const LinearSpec& linear, int64_t layer);

// Sets out [n] float32, on the stream's device, = the initial values of elements [begin, begin + n) of a parameter's
// part. Each value is a function of (seed, name, index in the whole parameter) alone (kernels/math/random_normal.h), so
// any mesh starts from the same model. Queued on `stream`.
void initialize_parameter(const ParameterSpec& spec, uint64_t seed, int64_t begin, const Tensor& out, Stream& stream);

}  // namespace octavo
