// The matrices of the blocks for an optimizer that needs whole matrices: the places of their parts on the
// tensor-parallel ranks, and the rank that computes each matrix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters/parameters.h"

namespace octavo {

// A part [rows, columns] of a matrix, row-major, in the flat unit of a tensor-parallel rank.
struct MatrixPart {
  int64_t tensor_rank = 0;
  int64_t offset = 0;  // offset of the first element in the unit
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t column_begin = 0;
  int64_t columns = 0;
  bool counts = true;  // false for all but the first of several equal parts

  int64_t numel() const { return rows * columns; }
};

// A matrix that is one weight in Hugging Face's files: q, k, v, o, gate, up or down of a block.
struct WholeMatrix {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  size_t unit = 0;
  std::vector<MatrixPart> parts;
  int64_t owner = 0;  // rank that computes this matrix, among the ranks of one replica of the parameters

  int64_t numel() const { return rows * columns; }
  int64_t smaller() const { return rows < columns ? rows : columns; }
  double newton_schulz_flops() const;
};

// Blocks that are gathered together, so that there are enough matrices for all ranks.
struct MatrixRound {
  size_t first_unit = 0;
  size_t num_units = 0;
  std::vector<WholeMatrix> matrices;
};

// Returns whether a unit is a block. Only blocks have a WholeMatrix.
inline bool has_matrices(const ParameterUnit& unit) { return unit.layer >= 0; }

// Returns the rounds of all blocks. The matrices of a round are divided over `ranks` ranks: in the order of falling
// cost, each goes to the rank with the least work.
std::vector<MatrixRound> matrix_rounds(const ParameterLayout& layout, int64_t ranks);

// Returns the maximum number of units of a round.
int64_t blocks_of_a_round(const ParameterLayout& layout, int64_t ranks);

}  // namespace octavo
