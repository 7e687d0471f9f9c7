// The parameters of a Llama model: names, shapes, order and initial values.
//
// Parameters carry their Hugging Face names. They lie in one flat order, in units that are sharded, gathered and
// reduced as a whole: all norm weights of the model (a few megabytes, always at hand), the embedding table, the
// matrices of each block, lm_head unless it is tied. What a block has is listed by its halves (block_halves in
// model/architecture/block_spec.h). The parameters of one linear are neighbours, so that the packed products see one [q
// + 2 kv, hidden] and one [2 ffn, hidden] matrix. Every parameter but those inside such a matrix starts at a multiple
// of kParameterAlignment elements; padding is zero and stays zero.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/stream.h"
#include "kernels/math/matrix_stretch.h"
#include "model/architecture/column_range.h"
#include "model/architecture/config.h"
#include "model/architecture/linear_spec.h"

namespace octavo {

inline constexpr int64_t kParameterAlignment = 256;

struct ParameterSpec {
  std::string name;            // "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // [out, in] or [hidden], this rank's part
  int64_t offset = 0;          // first element in the flat order
  double init_std = 0;         // normal(0, init_std); 0: all ones (norm weights)
  size_t unit = 0;
  int64_t linear = -1;  // the FP8 linear it belongs to, counted over the blocks of the stage; -1: none

  // Where the part lies in the whole parameter.
  std::vector<int64_t> whole_shape;
  int64_t row_begin = 0;
  int64_t column_begin = 0;
  // False for a copy of what another rank of the group, or an earlier part, holds as well: that one counts in the
  // gradient norm and is saved.
  bool counts = true;

  int64_t numel() const;
  // The places in the flattened whole parameter of the elements of the flattened part, from `begin` on.
  MatrixStretch stretch(int64_t begin) const;
  // That of element i.
  int64_t whole_index(int64_t i) const { return static_cast<int64_t>(stretch(i).index(0)); }
  // The columns that the part has; none: all of them. Flattened row by row, they hold element i of the part at
  // column_offset() + i.
  ColumnRange columns() const;
  int64_t column_offset() const { return shape.size() < 2 ? 0 : row_begin * shape[1]; }
  bool decayed() const { return shape.size() >= 2; }  // by weight decay
};

struct ParameterUnit {
  std::string name;   // "norms", "embedding", "block 3", "lm_head"
  int64_t begin = 0;  // in the flat order
  int64_t end = 0;    // padding included
  bool is_norms = false;
  int64_t layer = -1;  // of a block
};

// The blocks of a stage of a model, [begin, end). The first stage has the embedding as well, the last one the head.
struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// The layout of all parameters of a stage, which may be the whole model.
class ParameterLayout {
 public:
  static constexpr size_t kNorms = 0;
  static constexpr size_t kEmbedding = 1;  // of a stage that has the table: for the embedding, or for a tied lm_head
  size_t block_unit(int64_t layer) const { return first_block_unit_ + static_cast<size_t>(layer - stage_.begin); }
  // The unit of lm_head: the embedding's when tied. Requires has_head().
  size_t head_unit() const { return specs_[lm_head_].unit; }
  // `stage`: the whole model unless given.
  explicit ParameterLayout(const ModelConfig& config, TensorRank tensor = {}, std::optional<LayerRange> stage = {});

  const ModelConfig& config() const { return config_; }  // of the whole model
  const LayerRange& stage() const { return stage_; }
  bool has_embedding() const { return stage_.begin == 0; }
  bool has_head() const { return stage_.end == config_.num_layers; }

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // Returns the layout of another tensor-parallel rank.
  ParameterLayout of_rank(int64_t rank) const {
    return ParameterLayout(config_, {.rank = rank, .size = tensor_.size}, stage_);
  }
  // Returns the layout of the whole model on one rank.
  ParameterLayout whole() const { return ParameterLayout(config_); }
  const TensorRank& tensor() const { return tensor_; }
  // The first part of that name (kv heads that a rank has several copies of are parts of their own); throws when there
  // is none.
  const ParameterSpec& find(std::string_view name) const;
  const std::vector<ParameterUnit>& units() const { return units_; }
  int64_t total_elements() const { return total_elements_; }  // padding included

 private:
  void begin_unit(std::string name, int64_t layer = -1);
  void end_unit();
  // A part of a matrix [rows, columns].
  struct Part {
    int64_t row_begin, rows, column_begin, columns;
    bool counts;
  };
  Part rows_part(int64_t rows, int64_t columns) const;     // this rank's share of the rows
  Part columns_part(int64_t rows, int64_t columns) const;  // this rank's share of the columns
  void add(ParameterSpec spec);
  void add_matrix(std::string name, std::vector<int64_t> whole_shape, const Part& part, double init_std,
                  int64_t linear = -1);
  void align_next();
  void add_norms(const ModelConfig& config);
  void add_block(const std::vector<LinearSpec>& linears, const ModelConfig& config, int64_t layer);
  void add_linear(const LinearSpec& linear, const ModelConfig& config, int64_t layer, int64_t index);
  void add_kv_heads(const std::string& name, const ModelConfig& config, int64_t linear);

  ModelConfig config_;
  TensorRank tensor_;
  LayerRange stage_;
  size_t first_block_unit_ = 0;
  std::vector<ParameterUnit> units_;
  std::vector<ParameterSpec> specs_;
  std::unordered_map<std::string, size_t> first_of_name_;  // its spec
  size_t lm_head_ = 0;                                     // its spec
  int64_t total_elements_ = 0;
};

// The elements of one parameter within a flat buffer, as a 1- or 2-dimensional tensor.
// `begin` is the place of the buffer's first element in the flat order.
Tensor parameter_view(const Tensor& flat, const ParameterSpec& spec, int64_t begin = 0);

// A parameter somewhere: the weights as gathered, a gradient.
using ParameterView = std::function<Tensor(const ParameterSpec&)>;

// "model.layers.3.self_attn.q_proj.weight"
std::string layer_parameter(int64_t layer, std::string_view name);

// W [out, in] of a linear in block `layer`, or its gradient, of this rank.
Tensor linear_matrix(const ParameterView& view, const ParameterLayout& layout, const LinearSpec& linear, int64_t layer);

// out [n] float32, on the stream's device = the initial values of elements begin to begin + n of a parameter's part.
// Each is a function of (seed, name, index in the whole parameter) alone (kernels/math/random_normal.h), so any mesh
// starts from the same model. Queued on `stream`.
void initialize_parameter(const ParameterSpec& spec, uint64_t seed, int64_t begin, const Tensor& out, Stream& stream);

}  // namespace octavo
