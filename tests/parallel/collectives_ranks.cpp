// Tests of the collectives on tensors. Every rank can compute the inputs of the other ranks, and therefore the expected
// result.
#include <cmath>
#include <random>
#include <span>

#include "tests/kernels/op_fixture.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::collectives_ranks {
namespace {

constexpr DType kAllDTypes[] = {DType::kFloat32, DType::kBFloat16,   DType::kInt32,
                                DType::kUInt8,   DType::kFloat8E4M3, DType::kFloat8E5M2};
constexpr DType kSumDTypes[] = {DType::kFloat32, DType::kBFloat16};

class Collectives : public DeviceRanksTest {
 protected:
  void SetUp() override {
    DeviceRanksTest::SetUp();
    if (!IsSkipped()) communicator_ = make_communicator(group_, stream_);
  }

  // Returns the input of `rank`, which is equal on every calling rank.
  static Bytes random_bytes(int rank, int64_t bytes) {
    std::mt19937 generator(static_cast<unsigned>(17 + rank));
    Bytes result(static_cast<size_t>(bytes));
    for (char& byte : result) byte = static_cast<char>(generator());
    return result;
  }

  // Returns the terms of `rank`. Their magnitudes differ so much that each order of summation rounds differently.
  static Bytes random_terms(int rank, DType dtype, int64_t elements) {
    std::mt19937 generator(static_cast<unsigned>(31 + rank));
    std::normal_distribution<float> normal;
    Bytes result(static_cast<size_t>(elements * dtype_bytes(dtype)));
    const Tensor tensor(result.data(), dtype, {elements});
    for (int64_t i = 0; i < elements; ++i) {
      const float value = normal(generator) * std::exp2(static_cast<float>(i % 7 - 3));
      if (dtype == DType::kFloat32) tensor.data<float>()[i] = value;
      if (dtype == DType::kBFloat16) tensor.data<BFloat16>()[i] = BFloat16(value);
    }
    return result;
  }

  template <typename T>
  static void add_up(std::vector<T>& out, std::vector<float>& magnitude, const std::vector<Bytes>& terms) {
    for (size_t i = 0; i < out.size(); ++i) {
      float sum = 0;
      for (size_t r = 0; r < terms.size(); ++r) {
        const auto term = static_cast<float>(reinterpret_cast<const T*>(terms[r].data())[i]);
        sum = r == 0 ? term : sum + term;
        magnitude[i] += std::abs(term);
      }
      out[i] = static_cast<T>(sum);
    }
  }

  // Compares `found` with elements [begin, end) of the sum over ranks: bit for bit on the CPU, and up to the rounding
  // of every addition on a GPU.
  template <typename T>
  void expect_sum_of(const Bytes& found, int64_t elements, int64_t begin, float epsilon) const {
    std::vector<Bytes> terms;
    for (int r = 0; r < size_; ++r) terms.push_back(random_terms(r, DTypeOf<T>::value, elements));
    std::vector<T> sums(static_cast<size_t>(elements));
    std::vector<float> magnitude(static_cast<size_t>(elements));
    add_up(sums, magnitude, terms);
    const size_t count = found.size() / sizeof(T);
    if (!is_cuda()) {
      EXPECT_EQ(std::memcmp(found.data(), sums.data() + begin, found.size()), 0) << elements << " elements";
      return;
    }
    int64_t wrong = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(begin) + i;
      const auto value = static_cast<float>(reinterpret_cast<const T*>(found.data())[i]);
      const float tolerance = epsilon * magnitude[at] * static_cast<float>(size_);
      if (!(std::abs(value - static_cast<float>(sums[at])) <= tolerance)) ++wrong;
    }
    EXPECT_EQ(wrong, 0) << "of " << count;
  }

  void expect_sum(const Bytes& found, DType dtype, int64_t elements, int64_t begin) const {
    if (dtype == DType::kFloat32) return expect_sum_of<float>(found, elements, begin, 0x1p-23F);
    expect_sum_of<BFloat16>(found, elements, begin, 0x1p-8F);
  }

  void expect_same_on_every_rank(const Bytes& bytes) const {
    const std::string mine(bytes.begin(), bytes.end());
    for (const std::string& other : group_.all_gather(mine)) EXPECT_TRUE(other == mine);
  }

  std::unique_ptr<Communicator> communicator_;
};

