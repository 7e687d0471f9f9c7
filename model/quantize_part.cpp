#include "model/quantize_part.h"

namespace octavo {

void quantize_part(const Quantize& args, Divided divided, TensorGroup* group, Stream& stream) {
  const Scaling scaling = args.rows.defined() ? args.rows.scaling : args.columns.scaling;
  if (group == nullptr || group->alone() || scaling != Scaling::kRow) return quantize(args, stream);
  row_amaxes({.rows = args.rows, .columns = args.columns, .x = args.x}, stream);
  const Fp8Operand& parts_of_rows = divided == Divided::kInputs ? args.rows : args.columns;
  if (parts_of_rows.defined()) group->all_reduce_max(parts_of_rows.scale_inv, "amaxes of rows");
  Quantize measured = args;
  measured.measured = true;
  quantize(measured, stream);
}

}  // namespace octavo
