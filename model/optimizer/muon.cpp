#include "model/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "kernels/math/reduce.h"
#include "kernels/matmul/matmul.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/newton_schulz.h"
#include "model/optimizer/optimizer.h"
#include "model/optimizer/whole_matrices.h"

namespace octavo {

namespace {

Tensor as_matrix(const Tensor& flat, int64_t rows, int64_t columns) {
  return flat.rows(0, rows * columns).view({rows, columns});
}

// Returns the factor that scales an orthogonal matrix of this shape to the RMS kMuonRms.
double update_scale(const std::vector<int64_t>& shape) {
  return kMuonRms * std::sqrt(static_cast<double>(std::max(shape[0], shape[1])));
}

class MuonOptimizer : public ParameterUpdate {
 public:
  explicit MuonOptimizer(const UpdateOptions& options);

  void step(const UpdateStep& step, Stream& stream) override;
  void warm_up(Stream& stream) override;

 private:
  void gather(const MatrixRound& round, const UpdateStep& step, Stream& stream);
  void scatter(const MatrixRound& round, Stream& stream);
  void orthogonalize(const WholeMatrix& matrix, const Tensor& block, Stream& stream);
  void iterate(const WholeMatrix& matrix, Stream& stream);
  void update_weights(size_t unit, const Tensor& block, const UpdateStep& step, Stream& stream);

  int64_t shard_elements(size_t unit) const {
    return parameters_->unit_begin(unit + 1) - parameters_->unit_begin(unit);
  }
  int64_t whole_elements(size_t unit) const { return shard_ranks_ * shard_elements(unit); }  // per tensor rank
  // Return parts of the buffer of a full block: the elements of one tensor rank, this rank's shard of its elements, and
  // a part of a matrix.
  Tensor of_tensor_rank(const Tensor& block, size_t unit, int64_t rank) const;
  Tensor own_shard(const Tensor& block, size_t unit) const;
  Tensor part_of(const Tensor& block, const WholeMatrix& matrix, const MatrixPart& part) const;

