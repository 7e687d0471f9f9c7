// The matrices of the blocks as an optimizer sees them that needs them whole: where their parts lie on the ranks that
// divide each layer, and who computes what.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters/parameters.h"

namespace octavo {

// A part of a matrix in the flat unit of one of the ranks that divide each layer, [rows, columns] in row-major order.
struct MatrixPart {
  int64_t tensor_rank = 0;
  int64_t offset = 0;  // in the unit
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t column_begin = 0;
  int64_t columns = 0;
  bool counts = true;  // false for a copy of another part

  int64_t numel() const { return rows * columns; }
};

// q, k, v, o, gate, up or down of a block: what is one weight in Hugging Face's files.
struct WholeMatrix {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  size_t unit = 0;
  std::vector<MatrixPart> parts;
  int64_t owner = 0;  // among the ranks that together hold one copy of the parameters

  int64_t numel() const { return rows * columns; }
  int64_t smaller() const { return rows < columns ? rows : columns; }
  double newton_schulz_flops() const;
};

// Blocks that are gathered at the same time, so that there are matrices enough for the ranks.
struct MatrixRound {
  size_t first_unit = 0;
  size_t num_units = 0;
  std::vector<WholeMatrix> matrices;
};

// Returns whether a unit has such matrices.
inline bool has_matrices(const ParameterUnit& unit) { return unit.layer >= 0; }

// Those of all blocks. `ranks` share the matrices of a round: the costliest first, each to the rank that has least.
std::vector<MatrixRound> matrix_rounds(const ParameterLayout& layout, int64_t ranks);

// The most units of a round.
int64_t blocks_of_a_round(const ParameterLayout& layout, int64_t ranks);

}  // namespace octavo
