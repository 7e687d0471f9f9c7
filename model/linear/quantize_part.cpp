#include "model/linear/quantize_part.h"

namespace octavo {

void quantize_part(const Quantize& args, const MatrixParts& parts, Stream& stream) {
  const Scaling scaling = args.rows.defined() ? args.rows.scaling : args.columns.scaling;
  const bool divides = parts.group != nullptr && !parts.group->alone();
  const bool shares = parts.context != nullptr && !parts.context->alone();
  if (scaling != Scaling::kRow || (!divides && !shares)) return quantize(args, stream);
  row_amaxes({.rows = args.rows, .columns = args.columns, .x = args.x}, stream);
  const Fp8Operand& parts_of_rows = parts.divided == Divided::kInputs ? args.rows : args.columns;
  if (divides && parts_of_rows.defined()) parts.group->all_reduce_max(parts_of_rows.scale_inv, "amaxes of rows");
  if (shares && args.columns.defined()) {
    parts.context->all_reduce_max(args.columns.scale_inv, "amaxes of columns", stream);
  }
  Quantize measured = args;
  measured.measured = true;
  quantize(measured, stream);
}

}  // namespace octavo