  OptimizerConfig config_;
  ShardedParameters* parameters_;
  AmaxTable* amaxes_;
  Tensor momentum_;   // [elements of the blocks' shards]
  const Mesh* mesh_;  // null for one rank
  int64_t shard_ranks_ = 1;
  int64_t shard_rank_ = 0;
  int64_t tensor_ranks_ = 1;
  int64_t tensor_rank_ = 0;
  std::vector<MatrixRound> rounds_;
  std::vector<std::vector<const ParameterSlice*>> slices_;  // indexed by unit
  std::vector<Tensor> blocks_;  // buffers of the full blocks of a round, in precision.compute
  Tensor x_, next_x_;           // memory for the largest matrix
  Tensor gram_, square_;        // memory for the largest A and A^2
  Tensor sum_of_squares_;
};

MuonOptimizer::MuonOptimizer(const UpdateOptions& options)
    : config_(options.config),
      parameters_(&options.parameters),
      amaxes_(options.amaxes),
      momentum_(options.states[0].shards),
      mesh_(parameters_->mesh()),
      shard_ranks_(mesh_ != nullptr ? mesh_->shard().size() : 1),
      shard_rank_(mesh_ != nullptr ? mesh_->shard().rank() : 0),
      tensor_ranks_(mesh_ != nullptr ? mesh_->tensor().size() : 1),
      tensor_rank_(mesh_ != nullptr ? mesh_->tensor().rank() : 0),
      rounds_(matrix_rounds(parameters_->layout(), shard_ranks_ * tensor_ranks_)),
      slices_(parameters_->layout().units().size()),
      sum_of_squares_(options.arena.allocate("muon norm", DType::kFloat32, {1}, Lifetime::kBlock)) {
  for (const ParameterSlice& slice : parameters_->slices()) slices_[slice.spec->unit].push_back(&slice);
  const DType compute = parameters_->compute_dtype();
  int64_t most_elements = 0, largest = 0, most_rows = 0;
  for (const MatrixRound& round : rounds_) {
    for (const WholeMatrix& matrix : round.matrices) {
      most_elements = std::max(most_elements, whole_elements(matrix.unit) * tensor_ranks_);
      largest = std::max(largest, matrix.numel());
      most_rows = std::max(most_rows, matrix.smaller());
    }
  }
  const auto scratch = [&](const char* name, DType dtype, int64_t elements) {
    return options.arena.allocate(name, dtype, {elements}, Lifetime::kBlock);
  };
  const int64_t blocks = blocks_of_a_round(parameters_->layout(), shard_ranks_ * tensor_ranks_);
  for (int64_t i = 0; i < blocks; ++i) blocks_.push_back(scratch("muon updates of blocks", compute, most_elements));
  x_ = scratch("muon matrices", compute, largest);
  next_x_ = scratch("muon matrices", compute, largest);
  gram_ = scratch("muon matrices", compute, most_rows * most_rows);
  square_ = scratch("muon matrices", DType::kFloat32, most_rows * most_rows);
}

Tensor MuonOptimizer::of_tensor_rank(const Tensor& block, size_t unit, int64_t rank) const {
  const int64_t elements = whole_elements(unit);
  return block.rows(rank * elements, (rank + 1) * elements);
}

Tensor MuonOptimizer::own_shard(const Tensor& block, size_t unit) const {
  const int64_t elements = shard_elements(unit);
  const int64_t rank = shard_rank_;
  return of_tensor_rank(block, unit, tensor_rank_).rows(rank * elements, (rank + 1) * elements);
}

Tensor MuonOptimizer::part_of(const Tensor& block, const WholeMatrix& matrix, const MatrixPart& part) const {
  const Tensor of_rank = of_tensor_rank(block, matrix.unit, part.tensor_rank);
  return of_rank.rows(part.offset, part.offset + part.numel());
}

void MuonOptimizer::step(const UpdateStep& step, Stream& stream) {
  const int64_t self = shard_rank_ * tensor_ranks_ + tensor_rank_;
  for (const MatrixRound& round : rounds_) {
    gather(round, step, stream);
    for (const WholeMatrix& matrix : round.matrices) {
      const Tensor& block = blocks_[matrix.unit - round.first_unit];
      if (matrix.owner == self) {
        orthogonalize(matrix, block, stream);
        continue;
      }
      for (const MatrixPart& part : matrix.parts) stream.zero(part_of(block, matrix, part));
    }
    scatter(round, stream);
    for (size_t i = 0; i < round.num_units; ++i) update_weights(round.first_unit + i, blocks_[i], step, stream);
  }
}

// Steps 1 and 2 of a round. Padding has zero gradients and momentum, so it is zero in u.
void MuonOptimizer::gather(const MatrixRound& round, const UpdateStep& step, Stream& stream) {
  const int64_t begin = parameters_->unit_begin(rounds_.front().first_unit);
  for (size_t i = 0; i < round.num_units; ++i) {
    const size_t unit = round.first_unit + i;
    const Tensor own = own_shard(blocks_[i], unit);
    const int64_t offset = parameters_->unit_begin(unit) - begin;
    muon_momentum({.momentum = momentum_.rows(offset, offset + own.numel()),
                   .update = own,
                   .grad = parameters_->unit_shard(parameters_->gradients(), unit),
                   .grad_sum_of_squares = step.grad_sum_of_squares,
                   .skip = step.skip,
                   .decay = static_cast<float>(config_.momentum),
                   .grad_clip = static_cast<float>(config_.grad_clip)},
                  stream);
    const Tensor of_rank = of_tensor_rank(blocks_[i], unit, tensor_rank_);
    const Tensor all = blocks_[i].rows(0, tensor_ranks_ * whole_elements(unit));
    if (shard_ranks_ > 1) mesh_->shard().all_gather(of_rank, own, stream, "updates of a block");
    if (tensor_ranks_ > 1) mesh_->tensor().all_gather(all, of_rank, stream, "updates of a block");
  }
}

// Step 4 of a round.
void MuonOptimizer::scatter(const MatrixRound& round, Stream& stream) {
  for (size_t i = 0; i < round.num_units; ++i) {
    const size_t unit = round.first_unit + i;
    const Tensor of_rank = of_tensor_rank(blocks_[i], unit, tensor_rank_);
    const Tensor all = blocks_[i].rows(0, tensor_ranks_ * whole_elements(unit));
    const Tensor own = own_shard(blocks_[i], unit);
    if (tensor_ranks_ > 1) mesh_->tensor().reduce_scatter_sum(of_rank, all, stream, "updates of a block");
    if (shard_ranks_ > 1) mesh_->shard().reduce_scatter_sum(own, of_rank, stream, "updates of a block");
  }
}

// Copies a matrix out of the block, iterates on it, and copies the result to all its parts in the block, including
// equal parts of several ranks.
void MuonOptimizer::orthogonalize(const WholeMatrix& matrix, const Tensor& block, Stream& stream) {
  const int64_t columns = matrix.columns;
  const auto place = [&](const MatrixPart& part) {
    return x_.rows(part.row_begin * columns + part.column_begin, matrix.numel());
  };
  stream.zero(sum_of_squares_);
  for (const MatrixPart& part : matrix.parts) {
    if (part.counts) sum_of_squares({.out = sum_of_squares_, .x = part_of(block, matrix, part)}, stream);
  }
  for (const MatrixPart& part : matrix.parts) {
    if (!part.counts) continue;
    muon_rows({.out = place(part),
               .x = part_of(block, matrix, part),
               .rows = part.rows,
               .columns = part.columns,
               .out_stride = columns,
               .x_stride = part.columns,
               .sum_of_squares = sum_of_squares_},
              stream);
  }
  iterate(matrix, stream);
  for (const MatrixPart& part : matrix.parts) {
    muon_rows({.out = part_of(block, matrix, part),
               .x = place(part),
               .rows = part.rows,
               .columns = part.columns,
               .out_stride = part.columns,
               .x_stride = columns},
              stream);
  }
}

// Iterates on the matrix in x_. x_ and next_x_ are swapped after each step.
void MuonOptimizer::iterate(const WholeMatrix& matrix, Stream& stream) {
  const int64_t n = matrix.smaller();
  const bool wide = matrix.rows <= matrix.columns;
  const Tensor gram = as_matrix(gram_, n, n);
  const Tensor square = as_matrix(square_, n, n);
  for (int i = 0; i < kNewtonSchulzSteps; ++i) {
    const Tensor x = as_matrix(x_, matrix.rows, matrix.columns);
    const Tensor next = as_matrix(next_x_, matrix.rows, matrix.columns);
    const auto multiply = [&](Matmul args) {
      args.reproducible = mesh_ != nullptr;
      args.name = "newton_schulz";
      matmul(args, stream);
    };
    multiply({.d = gram, .a = x, .b = x, .transpose_a = !wide, .transpose_b = wide});
    multiply({.d = square, .a = gram, .b = gram});
    muon_polynomial({.gram = gram, .square = square}, stream);
    multiply({.d = next, .a = wide ? gram : x, .b = wide ? x : gram});
    std::swap(x_, next_x_);
  }
}

void MuonOptimizer::update_weights(size_t unit, const Tensor& block, const UpdateStep& step, Stream& stream) {
  const Tensor own = own_shard(block, unit);
  for (const ParameterSlice* slice : slices_[unit]) {
    const ParameterSpec& spec = *slice->spec;
    const int64_t offset = slice->offset - parameters_->unit_begin(unit);
    muon_update({.master = parameters_->master(*slice),
                 .update = own.rows(offset, offset + slice->end - slice->begin),
                 .weight = parameters_->travels_in_fp8(unit) ? Tensor() : parameters_->weight(*slice),
                 .amax = amaxes_ != nullptr ? amaxes_->current(spec.linear, AmaxTable::kWeight) : Tensor(),
                 .skip = step.skip,
                 .lr = static_cast<float>(step.lr),
                 .weight_decay = static_cast<float>(config_.weight_decay),
                 .scale = static_cast<float>(update_scale(spec.whole_shape))},
                stream);
  }
}

void MuonOptimizer::warm_up(Stream& stream) {
  const int64_t self = shard_rank_ * tensor_ranks_ + tensor_rank_;
  std::set<std::pair<int64_t, int64_t>> shapes;
  for (const MatrixRound& round : rounds_) {
    for (const WholeMatrix& matrix : round.matrices) {
      if (matrix.owner != self || !shapes.emplace(matrix.rows, matrix.columns).second) continue;
      iterate(matrix, stream);
    }
  }
}

}  // namespace

std::unique_ptr<ParameterUpdate> make_muon_update(const UpdateOptions& options) {
  return std::make_unique<MuonOptimizer>(options);
}

int64_t muon_workspace_bytes(const ParameterLayout& layout, DType compute, const Stream& stream) {
  int64_t bytes = 0;
  for (const ParameterSpec& spec : layout.specs()) {
    if (!has_matrices(layout.units()[spec.unit])) continue;
    const int64_t n = std::min(spec.whole_shape[0], spec.whole_shape[1]);
    const int64_t m = std::max(spec.whole_shape[0], spec.whole_shape[1]);
    bytes = std::max(
        {bytes, matmul_workspace_bytes(n, n, m, compute, stream), matmul_workspace_bytes(n, m, n, compute, stream)});
  }
  return bytes;
}

}  // namespace octavo