// The largest shard takes two messages.
TEST_P(Collectives, AllGather) {
  for (const DType dtype : kAllDTypes) {
    for (const int64_t k : {1, 7, 1001, (1 << 24) + 3}) {
      if (k > 2000 && dtype != DType::kUInt8) continue;
      for (const bool in_place : {false, true}) {
        DeviceArray out(stream_, dtype, k * size_);
        DeviceArray apart(stream_, dtype, k);
        const Tensor shard = in_place ? out.part(k * rank_, k * (rank_ + 1)) : apart.tensor();
        const Bytes mine = random_bytes(rank_, shard.bytes());
        in_place ? out.write(mine, rank_ * shard.bytes()) : apart.write(mine);
        communicator_->all_gather(out.tensor(), shard, stream_, "values");
        Bytes expected;
        for (int r = 0; r < size_; ++r) {
          const Bytes part = random_bytes(r, shard.bytes());
          expected.insert(expected.end(), part.begin(), part.end());
        }
        EXPECT_TRUE(out.read() == expected) << dtype_name(dtype) << " " << k << (in_place ? " in place" : "");
      }
    }
  }
}

// A range of the slices is sent. Some ranges are longer than one message.
TEST_P(Collectives, AllToAll) {
  struct Case {
    int64_t k, begin, end;
  };
  for (const DType dtype : kAllDTypes) {
    for (const auto& [k, begin, end] : {Case{1, 0, 1},
                                        {7, 0, 7},
                                        {1001, 3, 1000},
                                        {1001, 1000, 1001},
                                        {(int64_t{1} << 24) + 3, 1, (int64_t{1} << 24) + 2}}) {
      if (k > 2000 && dtype != DType::kUInt8) continue;
      const int64_t element = dtype_bytes(dtype);
      DeviceArray in(stream_, dtype, k * size_);
      DeviceArray out(stream_, dtype, (end - begin) * size_);
      in.write(random_bytes(rank_, k * size_ * element));
      communicator_->all_to_all(out.tensor(), in.tensor(), begin, stream_, "values");
      Bytes expected;
      for (int r = 0; r < size_; ++r) {
        const Bytes theirs = random_bytes(r, k * size_ * element);
        const auto slice = theirs.begin() + rank_ * k * element;
        expected.insert(expected.end(), slice + begin * element, slice + end * element);
      }
      EXPECT_TRUE(out.read() == expected) << dtype_name(dtype) << " " << begin << " to " << end << " of " << k;
    }
  }
}

// The first and the last rank exchange.
TEST_P(Collectives, Exchange) {
  const int last = size_ - 1;
  if (last == 0 || (rank_ != 0 && rank_ != last)) return;
  for (const int64_t bytes : {int64_t{1}, int64_t{1001}, (int64_t{1} << 24) + 3}) {
    DeviceArray in(stream_, DType::kUInt8, bytes);
    DeviceArray out(stream_, DType::kUInt8, bytes);
    in.write(random_bytes(rank_, bytes));
    communicator_->exchange(out.tensor(), in.tensor(), last - rank_, stream_, "values");
    EXPECT_TRUE(out.read() == random_bytes(last - rank_, bytes)) << bytes;
  }
}

// A sum of 700001 elements takes several iterations on the CPU.
TEST_P(Collectives, ReduceScatterSum) {
  for (const DType dtype : kSumDTypes) {
    for (const int64_t k : {1, 13, 10007, 700001}) {
      for (const bool in_place : {false, true}) {
        DeviceArray in(stream_, dtype, k * size_);
        DeviceArray apart(stream_, dtype, k);
        const Bytes terms = random_terms(rank_, dtype, k * size_);
        in.write(terms);
        const Tensor out = in_place ? in.part(k * rank_, k * (rank_ + 1)) : apart.tensor();
        communicator_->reduce_scatter_sum(out, in.tensor(), stream_, "values");
        const Bytes after = in.read();
        const auto begin = static_cast<size_t>(rank_ * out.bytes());
        const auto end = begin + static_cast<size_t>(out.bytes());
        const auto at = [&](const Bytes& bytes, size_t i) { return bytes.begin() + static_cast<ptrdiff_t>(i); };
        expect_sum(in_place ? Bytes(at(after, begin), at(after, end)) : apart.read(), dtype, k * size_, k * rank_);
        EXPECT_TRUE(std::equal(terms.begin(), at(terms, begin), after.begin()));
        EXPECT_TRUE(std::equal(at(terms, end), terms.end(), at(after, end)));
        EXPECT_TRUE(in_place || after == terms);
      }
    }
  }
}

