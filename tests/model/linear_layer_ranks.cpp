// A linear layer that is divided among ranks gives the bits of the same layer on one rank.
//
// The data are integers whose sums are exact in float32 in every order. With the right scales they are exact in FP8
// too. Elements that share a scale include an extreme, which is 7 times a power of two, like the largest values of both
// formats. If ranks share a scale, only one of them has the extreme. All other elements are +-1, 2 or 3. A scale that
// was computed without the extreme, such as 448 / 3, rounds them, so a scale of only a part changes the results.
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "model/linear/linear_layer.h"
#include "model/linear/quantize_part.h"
#include "tests/kernels/op_fixture.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::linear_layer_ranks {
namespace {

struct Recipe {
  const char* name;
  LinearPrecision precision;
  bool history = false;  // With delayed scaling, the amax history is not empty.
};
// Way in which a layer is used.
struct Use {
  Producer producer = Producer::kAttention;  // Producer of x and of d_y.
  bool accumulate = false;                   // Whether the weight gradient is added to ones.
  bool splits = false;                       // Whether backward_weights() computes the weight gradient.
};
constexpr float kBoundFactor = 4;
constexpr double kPastAmax = 112;  // Amax in the history, twice the largest extreme.

// On 4 ranks, the share of a rank is less than a block of 128 tokens.
constexpr int64_t kTokens = 384;
constexpr int64_t kWholeWidth = 256;
constexpr int64_t kPartWidth = 128;  // Width per rank of the dimension that is divided.

// A matrix [rows, columns] whose rows or columns are divided among ranks. Each rank has `part` consecutive ones.
struct DividedMatrix {
  int64_t rows = 0;
  int64_t columns = 0;
  bool by_rows = false;
  int64_t part = 0;
  int64_t ranks = 1;

  int64_t owner(int64_t row, int64_t column) const { return (by_rows ? row : column) / part; }
  int64_t part_rows() const { return by_rows ? rows / ranks : rows; }
  int64_t part_columns() const { return by_rows ? columns : columns / ranks; }
};

// Returns the value of an element that is an extreme, otherwise 0.
int64_t extreme(const DividedMatrix& matrix, LinearPrecision recipe, int64_t row, int64_t column) {
  const int64_t across = matrix.by_rows ? row : column;  // Index along the dimension that the ranks divide.
  const int64_t along = matrix.by_rows ? column : row;
  const bool is_by_row = recipe == LinearPrecision::kFp8Rowwise;
  const bool is_local = recipe == LinearPrecision::kFp8Blockwise;
  // Rowwise scaling has a scale per row and per column, so each of them needs an extreme.
  const int64_t owner = is_by_row ? along % matrix.ranks : matrix.ranks - 1;
  if (!is_local && matrix.owner(row, column) != owner) return 0;
  return across % 8 == along / matrix.ranks % 8 ? int64_t{7} << (1 + along % 3) : 0;
}

Array whole_values(const DividedMatrix& matrix, LinearPrecision recipe, unsigned seed) {
  std::mt19937 generator(seed);
  Array whole(DType::kFloat32, {matrix.rows, matrix.columns});
  for (int64_t i = 0; i < whole.size(); ++i) {
    const int64_t largest = extreme(matrix, recipe, i / matrix.columns, i % matrix.columns);
    const int64_t magnitude = largest > 0 ? largest : 1 + static_cast<int64_t>(generator() % 3);
    whole.set(i, static_cast<double>(generator() % 2 == 0 ? magnitude : -magnitude));
  }
  return whole;
}

Array part_of(const Array& whole, const DividedMatrix& matrix, int64_t rank) {
  Array part(DType::kFloat32, {matrix.part_rows(), matrix.part_columns()});
  int64_t next = 0;
  for (int64_t i = 0; i < whole.size(); ++i) {
    if (matrix.owner(i / matrix.columns, i % matrix.columns) == rank) part.set(next++, whole.at(i));
  }
  return part;
}

// The way in which one layer is divided among ranks.
struct Division {
  Divided divided = Divided::kOutputs;
  int64_t ranks = 1;

  bool outputs() const { return divided == Divided::kOutputs; }
  int64_t in() const { return outputs() ? kWholeWidth : kPartWidth * ranks; }
  int64_t out() const { return outputs() ? kPartWidth * ranks : kWholeWidth; }
  DividedMatrix x() const { return activation(in(), outputs()); }
  DividedMatrix y() const { return activation(out(), !outputs()); }
  DividedMatrix weight() const { return {out(), in(), outputs(), kPartWidth, ranks}; }

