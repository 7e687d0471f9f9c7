// Tests that FP8 operands of one rank's tokens have the scales of all tokens bit for bit, even operands that are scaled
// per column.
#include "model/linear/linear_layer.h"
#include "model/linear/quantize_part.h"
#include "tests/kernels/op_fixture.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::quantize_part_ranks {
namespace {

class QuantizePartRanks : public RanksTest {};

struct Operands {
  Operands(int64_t tokens, int64_t width, Arena& arena)
      : rows(allocate_operand("rows", DType::kFloat8E4M3, Scaling::kRow, tokens, width, arena)),
        columns(allocate_operand("columns", DType::kFloat8E4M3, Scaling::kRow, width, tokens, arena)) {}
  Fp8Operand rows, columns;
};

TEST_F(QuantizePartRanks, ColumnsOfTokensThatRanksShare) {
  constexpr int64_t kWidth = 32;
  const int64_t share = 16;
  const int64_t tokens = share * size_;
  Stream stream = Stream::cpu();
  Arena arena(Device::kCpu, int64_t{1} << 20);
  Array whole(DType::kFloat32, {tokens, kWidth});
  for (int64_t i = 0; i < whole.size(); ++i) {
    whole.set(i, std::sin(static_cast<double>(i * i % 1009)) * static_cast<double>(i % 7 + 1));
  }
  Array mine(DType::kFloat32, {share, kWidth});
  for (int64_t i = 0; i < mine.size(); ++i) mine.set(i, whole.at(rank_ * mine.size() + i));

  const Operands alone(tokens, kWidth, arena);
  quantize({.cast = {.rows = alone.rows, .columns = alone.columns}, .x = whole}, stream);
  const Operands shared(share, kWidth, arena);
  const std::unique_ptr<Communicator> communicator = make_communicator(group_, stream);
  const ContextGroup context({.ranks = communicator.get(), .micro_batch = communicator.get()}, stream);
  quantize_part({.cast = {.rows = shared.rows, .columns = shared.columns}, .x = mine},
                {.divided = Divided::kInputs, .context = &context}, stream);

  const auto bytes = [](const Fp8Operand& operand, int64_t row, int64_t column) {
    return static_cast<const uint8_t*>(operand.data.raw())[row * operand.data.dim(1) + column];
  };
  for (int64_t t = 0; t < share; ++t) {
    const int64_t token = rank_ * share + t;
    EXPECT_EQ(shared.rows.scale_inv.data<float>()[t], alone.rows.scale_inv.data<float>()[token]);
    for (int64_t i = 0; i < kWidth; ++i) {
      EXPECT_EQ(bytes(shared.rows, t, i), bytes(alone.rows, token, i));
      EXPECT_EQ(bytes(shared.columns, i, t), bytes(alone.columns, i, token));
    }
  }
  for (int64_t i = 0; i < kWidth; ++i) {
    EXPECT_EQ(shared.columns.scale_inv.data<float>()[i], alone.columns.scale_inv.data<float>()[i]);
  }
}

}  // namespace
}  // namespace octavo::quantize_part_ranks
