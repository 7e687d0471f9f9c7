// Compares Muon with its definition in float64 (kernels/optimizer/muon.h), and tests how matrices are distributed to
// ranks.
#include "model/optimizer/muon.h"

#include <numeric>

#include "model/optimizer/optimizer.h"
#include "model/optimizer/whole_matrices.h"
#include "tests/kernels/op_fixture.h"
#include "tests/model/llama_fixture.h"

namespace octavo::muon_test {
namespace {

struct Matrix {
  int64_t rows, columns;
  Values values;
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
};

Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix d{a.rows, b.columns, Values(static_cast<size_t>(a.rows * b.columns))};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t j = 0; j < b.columns; ++j)
        d.values[static_cast<size_t>(i * b.columns + j)] += a.at(i, k) * b.at(k, j);
    }
  }
  return d;
}

Matrix transposed(const Matrix& a) {
  Matrix t{a.columns, a.rows, Values(a.values.size())};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) t.values[static_cast<size_t>(j * a.rows + i)] = a.at(i, j);
  }
  return t;
}

Matrix newton_schulz(Matrix x) {
  const bool tall = x.rows > x.columns;
  if (tall) x = transposed(x);
  const double norm = std::sqrt(dot(x.values, x.values)) + 1e-7;
  for (double& v : x.values) v /= norm;
  for (int i = 0; i < 5; ++i) {
    const Matrix a = multiply(x, transposed(x));
    Matrix b = multiply(a, a);
    for (size_t j = 0; j < b.values.size(); ++j) b.values[j] = -4.7750 * a.values[j] + 2.0315 * b.values[j];
    const Matrix bx = multiply(b, x);
    for (size_t j = 0; j < x.values.size(); ++j) x.values[j] = 3.4445 * x.values[j] + bx.values[j];
  }
  return tall ? transposed(x) : x;
}

class MuonTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Compute, MuonTest, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& instance) { return dtype_name(instance.param); });

// Each matrix is orthogonalized separately, even q, k and v, or gate and up, which are adjacent in memory.
TEST_P(MuonTest, StepsAgreeWithFloat64) {
  OptimizerConfig config;
  config.type = OptimizerType::kMuon;
  config.momentum = 0.9;
  config.weight_decay = 0.2;
  const ParameterLayout layout(tiny_config());
  Arena arena(Device::kCpu, 1 << 22);
  Stream stream = Stream::cpu();
  stream.set_workspace(arena.allocate("workspace", DType::kUInt8,
                                      {std::max<int64_t>(1, muon_workspace_bytes(layout, GetParam(), stream))}));
  ShardedParameters parameters(layout, {.compute = GetParam()}, {}, LlamaMode::kTraining, {}, arena, stream);
  Optimizer optimizer(config, parameters, nullptr, arena);

  std::mt19937_64 generator(3);
  std::normal_distribution<float> normal;
  const auto fill = [&](const Tensor& flat) {
    for (const ParameterSpec& spec : layout.specs()) {
      float* values = flat.data<float>() + spec.offset;
      for (int64_t i = 0; i < spec.numel(); ++i) values[i] = normal(generator);
    }
  };
  const auto values_of = [](const Tensor& flat, const ParameterSpec& spec) {
    const float* values = flat.data<float>() + spec.offset;
    return Values(values, values + spec.numel());
  };
  fill(parameters.master());
  std::vector<Values> start, expected, momentum;
  for (const ParameterSpec& spec : layout.specs()) {
    start.push_back(values_of(parameters.master(), spec));
    expected.push_back(start.back());
    momentum.emplace_back(start.back().size());
  }
  for (int step = 1; step <= 3; ++step) {
    fill(parameters.gradients());
    double squares = 0;
    for (const ParameterSpec& spec : layout.specs()) {
      const Values grad = values_of(parameters.gradients(), spec);
      squares += dot(grad, grad);
    }
    const double lr = 0.01 * step;
    optimizer.measure_gradients(stream);
    optimizer.step(step, lr, {}, stream);
    const double clip = 1 / (std::sqrt(squares) + 1e-6);
    for (size_t p = 0; p < expected.size(); ++p) {
      const ParameterSpec& spec = layout.specs()[p];
      if (spec.linear < 0) continue;
      Matrix u{spec.shape[0], spec.shape[1], values_of(parameters.gradients(), spec)};
      for (size_t i = 0; i < u.values.size(); ++i) {
        const double g = clip * u.values[i];
        momentum[p][i] = 0.9 * momentum[p][i] + g;
        u.values[i] = g + 0.9 * momentum[p][i];
      }
      const Matrix x = newton_schulz(u);
      const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(spec.shape[0], spec.shape[1])));
      for (size_t i = 0; i < expected[p].size(); ++i) {
        expected[p][i] -= lr * (scale * x.values[i] + config.weight_decay * expected[p][i]);
      }
    }
  }
  int64_t compared = 0;
  for (size_t p = 0; p < expected.size(); ++p) {
    const ParameterSpec& spec = layout.specs()[p];
    if (spec.linear < 0) continue;
    Values update = values_of(parameters.master(), spec);
    for (size_t i = 0; i < update.size(); ++i) {
      update[i] -= start[p][i];
      expected[p][i] -= start[p][i];
    }
    EXPECT_LT(relative_error(update, expected[p]), GetParam() == DType::kFloat32 ? 2e-5 : 3e-2) << spec.name;
    ++compared;
  }
  EXPECT_EQ(compared, 7 * tiny_config().num_layers);
}