 private:
  DividedMatrix activation(int64_t width, bool by_tokens) const {
    return {kTokens, width, by_tokens, by_tokens ? kTokens / ranks : kPartWidth, ranks};
  }
};

// Operands of a layer, either whole or those of one rank.
struct LayerData {
  Array x, weight, d_y;
};

LayerData whole_data(const Division& division, LinearPrecision recipe) {
  return {.x = whole_values(division.x(), recipe, 1),
          .weight = whole_values(division.weight(), recipe, 2),
          .d_y = whole_values(division.y(), recipe, 3)};
}

LayerData part_of(const LayerData& whole, const Division& division, int64_t rank) {
  return {.x = part_of(whole.x, division.x(), rank),
          .weight = part_of(whole.weight, division.weight(), rank),
          .d_y = part_of(whole.d_y, division.y(), rank)};
}

class TestedLayer {
 public:
  // If `ranks` is null, the layer is not divided. `weight_amax` is the amax of the whole weight.
  TestedLayer(const Recipe& recipe, const Division& division, const Use& use, Communicator* ranks,
              const LayerData& data, double weight_amax)
      : y(like(data.d_y)),
        d_x(like(data.x)),
        gradient(like(data.weight)),
        use_(use),
        data_(data),
        precision_{.compute = DType::kFloat32, .linear = recipe.precision},
        shape_(shape_of(data.weight, division.divided)),
        bound_factor_of_part_(ranks == nullptr || ranks->rank() == ranks->size() - 1 ? kBoundFactor : 1.0f),
        group_(ranks, kTokens, stream_),
        weight_(make_weight(weight_amax)),
        amaxes_(precision_, 1, arena_),
        scratch_(std::array{LinearSpec{.shape = shape_}}, precision_, group_, arena_),
        layer_({.recipe = recipe.precision,
                .precision = precision_,
                .spec = {.shape = shape_, .input = use.producer, .output_gradient = use.producer},
                .weight = weight_,
                .gradient = gradient,
                .amaxes = &amaxes_,
                .stats = nullptr,
                .index = 0,
                .scratch = &scratch_,
                .tensor = &group_,
                .saves_operands = use.splits}),
        activations_(layer_.make_activations(0, {}, nullptr, arena_)) {
    const int64_t bytes = LinearLayer::workspace_bytes(recipe.precision, shape_, DType::kFloat32, stream_);
    workspace_.resize(static_cast<size_t>(bytes));
    stream_.set_workspace(Tensor(workspace_.data(), DType::kUInt8, {bytes}));
    if (!recipe.history) return;
    for (int64_t i = 0; i < AmaxTable::kKinds; ++i) amaxes_.history().data<float>()[i] = kPastAmax;
    amaxes_.restore(stream_);
  }

  // Runs forward and backward.
  void run() {
    if (use_.accumulate) gradient.fill(1);
    Array x = data_.x;
    Array d_y = data_.d_y;
    const LinearActivations& a = activations_;
    make(x, layer_.input_work(a));
    layer_.forward(a, {.y = y, .x = x}, stream_);
    if (a.gradient_bound_factor.defined()) a.gradient_bound_factor.data<float>()[0] = bound_factor_of_part_;
    layer_.bound_gradient(a, d_y, stream_);
    make(d_y, layer_.gradient_work(a));
    WeightGradient weight_gradient = use_.accumulate ? WeightGradient::kAdd : WeightGradient::kWrite;
    if (use_.splits) weight_gradient = WeightGradient::kSave;
    layer_.backward(a, {.d_x = d_x, .d_y = d_y, .x = x, .weight_gradient = weight_gradient}, stream_);
    if (use_.splits) {
      x.fill(std::nan(""));
      d_y.fill(std::nan(""));
      layer_.backward_weights(a, use_.accumulate, stream_);
    }
  }

  // Returns the amaxes of x and d_y over all ranks. The list is empty if the recipe needs no amaxes.
  Values amaxes() {
    Values found;
    for (const AmaxTable::Kind kind : {AmaxTable::kInput, AmaxTable::kOutputGradient}) {
      const Tensor amax = needs_amax(precision_.linear) ? amaxes_.current(0, kind) : Tensor();
      if (!amax.defined()) continue;
      if (!group_.alone()) group_.ranks().all_reduce_max(amax, stream_, "amaxes");
      found.push_back(amax.data<float>()[0]);
    }
    return found;
  }

  Array y, d_x, gradient;

 private:
  static Array like(const Tensor& tensor) { return {DType::kFloat32, {tensor.dim(0), tensor.dim(1)}}; }
  static LinearShape shape_of(const Tensor& weight, Divided divided) {
    return {.tokens = kTokens, .in = weight.dim(1), .out = weight.dim(0), .divided = divided};
  }

  // Casts the weight like block_weights.cpp and sharded_parameters.cpp.
  LinearWeight make_weight(double amax) {
    const LinearPrecision recipe = precision_.linear;
    if (!is_fp8(recipe)) return {.value = data_.weight, .rows = {}, .columns = {}};
    const auto allocate = [&](int64_t rows, int64_t k) {
      return allocate_operand("weight", DType::kFloat8E4M3, traits(recipe).weights, rows, k, arena_);
    };
    const LinearWeight weight{
        .value = {}, .rows = allocate(shape_.out, shape_.in), .columns = allocate(shape_.in, shape_.out)};
    Array scaling(DType::kFloat32, {1});
    scaling.set(0, amax);
    quantize_part({.cast = {.rows = weight.rows, .columns = weight.columns, .amax = scaling}, .x = data_.weight},
                  {.divided = shape_.divided, .group = &group_}, stream_);
    return weight;
  }

