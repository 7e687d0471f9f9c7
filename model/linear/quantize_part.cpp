#include "model/linear/quantize_part.h"

namespace octavo {

void quantize_part(const Quantize& args, const MatrixParts& parts, Stream& stream) {
  const bool divides = parts.group != nullptr && !parts.group->alone();
  const bool shares = parts.context != nullptr && !parts.context->alone();
  if (!traits(args.cast.scaling()).measures_apart || (!divides && !shares)) return quantize(args, stream);
  const Fp8Operand& rows = args.cast.rows;
  const Fp8Operand& columns = args.cast.columns;
  quantize({.cast = args.cast, .x = args.x, .passes = QuantizePasses::kMeasure}, stream);
  const Fp8Operand& parts_of_rows = parts.divided == Divided::kInputs ? rows : columns;
  if (divides && parts_of_rows.defined())
    parts.group->ranks().all_reduce_max(parts_of_rows.scale_inv, stream, "amaxes of rows");
  if (shares && columns.defined())
    parts.context->ranks().all_reduce_max(columns.scale_inv, stream, "amaxes of columns");
  Quantize cast = args;
  cast.passes = QuantizePasses::kCast;
  quantize(cast, stream);
}

}  // namespace octavo
