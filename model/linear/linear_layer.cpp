#include "model/linear/linear_layer.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/fp8/fp8_shard.h"
#include "kernels/matmul/matmul.h"
#include "model/linear/quantize_part.h"

namespace octavo {

Fp8Operand allocate_operand(const std::string& name, DType format, Scaling scaling, int64_t rows, int64_t k,
                            Arena& arena, Lifetime lifetime) {
  return {.data = arena.allocate(name, format, {rows, k}, lifetime),
          .scale_inv = arena.allocate(name + " scales", DType::kFloat32, {fp8_scale_count(scaling, rows, k)}, lifetime),
          .scaling = scaling};
}

namespace {

// Returns an operand [rows, k] that lies at the beginning of `bytes` and `scales`.
Fp8Operand view_operand(const Tensor& bytes, const Tensor& scales, DType format, Scaling scaling, int64_t rows,
                        int64_t k) {
  return {.data = Tensor(bytes.raw(), format, {rows, k}),
          .scale_inv = scales.rows(0, fp8_scale_count(scaling, rows, k)),
          .scaling = scaling};
}

}  // namespace

LinearLayer::LinearLayer(const LinearOptions& options)
    : options_(options),
      casts_(cast_plan({.recipe = options.recipe,
                        .gradient_format = options.precision.gradient_format,
                        .input = options.spec.input,
                        .output_gradient = options.spec.output_gradient,
                        .divided = options.spec.shape.divided,
                        .divides_layer = !alone(),
                        .shares_sequences = shares_sequences(),
                        .input_pass = options.input_pass,
                        .recomputes = options.recomputes})) {}

LinearScratch::LinearScratch(std::span<const LinearSpec> linears, const PrecisionConfig& precision,
                             const TensorGroup& tensor, Arena& arena) {
  const Scaling scaling = traits(precision.linear).activations;
  int64_t elements = 0;
  int64_t scale_count = 0;
  int64_t exchanged = 0;
  struct Room {
    int64_t elements = 0;
    int64_t scale_count = 0;
  };
  std::vector<Room> slots;
  for (const LinearSpec& linear : linears) {
    const LinearShape& s = linear.shape;
    exchanged = std::max(exchanged, s.tokens * s.whole_width());
    for (const int64_t width : {s.in, s.out}) {
      elements = std::max(elements, s.tokens * width);
      scale_count = std::max(scale_count, fp8_scale_count(scaling, s.tokens, width));
    }
    slots.resize(std::max(slots.size(), linear.gradient_slot + 1));
    Room& slot = slots[linear.gradient_slot];
    slot.elements = std::max(slot.elements, s.tokens * s.out);
    slot.scale_count = std::max(slot.scale_count, fp8_scale_count(scaling, s.out, s.tokens));
  }
  if (is_fp8(precision.linear)) {
    row_bytes = arena.allocate("fp8 rows", DType::kUInt8, {elements}, Lifetime::kBlock);
    row_scales = arena.allocate("fp8 row scales", DType::kFloat32, {scale_count}, Lifetime::kBlock);
    for (const Room& slot : slots) {
      columns.push_back(
          {.bytes = arena.allocate("fp8 columns", DType::kUInt8, {slot.elements}, Lifetime::kBlock),
           .scales = arena.allocate("fp8 column scales", DType::kFloat32, {slot.scale_count}, Lifetime::kBlock)});
    }
  }
  if (tensor.alone()) return;
  exchange = arena.allocate("tokens of all ranks", precision.compute, {exchanged}, Lifetime::kBlock);
  if (needs_amax(precision.linear)) {
    share_bytes =
        arena.allocate("fp8 tokens of one rank", DType::kUInt8, {exchanged / tensor.size()}, Lifetime::kBlock);
  }
}

LinearActivations LinearLayer::make_activations(int64_t in_flight, const KeptOperands& kept, SharedActivations* shared,
                                                Arena& arena) const {
  const LinearOptions& o = options_;
  LinearActivations a;
  if (casts_.has_amaxes) {
    a.input_amax = o.amaxes->current(o.index, AmaxTable::kInput, in_flight);
    a.gradient_amax = o.amaxes->current(o.index, AmaxTable::kOutputGradient, in_flight);
    if (casts_.bounds_gradient) a.gradient_bound_factor = o.amaxes->gradient_bound_factor(o.index, in_flight);
  }
  const bool training = o.gradient.defined();
  if (training) {
    const bool own = o.saves_operands || o.input_pass == BlockPass::kForward;
    a.input = allocate_input(own ? nullptr : shared, arena);
    if (o.saves_operands) a.saved = allocate_saved(a.input, kept, arena);
  } else if (!casts_.fp8 && divides(Divided::kOutputs)) {
    a.input.gathered = exchange();
  }
  return a;
}

LinearInput LinearLayer::allocate_input(SharedActivations* shared, Arena& arena) const {
  const LinearOptions& o = options_;
  const std::string name = fmt::format("{} input", o.spec.names.forward);
  const auto allocate = [&](const std::string& what, DType dtype, std::initializer_list<int64_t> shape) {
    return shared != nullptr ? shared->get(what, dtype, shape, arena)
                             : arena.allocate("activations " + what, dtype, shape, Lifetime::kStep);
  };
  const LinearShape& s = o.spec.shape;
  if (casts_.fp8) {
    const Scaling scaling = traits(o.recipe).activations;
    return {.columns = {.data = allocate(name, DType::kFloat8E4M3, {s.in, s.tokens}),
                        .scale_inv =
                            allocate(name + " scales", DType::kFloat32, {fp8_scale_count(scaling, s.in, s.tokens)}),
                        .scaling = scaling},
            .gathered = {}};
  }
  if (!divides(Divided::kOutputs)) return {};
  return {.columns = {}, .gathered = allocate(name + " of all ranks", o.precision.compute, {s.tokens, s.in})};
}

WeightGradientOperands LinearLayer::allocate_saved(const LinearInput& input, const KeptOperands& kept,
                                                   Arena& arena) const {
  const LinearOptions& o = options_;
  const LinearShape& s = o.spec.shape;
  const std::string name = fmt::format("activations {} saved", o.spec.names.forward);
  WeightGradientOperands saved{.d_y_columns = {}, .x_columns = input.columns, .d_y = kept.d_y, .x = input.gathered};
  if (casts_.fp8) {
    saved.d_y_columns = allocate_operand(name + " gradient", o.precision.gradient_format, traits(o.recipe).activations,
                                         s.out, s.tokens, arena, Lifetime::kStep);
    return saved;
  }
  if (!saved.d_y.defined()) {
    saved.d_y = arena.allocate(name + " gradient", o.precision.compute, {s.tokens, s.out}, Lifetime::kStep);
  }
  if (!saved.x.defined()) saved.x = kept.x;
  if (!saved.x.defined()) {
    saved.x = arena.allocate(name + " input", o.precision.compute, {s.tokens, s.in}, Lifetime::kStep);
  }
  return saved;
}

// Returns memory for all tokens at the width that is not divided.
Tensor LinearLayer::exchange() const {
  const LinearShape& s = options_.spec.shape;
  const Tensor& memory = options_.scratch->exchange;
  return memory.rows(0, s.tokens * s.whole_width()).view({s.tokens, s.whole_width()});
}

// Returns the slot that takes the amax of a tensor. While scales come from the history, the amaxes grow over the whole
// step, and all micro-batches use the slots of number 0.
Tensor LinearLayer::amax_slot(const LinearActivations& a, Kind kind) const {
  if (!casts_.has_amaxes) return {};
  if (options_.amaxes->uses_history()) return options_.amaxes->current(options_.index, kind);
  return kind == AmaxTable::kInput ? a.input_amax : a.gradient_amax;
}

Tensor LinearLayer::scale_amax(const LinearActivations& a, Kind kind) const {
  if (!casts_.has_amaxes) return {};
  return options_.amaxes->uses_history() ? options_.amaxes->scaling(options_.index, kind) : amax_slot(a, kind);
}

// Returns the work on a tensor in a pass at this time.
const TensorCast& LinearLayer::work_on(Kind kind, BlockPass pass) const {
  const LinearOptions& o = options_;
  const CastMoment now{.history = o.amaxes != nullptr && o.amaxes->uses_history(),
                       .watched = observer() != nullptr || (o.stats != nullptr && o.stats->measuring())};
  return kind == AmaxTable::kInput ? casts_.input(pass, now) : casts_.gradient(now);
}

Exchange LinearLayer::exchange_of(Kind kind) const { return casts_.exchange[kind == AmaxTable::kInput ? 0 : 1]; }

void LinearLayer::bound_gradient(const LinearActivations& a, const Tensor& d, Stream& stream) const {
  if (!a.gradient_bound_factor.defined()) return;
  all_reduce_maximum(a.gradient_bound_factor, stream);
  amax({.out = a.gradient_amax, .x = d.view({d.numel()}), .factor = a.gradient_bound_factor}, stream);
  all_reduce_maximum(a.gradient_amax, stream);
}

ProducerWork LinearLayer::producer_work(const LinearActivations& a, Kind kind, BlockPass pass) const {
  const TensorCast& planned = work_on(kind, pass);
  ProducerWork work;
  if (planned.measure == Measurer::kProducer) work.amax = amax_slot(a, kind);
  if (planned.cast != Caster::kProducer) return work;
  work.cast = kind == AmaxTable::kInput ? input_operands(a, pass) : gradient_operands(a);
  if (exchange_of(kind) == Exchange::kBytes) {
    work.cast.rows = share_rows(work.cast.rows);
    work.cast.columns = {};
  }
  return work;
}

// Returns memory for the cast of this rank's share of the tokens. `rows` is gathered from the shares.
Fp8Operand LinearLayer::share_rows(const Fp8Operand& rows) const {
  const int64_t tokens = rows.data.dim(0) / options_.tensor->size();
  return {.data = Tensor(options_.scratch->share_bytes.raw(), rows.data.dtype(), {tokens, rows.data.dim(1)}),
          .scale_inv = rows.scale_inv,
          .scaling = rows.scaling};
}

Fp8Cast LinearLayer::input_operands(const LinearActivations& a, BlockPass pass) const {
  const LinearOptions& o = options_;
  if (!casts_.fp8) return {};
  const TensorCast& work = work_on(AmaxTable::kInput, pass);
  const Fp8Operand rows = view_operand(o.scratch->row_bytes, o.scratch->row_scales, DType::kFloat8E4M3,
                                       traits(o.recipe).activations, o.spec.shape.tokens, o.spec.shape.in);
  return {.rows = work.rows ? rows : Fp8Operand{},
          .columns = work.columns ? a.input.columns : Fp8Operand{},
          .amax = scale_amax(a, AmaxTable::kInput)};
}

Fp8Cast LinearLayer::gradient_operands(const LinearActivations& a) const {
  const LinearOptions& o = options_;
  if (!casts_.fp8) return {};
  const Scaling scaling = traits(o.recipe).activations;
  const DType format = o.precision.gradient_format;
  const LinearShape& shape = o.spec.shape;
  const LinearScratch::Columns& columns = o.scratch->columns[o.spec.gradient_slot];
  return {.rows = view_operand(o.scratch->row_bytes, o.scratch->row_scales, format, scaling, shape.tokens, shape.out),
          .columns = o.saves_operands
                         ? a.saved.d_y_columns
                         : view_operand(columns.bytes, columns.scales, format, scaling, shape.out, shape.tokens),
          .amax = scale_amax(a, AmaxTable::kOutputGradient)};
}

bool LinearLayer::fast(bool forward) const {
  return accumulates_fast(options_.recipe, options_.precision.fast_accumulation, forward);
}

const char* LinearLayer::name_of(Kind kind) const {
  return kind == AmaxTable::kInput ? options_.spec.names.forward : options_.spec.names.d_x;
}

// Replaces this rank's maximum, an amax or a gradient bound factor, with that of all ranks that have a part of the
// tensor.
void LinearLayer::all_reduce_maximum(const Tensor& maximum, Stream& stream) const {
  if (shares_sequences()) {
    options_.context->micro_batch().all_reduce_max(maximum, stream, "an activation's amax");
  } else if (!alone()) {
    options_.tensor->ranks().all_reduce_max(maximum, stream, "an activation's amax");
  }
}

// Measures the tensor as the plan says, and casts it.
void LinearLayer::cast(const Fp8Cast& operands, const Source& source, Stream& stream) const {
  const TensorCast& work = work_on(source.kind, source.pass);
  const Tensor slot = amax_slot(source.a, source.kind);
  if (work.measure == Measurer::kLinear) amax({.out = slot, .x = source.x.view({source.x.numel()})}, stream);
  if (work.reduces_amax) all_reduce_maximum(slot, stream);
  // If the tensor is not a share of the tokens, each rank has only some columns of each row. A row's scale covers all
  // columns, so the amaxes are reduced over the group.
  TensorGroup* group = alone() || exchange_of(source.kind) != Exchange::kNone ? nullptr : options_.tensor;
  quantize_part({.cast = operands, .x = source.x, .amax_out = work.measure == Measurer::kCast ? slot : Tensor()},
                {.divided = Divided::kInputs, .group = group, .context = options_.context}, stream);
  if (source.pass == BlockPass::kForward) add_stats(operands.rows, source, stream);
}

// Called right after the cast, because the amax that it used is overwritten later.
void LinearLayer::add_stats(const Fp8Operand& rows, const Source& source, Stream& stream) const {
  if (options_.stats == nullptr) return;
  options_.stats->add({.linear = options_.index,
                       .kind = source.kind,
                       .rows = rows,
                       .x = source.x,
                       .amax = scale_amax(source.a, source.kind)},
                      stream);
}

// Returns all tokens of a tensor: the tensor itself, or the memory that the ranks' shares are gathered in.
Tensor LinearLayer::all_tokens(const Source& source) const {
  if (exchange_of(source.kind) == Exchange::kNone) return source.x;
  const bool is_saved = source.kind == AmaxTable::kInput && !casts_.fp8;
  return is_saved ? source.a.input.gathered : exchange();
}

// Makes the operands of a tensor. Without FP8 the matmuls read all_tokens(source).
void LinearLayer::make_operands(const Fp8Cast& operands, const Source& source, Stream& stream) const {
  const Caster caster = work_on(source.kind, source.pass).cast;
  switch (exchange_of(source.kind)) {
    case Exchange::kNone:
      if (caster == Caster::kLinear) cast(operands, source, stream);
      return;
    case Exchange::kValues: {
      Source gathered = source;
      gathered.x = all_tokens(source);
      options_.tensor->gather(gathered.x, source.x, name_of(source.kind));
      if (caster == Caster::kLinear) cast(operands, gathered, stream);
      return;
    }
    case Exchange::kBytes: {
      const Fp8Operand share = share_rows(operands.rows);
      if (caster == Caster::kLinear) cast({.rows = share, .amax = operands.amax}, source, stream);
      options_.tensor->gather(operands.rows.data, share.data, name_of(source.kind));
      if (!operands.columns.defined()) return;
      fp8_transpose({.out = operands.columns.data, .x = operands.rows.data}, stream);
      fp8_scale_inv({.scale_inv = operands.columns.scale_inv, .amax = operands.amax, .format = share.data.dtype()},
                    stream);
    }
  }
}

void LinearLayer::forward(const LinearActivations& a, const LinearForward& args, Stream& stream) const {
  const LinearOptions& o = options_;
  const Fp8Cast operands = input_operands(a, args.pass);
  const Source source{.a = a, .x = args.x, .kind = AmaxTable::kInput, .pass = args.pass};
  const bool sums = divides(Divided::kInputs);
  const Tensor y = sums ? exchange() : args.y;
  const char* name = o.spec.names.forward;
  make_operands(operands, source, stream);
  if (casts_.fp8) {
    fp8_matmul({.d = y, .a = operands.rows, .b = o.weight.rows, .fast_accumulation = fast(true), .name = name}, stream);
  } else {
    matmul({.d = y, .a = all_tokens(source), .b = o.weight.value, .transpose_b = true, .name = name}, stream);
  }
  if (sums) o.tensor->reduce_scatter(args.y, y, name);
  observe(observer(),
          {.op = name, .results = {args.y}, .inputs = {args.x}, .weights = {observed(o.weight.rows, o.weight.value)}});
}

OpInput LinearLayer::observed(const Fp8Operand& cast, const Tensor& value) const {
  return casts_.fp8 ? OpInput(cast) : OpInput(value);
}

void LinearLayer::recompute_input(const LinearActivations& a, const Tensor& x, Stream& stream) const {
  constexpr BlockPass kPass = BlockPass::kBackward;
  make_operands(input_operands(a, kPass), {.a = a, .x = x, .kind = AmaxTable::kInput, .pass = kPass}, stream);
}

void LinearLayer::backward(const LinearActivations& a, const LinearBackward& args, Stream& stream) const {
  const LinearOptions& o = options_;
  const Fp8Cast operands = gradient_operands(a);
  const bool sums = divides(Divided::kOutputs);
  const Tensor d_input = sums ? exchange() : args.d_x;
  const Source source{.a = a, .x = args.d_y, .kind = AmaxTable::kOutputGradient};
  const Tensor d_output = all_tokens(source);
  const char* name = o.spec.names.d_x;
  make_operands(operands, source, stream);
  if (casts_.fp8) {
    fp8_matmul(
        {.d = d_input, .a = operands.rows, .b = o.weight.columns, .fast_accumulation = fast(false), .name = name},
        stream);
  } else {
    matmul({.d = d_input, .a = d_output, .b = o.weight.value, .name = name}, stream);
  }
  if (sums) o.tensor->start_reduce_scatter(args.d_x, d_input, name);
  const auto observe_result = [&] {
    observe(observer(), {.op = name,
                         .results = {args.d_x},
                         .inputs = {args.d_y},
                         .weights = {observed(o.weight.columns, o.weight.value)}});
  };
  if (!sums) observe_result();
  if (args.between) args.between();
  const WeightGradientOperands weight_operands{.d_y_columns = operands.columns,
                                               .x_columns = a.input.columns,
                                               .d_y = d_output,
                                               .x = sums ? a.input.gathered : args.x};
  if (args.weight_gradient == WeightGradient::kSave) {
    save_operands(a, weight_operands, stream);
  } else {
    compute_weight_gradient(weight_operands, args.weight_gradient == WeightGradient::kAdd, stream);
  }
  if (!sums) return;
  o.tensor->wait();
  observe_result();
}

// In FP8 the operands already lie in a.saved. Without FP8, tensors that a later op overwrites are copied.
void LinearLayer::save_operands(const LinearActivations& a, const WeightGradientOperands& operands,
                                Stream& stream) const {
  CHECK(options_.saves_operands, "no memory to save the operands of a weight gradient");
  if (casts_.fp8) return;
  if (operands.d_y.raw() != a.saved.d_y.raw()) stream.copy(a.saved.d_y, operands.d_y);
  if (operands.x.raw() != a.saved.x.raw()) stream.copy(a.saved.x, operands.x);
}

void LinearLayer::compute_weight_gradient(const WeightGradientOperands& operands, bool accumulate,
                                          Stream& stream) const {
  const Tensor& d = options_.gradient;
  const char* name = options_.spec.names.d_w;
  if (casts_.fp8) {
    fp8_matmul({.d = d,
                .a = operands.d_y_columns,
                .b = operands.x_columns,
                .accumulate = accumulate,
                .fast_accumulation = fast(false),
                .name = name},
               stream);
  } else {
    matmul({.d = d, .a = operands.d_y, .b = operands.x, .transpose_a = true, .accumulate = accumulate, .name = name},
           stream);
  }
  observe(observer(),
          {.op = name,
           .results = {d},
           .inputs = {observed(operands.d_y_columns, operands.d_y), observed(operands.x_columns, operands.x)},
           .layer = options_.layer});
}

int64_t LinearLayer::workspace_bytes(LinearPrecision recipe, const LinearShape& s, DType compute,
                                     const Stream& stream) {
  if (is_fp8(recipe)) {
    return std::max({fp8_matmul_workspace_bytes(s.tokens, s.out, s.in, stream),
                     fp8_matmul_workspace_bytes(s.tokens, s.in, s.out, stream),
                     fp8_matmul_workspace_bytes(s.out, s.in, s.tokens, stream)});
  }
  return std::max({matmul_workspace_bytes(s.tokens, s.out, s.in, compute, stream),
                   matmul_workspace_bytes(s.tokens, s.in, s.out, compute, stream),
                   matmul_workspace_bytes(s.out, s.in, s.tokens, compute, stream)});
}

}  // namespace octavo