  // Does what the producer of x or d_y does: updates the amax and writes the cast. If it casts, x becomes NaN.
  void make(Array& x, const ProducerWork& work) {
    const Tensor& values = x;
    const Fp8Cast& cast = work.cast;
    if (work.amax.defined()) amax({.out = work.amax, .x = values.view({values.numel()})}, stream_);
    if (!cast.defined()) return;
    quantize({.cast = cast, .x = x}, stream_);
    x.fill(std::nan(""));
  }

  Use use_;
  LayerData data_;
  PrecisionConfig precision_;
  LinearShape shape_;
  Stream stream_ = Stream::cpu();
  Arena arena_{Device::kCpu, 16 << 20};
  float bound_factor_of_part_;  // The factor of the last rank is that of the tensor.
  TensorGroup group_;

  LinearWeight weight_;
  AmaxTable amaxes_;
  LinearScratch scratch_;
  LinearLayer layer_;
  LinearActivations activations_;
  std::vector<char> workspace_;
};

constexpr Recipe kPlainMatmuls{"Plain", LinearPrecision::kBFloat16};

class LinearLayerRanks : public RanksTest, public ::testing::WithParamInterface<Recipe> {
 protected:
  void expect_part(const Array& part, const Array& whole, const DividedMatrix& matrix, const char* what) const {
    EXPECT_TRUE(part.bits() == part_of(whole, matrix, rank_).bits()) << what;
  }

  void expect_equal_to_alone(const Division& division, const Use& use) {
    SCOPED_TRACE(std::string(division.outputs() ? "outputs" : "inputs") + " divided" +
                 (traits(use.producer).casts ? ", cast before" : "") + (use.splits ? ", split" : ""));
    const Recipe& recipe = GetParam();
    const LayerData data = whole_data(division, recipe.precision);
    const double weight_amax = recipe.history ? kPastAmax : largest_magnitude(data.weight, 0);
    TestedLayer exact(kPlainMatmuls, division, {.accumulate = use.accumulate}, nullptr, data, weight_amax);
    TestedLayer alone(recipe, division, use, nullptr, data, weight_amax);
    TestedLayer divided(recipe, division, use, communicator_.get(), part_of(data, division, rank_), weight_amax);
    for (TestedLayer* layer : {&exact, &alone, &divided}) layer->run();
    EXPECT_TRUE(alone.y.bits() == exact.y.bits()) << "y is not exact in FP8";
    EXPECT_TRUE(alone.d_x.bits() == exact.d_x.bits()) << "d_x is not exact in FP8";
    EXPECT_TRUE(alone.gradient.bits() == exact.gradient.bits()) << "the weight gradient is not exact in FP8";
    expect_part(divided.y, alone.y, division.y(), "y");
    expect_part(divided.d_x, alone.d_x, division.x(), "d_x");
    expect_part(divided.gradient, alone.gradient, division.weight(), "weight gradient");
    const bool bounds =
        recipe.precision == LinearPrecision::kFp8Tensorwise && traits(use.producer).own_scale == OwnScale::kBound;
    const Values amaxes = {largest_magnitude(data.x, 0), (bounds ? kBoundFactor : 1) * largest_magnitude(data.d_y, 0)};
    EXPECT_EQ(divided.amaxes(), needs_amax(recipe.precision) ? amaxes : Values());
  }

  Stream cpu_ = Stream::cpu();
  std::unique_ptr<Communicator> communicator_ = make_communicator(group_, cpu_);
};

TEST_P(LinearLayerRanks, EqualsTheLayerAlone) {
  for (const Divided divided : {Divided::kOutputs, Divided::kInputs}) {
    const Division division{.divided = divided, .ranks = size_};
    expect_equal_to_alone(division, {});
    expect_equal_to_alone(division, {.producer = Producer::kNorm, .accumulate = true});
    expect_equal_to_alone(division, {.producer = Producer::kNorm, .accumulate = true, .splits = true});
    expect_equal_to_alone(division, {.producer = Producer::kSwigluBackward});
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, LinearLayerRanks,
                         ::testing::Values(kPlainMatmuls, Recipe{"Tensorwise", LinearPrecision::kFp8Tensorwise},
                                           Recipe{"DelayedFirstStep", LinearPrecision::kFp8Delayed},
                                           Recipe{"DelayedHistory", LinearPrecision::kFp8Delayed, true},
                                           Recipe{"Rowwise", LinearPrecision::kFp8Rowwise},
                                           Recipe{"Blockwise", LinearPrecision::kFp8Blockwise}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace octavo::linear_layer_ranks
