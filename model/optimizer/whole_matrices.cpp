#include "model/optimizer/whole_matrices.h"

#include <algorithm>
#include <numeric>

#include "kernels/optimizer/newton_schulz.h"

namespace octavo {

namespace {

// Number of ranks that the matrices of one block keep busy: three with gate, up and down, and one with q, k, v and o.
constexpr int64_t kRanksOfABlock = 4;
// Maximum number of blocks of a round, whose matrices need memory on every rank.
constexpr int64_t kMostBlocks = 4;

int64_t num_blocks(const ParameterLayout& layout) { return std::ranges::count_if(layout.units(), has_matrices); }

// Returns the matrices of each unit. Only blocks have matrices.
std::vector<std::vector<WholeMatrix>> matrices_by_unit(const ParameterLayout& layout) {
  std::vector<std::vector<WholeMatrix>> units(layout.units().size());
  for (int64_t rank = 0; rank < layout.tensor().size; ++rank) {
    const ParameterLayout of_rank = layout.of_rank(rank);
    for (const ParameterSpec& spec : of_rank.specs()) {
      const ParameterUnit& unit = of_rank.units()[spec.unit];
      if (!has_matrices(unit)) continue;
      std::vector<WholeMatrix>& matrices = units[spec.unit];
      auto matrix = std::ranges::find(matrices, spec.name, &WholeMatrix::name);
      if (matrix == matrices.end()) {
        matrix = matrices.insert(matrix, {.name = spec.name,
                                          .rows = spec.whole_shape[0],
                                          .columns = spec.whole_shape[1],
                                          .unit = spec.unit,
                                          .parts = {}});
      }
      matrix->parts.push_back({.tensor_rank = rank,
                               .offset = spec.offset - unit.begin,
                               .row_begin = spec.row_begin,
                               .rows = spec.shape[0],
                               .column_begin = spec.column_begin,
                               .columns = spec.shape[1],
                               .counts = spec.counts});
    }
  }
  return units;
}

void choose_owners(std::vector<WholeMatrix>& matrices, int64_t ranks) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return -matrices[i].newton_schulz_flops(); });
  std::vector<double> load(static_cast<size_t>(ranks));
  for (const size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += matrices[i].newton_schulz_flops();
    matrices[i].owner = least - load.begin();
  }
}

}  // namespace

// A step has three matmuls: A, A^2 and the one with X. They are not halved by the symmetry of A, which holds only up to
// rounding.
double WholeMatrix::newton_schulz_flops() const {
  const auto n = static_cast<double>(smaller());
  const auto m = static_cast<double>(std::max(rows, columns));
  return kNewtonSchulzSteps * (4 * n * n * m + 2 * n * n * n);
}

int64_t blocks_of_a_round(const ParameterLayout& layout, int64_t ranks) {
  const int64_t wanted = (ranks + kRanksOfABlock - 1) / kRanksOfABlock;
  return std::min({wanted, kMostBlocks, num_blocks(layout)});
}

std::vector<MatrixRound> matrix_rounds(const ParameterLayout& layout, int64_t ranks) {
  const auto most = static_cast<size_t>(blocks_of_a_round(layout, ranks));
  std::vector<std::vector<WholeMatrix>> units = matrices_by_unit(layout);
  std::vector<MatrixRound> rounds;
  for (size_t u = 0; u < units.size(); ++u) {
    if (!has_matrices(layout.units()[u])) continue;
    if (rounds.empty() || rounds.back().num_units == most) {
      rounds.push_back({.first_unit = u, .num_units = 0, .matrices = {}});
    }
    MatrixRound& round = rounds.back();
    ++round.num_units;
    round.matrices.insert(round.matrices.end(), units[u].begin(), units[u].end());
  }
  for (MatrixRound& round : rounds) choose_owners(round.matrices, ranks);
  return rounds;
}

}  // namespace octavo
