// Tests of the gradient of an embedding table that is computed from the gradients of tokens. The expected sum is
// computed on each rank without communication.
#include <algorithm>
#include <numeric>
#include <random>

#include "core/error.h"
#include "model/parameters/table_gradient.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::table_gradient_ranks {
namespace {

struct Sizes {
  int64_t vocab, columns, tokens;
};

class TableGradients : public DeviceRanksTest {
 protected:
  void SetUp() override {
    DeviceRanksTest::SetUp();
    if (!IsSkipped()) communicator_ = make_communicator(group_, stream_);
  }

  TableSpec spec(const Sizes& sizes, DType dtype) const {
    return {.rows = sizes.vocab,
            .columns = sizes.columns,
            .slice_rows = (sizes.vocab + size_ - 1) / size_,
            .tokens = sizes.tokens,
            .dtype = dtype,
            .ranks = size_};
  }

  ReducedUnit unit(const DeviceArray& memory, const DeviceArray& slice, bool keeps) const {
    return {.gradient = memory.tensor(),
            .shard = slice.tensor(),
            .keeps = keeps,
            .ranks = communicator_.get(),
            .name = "a table"};
  }

  // Ids and gradients of one rank's micro-batch. The ids occur in few rows, and some are before or after the table,
  // where another rank has rows.
  struct Tokens {
    std::vector<int32_t> ids, order;
    std::vector<float> values;  // Gradients, rounded to the dtype.
  };
  static Tokens tokens_of(int rank, int64_t micro_batch, const Sizes& sizes, DType dtype) {
    std::mt19937 generator(static_cast<unsigned>(1000 * micro_batch + rank));
    std::uniform_int_distribution<int64_t> id(kFirstRow - 2, kFirstRow + std::min<int64_t>(sizes.vocab, 9) + 1);
    std::normal_distribution<float> normal;
    Tokens tokens;
    for (int64_t t = 0; t < sizes.tokens; ++t) tokens.ids.push_back(static_cast<int32_t>(id(generator)));
    tokens.ids.back() = static_cast<int32_t>(kFirstRow + sizes.vocab - 1);
    tokens.order.resize(tokens.ids.size());
    std::iota(tokens.order.begin(), tokens.order.end(), 0);
    std::stable_sort(tokens.order.begin(), tokens.order.end(), [&](int32_t a, int32_t b) {
      return tokens.ids[static_cast<size_t>(a)] < tokens.ids[static_cast<size_t>(b)];
    });
    for (int64_t i = 0; i < sizes.tokens * sizes.columns; ++i) {
      const float x = normal(generator);
      tokens.values.push_back(dtype == DType::kFloat32 ? x : static_cast<float>(BFloat16(x)));
    }
    return tokens;
  }

  // Copies of the tokens on the device of the stream.
  struct DeviceTokens {
    DeviceTokens(Stream& stream, const Tokens& tokens, const Sizes& sizes, DType dtype)
        : ids(stream, DType::kInt32, sizes.tokens),
          order(stream, DType::kInt32, sizes.tokens),
          values(stream, dtype, sizes.tokens * sizes.columns),
          rows{.gradients = values.tensor().view({sizes.tokens, sizes.columns}),
               .ids = ids.tensor(),
               .order = order.tensor(),
               .first_row = kFirstRow} {
      ids.write(bytes_of(tokens.ids));
      order.write(bytes_of(tokens.order));
      const std::vector<BFloat16> rounded(tokens.values.begin(), tokens.values.end());
      values.write(dtype == DType::kFloat32 ? bytes_of(tokens.values) : bytes_of(rounded));
    }
    DeviceArray ids, order, values;
    TokenRows rows;
  };

  template <typename T>
  static Bytes bytes_of(const std::vector<T>& values) {
    const char* begin = reinterpret_cast<const char*>(values.data());
    return {begin, begin + values.size() * sizeof(T)};
  }