// Muon keeps one momentum per matrix element, AdamW keeps two moments.
TEST(MuonStatesTest, KeepHalfOfAdamwsForMatrices) {
  const ParameterLayout layout(tiny_config());
  Stream stream = Stream::cpu();
  int64_t matrices = 0;
  for (const ParameterUnit& unit : layout.units()) matrices += unit.layer >= 0 ? unit.end - unit.begin : 0;
  const auto elements = [&](OptimizerType type) {
    Arena plan(Device::kCpu);
    ShardedParameters parameters(layout, {.compute = DType::kFloat32}, {}, LlamaMode::kTraining, {}, plan, stream);
    OptimizerConfig config;
    config.type = type;
    const Optimizer optimizer(config, parameters, nullptr, plan);
    return std::accumulate(optimizer.states().begin(), optimizer.states().end(), int64_t{0},
                           [](int64_t sum, const OptimizerState& state) { return sum + state.shards.numel(); });
  };
  EXPECT_EQ(elements(OptimizerType::kAdamw) - elements(OptimizerType::kMuon), matrices);
}

// The parts of all tensor-parallel ranks together cover every matrix exactly once.
TEST(WholeMatricesTest, PartsCoverEachMatrix) {
  ModelConfig config = tiny_config();
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.intermediate_size = 60;
  config.vocab_size = 60;
  for (const int64_t size : {1, 2, 3, 6}) {
    const ParameterLayout layout(config, {.rank = 0, .size = size});
    for (const MatrixRound& round : matrix_rounds(layout, 5)) {
      EXPECT_EQ(std::ssize(round.matrices), 7 * static_cast<int64_t>(round.num_units));
      for (const WholeMatrix& matrix : round.matrices) {
        std::vector<int> covered(static_cast<size_t>(matrix.numel()));
        for (const MatrixPart& part : matrix.parts) {
          for (int64_t i = 0; part.counts && i < part.numel(); ++i) {
            const int64_t row = part.row_begin + i / part.columns;
            ++covered[static_cast<size_t>(row * matrix.columns + part.column_begin + i % part.columns)];
          }
        }
        EXPECT_EQ(covered, std::vector<int>(covered.size(), 1)) << matrix.name << " on " << size;
        EXPECT_LT(matrix.owner, 5);
      }
    }
  }
}

// No rank has more work than the mean plus that of the largest matrix. In a full round, no rank computes more than
// 1.35 times the mean.
TEST(WholeMatricesTest, AreSharedOutEvenly) {
  ModelConfig config = model_preset("llama3_8b");
  const ParameterLayout layout(config);
  for (const int64_t ranks : {1, 2, 3, 4, 7, 8, 16}) {
    for (const MatrixRound& round : matrix_rounds(layout, ranks)) {
      std::vector<double> load(static_cast<size_t>(ranks));
      double total = 0, largest = 0;
      for (const WholeMatrix& matrix : round.matrices) {
        load[static_cast<size_t>(matrix.owner)] += matrix.newton_schulz_flops();
        total += matrix.newton_schulz_flops();
        largest = std::max(largest, matrix.newton_schulz_flops());
      }
      const double most = *std::max_element(load.begin(), load.end());
      EXPECT_LE(most, total / static_cast<double>(ranks) + largest);
      if (round.num_units == static_cast<size_t>(blocks_of_a_round(layout, ranks))) {
        EXPECT_LE(most, 1.35 * total / static_cast<double>(ranks)) << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace octavo::muon_test