TEST_P(Collectives, AllReduceSum) {
  for (const DType dtype : kSumDTypes) {
    for (const int64_t n : {1, 2, 3, 10007, (1 << 21) + 5}) {
      Bytes first;
      for (int run = 0; run < 2; ++run) {
        DeviceArray values(stream_, dtype, n);
        values.write(random_terms(rank_, dtype, n));
        communicator_->all_reduce_sum(values.tensor(), stream_, "values");
        const Bytes found = values.read();
        expect_sum(found, dtype, n, 0);
        if (run == 0) expect_same_on_every_rank(found);
        if (run == 0) first = found;
        EXPECT_TRUE(found == first) << "another run, other bits";
      }
    }
  }
}

TEST_P(Collectives, AllReduceMax) {
  const auto magnitudes = [](int rank, int64_t n) {
    Bytes terms = random_terms(rank, DType::kFloat32, n);
    const std::span<float> numbers(reinterpret_cast<float*>(terms.data()), static_cast<size_t>(n));
    for (float& x : numbers) x = std::abs(x);
    return terms;
  };
  for (const int64_t n : {1, 10007}) {
    DeviceArray values(stream_, DType::kFloat32, n);
    values.write(magnitudes(rank_, n));
    communicator_->all_reduce_max(values.tensor(), stream_, "values");
    std::vector<float> expected(static_cast<size_t>(n), 0);
    for (int r = 0; r < size_; ++r) {
      const Bytes terms = magnitudes(r, n);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] = std::max(expected[i], reinterpret_cast<const float*>(terms.data())[i]);
      }
    }
    EXPECT_EQ(std::memcmp(values.read().data(), expected.data(), expected.size() * sizeof(float)), 0);
  }
}

// The maximum is NaN if any rank has NaN.
TEST_P(Collectives, NanWinsAllReduceMax) {
  for (int with_nan = 0; with_nan < size_; ++with_nan) {
    DeviceArray values(stream_, DType::kFloat32, 2);
    const float numbers[] = {rank_ == with_nan ? NAN : 3.0f, rank_ == with_nan ? 1.0f : INFINITY};
    const auto* bytes = reinterpret_cast<const char*>(numbers);
    values.write(Bytes(bytes, bytes + sizeof(numbers)));
    communicator_->all_reduce_max(values.tensor(), stream_, "values");
    const Bytes found = values.read();
    const auto* largest = reinterpret_cast<const float*>(found.data());
    EXPECT_TRUE(std::isnan(largest[0]));
    EXPECT_EQ(largest[1], size_ == 1 ? 1.0f : INFINITY);
  }
}

// Every rank refuses the call before it sends anything.
TEST_P(Collectives, TensorsThatDoNotFit) {
  DeviceArray floats(stream_, DType::kFloat32, 4 * size_);
  DeviceArray other(stream_, DType::kBFloat16, 4);
  const auto expect_refused = [](const auto& call, const std::string& message) { expect_error<Error>(call, message); };
  expect_refused([&] { communicator_->all_gather(floats.tensor(), other.tensor(), stream_, "block 3"); },
                 "all_gather of block 3 (world axis): float32");
  expect_refused([&] { communicator_->all_gather(floats.tensor(), floats.part(0, 3), stream_); }, "slices such as");
  expect_refused([&] { communicator_->reduce_scatter_sum(floats.part(1, 5), floats.tensor(), stream_); },
                 "overlaps other ranks' slices");
  if (size_ > 1) {
    const int peer = (rank_ + 1) % size_;
    expect_refused([&] { communicator_->exchange(floats.part(0, 2), floats.part(1, 3), peer, stream_); },
                   "exchange (world axis): the two tensors overlap");
    expect_refused([&] { communicator_->exchange(floats.part(0, 1), floats.part(1, 3), peer, stream_); },
                   "do not match");
  }
  expect_refused([&] { communicator_->exchange(floats.part(0, 1), floats.part(1, 2), size_, stream_); },
                 fmt::format("is rank {}", size_));
  DeviceArray integers(stream_, DType::kInt32, 4);
  expect_refused([&] { communicator_->all_reduce_sum(integers.tensor(), stream_, "counts"); },
                 "all_reduce of counts (world axis): the dtype is int32");
  expect_refused([&] { communicator_->all_reduce_max(other.tensor(), stream_); }, "the dtype is bfloat16");
}

INSTANTIATE_ON_DEVICES(Collectives);

}  // namespace
}  // namespace octavo::collectives_ranks