  // Returns the gradient of the whole table, summed in double over all ranks and micro-batches [begin, end).
  std::vector<double> expected(int64_t begin, int64_t end, const Sizes& sizes, DType dtype) const {
    std::vector<double> table(static_cast<size_t>(spec(sizes, dtype).padded_rows() * sizes.columns));
    for (int64_t micro_batch = begin; micro_batch < end; ++micro_batch) {
      for (int rank = 0; rank < size_; ++rank) {
        const Tokens tokens = tokens_of(rank, micro_batch, sizes, dtype);
        for (size_t t = 0; t < tokens.ids.size(); ++t) {
          const int64_t row = tokens.ids[t] - kFirstRow;
          if (row < 0 || row >= sizes.vocab) continue;
          for (int64_t c = 0; c < sizes.columns; ++c) {
            table[static_cast<size_t>(row * sizes.columns + c)] +=
                static_cast<double>(tokens.values[t * static_cast<size_t>(sizes.columns) + static_cast<size_t>(c)]);
          }
        }
      }
    }
    return table;
  }

  // Expects that `slice` is this rank's slice of `table`.
  void expect_slice(const DeviceArray& slice, const std::vector<double>& table) const {
    const Bytes bytes = slice.read();
    const auto count = bytes.size() / sizeof(float);
    EXPECT_EQ(count * static_cast<size_t>(size_), table.size());
    for (size_t i = 0; i < std::min(count, table.size() / static_cast<size_t>(size_)); ++i) {
      float found = 0;
      std::memcpy(&found, bytes.data() + i * sizeof(float), sizeof(float));
      const double wanted = table[static_cast<size_t>(rank_) * count + i];
      EXPECT_NEAR(static_cast<double>(found), wanted, 1e-5) << "element " << i;
    }
  }

  static constexpr int64_t kFirstRow = 7;
  std::unique_ptr<Communicator> communicator_;
};

// The rows and columns are multiples of the number of ranks, odd or prime. One table has fewer columns than the ranks
// need for a slice each.
constexpr Sizes kSizes[] = {{96, 192, 6}, {97, 61, 5}, {13, 9, 1}, {5, 3, 11}, {211, 131, 17}};

TEST_P(TableGradients, SumTheTokensOfAllRanks) {
  for (const Sizes& sizes : kSizes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(
          fmt::format("{} rows of {}, {} tokens, {}", sizes.vocab, sizes.columns, sizes.tokens, dtype_name(dtype)));
      const TableSpec table = spec(sizes, dtype);
      DeviceArray memory(stream_, DType::kUInt8, table.memory_bytes());
      DeviceArray slice(stream_, DType::kFloat32, table.slice_rows * sizes.columns);
      memory.write(Bytes(static_cast<size_t>(table.memory_bytes()), '\xff'));  // All bytes 0xff are NaN.
      slice.write(Bytes(static_cast<size_t>(slice.tensor().bytes()), '\xff'));
      const auto run = [&](TableGradient& gradient, int64_t micro_batch, const MicroBatchPosition& position) {
        const DeviceTokens tokens(stream_, tokens_of(rank_, micro_batch, sizes, dtype), sizes, dtype);
        gradient.slice_columns(tokens.rows, stream_);
        gradient.run(position, stream_);
        stream_.synchronize();
      };
      // The first sum is over two micro-batches and stays in the slice. A third micro-batch is then added to the slice.
      TableGradient kept(table, unit(memory, slice, true));
      run(kept, 0, {.first = true, .last = false});
      run(kept, 1, {.first = false, .last = true});
      expect_slice(slice, expected(0, 2, sizes, dtype));
      TableGradient rotating(table, unit(memory, slice, false));
      run(rotating, 2, {.first = false, .last = true});
      expect_slice(slice, expected(0, 3, sizes, dtype));
    }
  }
}

TEST_P(TableGradients, SumInOneOrder) {
  const Sizes sizes{97, 61, 50};
  const TableSpec table = spec(sizes, DType::kFloat32);
  std::vector<Bytes> slices;
  for (int run = 0; run < 3; ++run) {
    const DeviceArray memory(stream_, DType::kUInt8, table.memory_bytes());
    const DeviceArray slice(stream_, DType::kFloat32, table.slice_rows * sizes.columns);
    TableGradient gradient(table, unit(memory, slice, false));
    const DeviceTokens tokens(stream_, tokens_of(rank_, 0, sizes, DType::kFloat32), sizes, DType::kFloat32);
    gradient.slice_columns(tokens.rows, stream_);
    gradient.run({}, stream_);
    slices.push_back(slice.read());
  }
  EXPECT_EQ(slices[1], slices[0]);
  EXPECT_EQ(slices[2], slices[0]);
}

INSTANTIATE_ON_DEVICES(TableGradients);

}  // namespace
}  // namespace octavo::table_gradient_ranks
