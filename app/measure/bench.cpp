#include "app/measure/bench.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <optional>
#include <random>

#include "app/inputs/same_files.h"
#include "app/run/step_trace.h"
#include "app/run/utilization.h"
#include "app/run/weights.h"
#include "core/error.h"
#include "core/median.h"
#include "data/loader.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kLearningRate = 1e-5;
constexpr int64_t kProfiledSteps = 3;
constexpr double kStepsMs = 2000;  // Time over which power and clock are measured.

// Returns this rank's share of a batch of random tokens, which give the embedding and the loss realistic work without
// data files. With a document mask, the tokens form documents whose lengths are exponentially distributed with a mean
// of `document_length` and which end at the end of their sequence.
Batch synthetic_batch(const Config& config, int64_t rows, int64_t document_length, const Mesh& mesh) {
  std::mt19937_64 random(config.training.seed + static_cast<uint64_t>(mesh.data_rank()));
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(config.model.vocab_size - 1));
  std::exponential_distribution<double> length(1 / static_cast<double>(document_length));
  Batch batch;
  const int64_t seq_len = config.data.seq_len;
  const auto next_document = [&](int64_t begin) {
    return config.data.document_mask ? begin + 1 + static_cast<int64_t>(length(random)) : seq_len;
  };
  for (int64_t row = 0; row < rows; ++row) {
    int64_t document = 0;
    int64_t next = next_document(0);
    Batch whole;
    for (int64_t t = 0; t < seq_len; ++t) {
      if (t == next) next = next_document(document = t);
      whole.inputs.push_back(token(random));
      whole.targets.push_back(t + 1 == next && next < seq_len ? -1 : token(random));
      whole.document_start.push_back(static_cast<int32_t>(document));
    }
    append_share(whole, mesh.context_rank(), seq_len, batch);
  }
  return batch;
}

// Adds a row to the table. `floor` is null if the op has no lower bound, and is shown only if `with_floors` is true.
void add_row(Table& table, const ProfiledStep& profiled, const std::string& name, const Profiler::Total& total,
             bool with_floors, const OrderedJson& floor) {
  const double seconds = total.milliseconds / 1e3;
  table.row()
      .add({"op", "op", -24}, name)
      .add({"calls", "calls", 5}, total.calls)
      .add({"ms", "ms", 9, "{:.3f}"}, total.milliseconds)
      .add({"share", "share", 6, "{:.1f}%", 100}, total.milliseconds / profiled.step_ms)
      .add({"tflops", "TFLOP/s", 7, "{:.4g}"}, total.flops / seconds / 1e12)
      .add({"gb_s", "GB/s", 6, "{:.0f}"}, total.bytes / seconds / 1e9);
  if (!with_floors) return;
  table.add({"fp8", "fp8", 4}, total.fp8_flops > 0)
      .add({"floor_ms", "floor ms", 9, "{:.3f}"}, floor)
      .add({"ratio", "ratio", 6, "{:.2f}"},
           floor.is_null() ? floor : OrderedJson(total.milliseconds / floor.get<double>()));
}

// Returns a table of the ops, the longest first. `floors` may be null.
Table ops_table(const ProfiledStep& profiled, const Floors* floors) {
  std::vector<std::pair<std::string, Profiler::Total>> sorted(profiled.ops.begin(), profiled.ops.end());
  std::ranges::stable_sort(sorted, std::greater(), [](const auto& op) { return op.second.milliseconds; });
  Table table;
  for (const auto& [name, total] : sorted) {
    const double least = floors != nullptr ? floor_ms(total, floors->rates) : 0;
    add_row(table, profiled, name, total, floors != nullptr, least > 0 ? OrderedJson(least) : OrderedJson());
  }
  return table;
}

void add_floors(OrderedJson& result, const ProfiledStep& profiled, const Floors& floors) {
  double ops = 0;
  double floor = 0;
  double matmuls_and_attention = 0;
  double matmuls_and_attention_floor = 0;
  for (const auto& [name, total] : profiled.ops) {
    const double least = floor_ms(total, floors.rates);
    ops += total.milliseconds;
    floor += least;
    if (total.flops == 0) continue;
    matmuls_and_attention += total.milliseconds;
    matmuls_and_attention_floor += least;
  }
  const double forward_backward = median(floors.forward_backward_times);
  const double fp8_matmul = floors.rates.fp8_matmul;
  result["rates"] = {{"product_tflops", floors.rates.matmul / 1e12},
                     {"fp8_product_tflops", fp8_matmul > 0 ? OrderedJson(fp8_matmul / 1e12) : OrderedJson()},
                     {"bandwidth_gb_s", floors.rates.bandwidth / 1e9}};
  result["ops_ms"] = ops;
  result["floor_ms"] = floor;
  result["unexplained_ms"] = profiled.step_ms - ops;
  result["forward_backward_ms"] = forward_backward;
  result["products_and_attention_ms"] = matmuls_and_attention;
  result["products_and_attention_floor_ms"] = matmuls_and_attention_floor;
  result["forward_backward_ratio"] = forward_backward / matmuls_and_attention_floor;
}

void print_floors(const OrderedJson& r, const ProfiledStep& profiled, const DeviceRates& rates) {
  std::cout << fmt::format(
      "\nmeasured rates: matmul {:.4g} TFLOP/s, {}copy {:.0f} GB/s (read and written); profiled step {:.3f} ms, "
      "outside of ops {:.3f} ms\nforward and backward {:.2f} ms: {:.3f} times the lower bound of matmuls and "
      "attention, {:.2f} ms (they took {:.2f} ms)\n",
      rates.matmul / 1e12,
      rates.fp8_matmul > 0 ? fmt::format("FP8 matmul {:.4g} TFLOP/s, ", rates.fp8_matmul / 1e12) : "",
      rates.bandwidth / 1e9, profiled.step_ms, r["unexplained_ms"].get<double>(),
      r["forward_backward_ms"].get<double>(), r["forward_backward_ratio"].get<double>(),
      r["products_and_attention_floor_ms"].get<double>(), r["products_and_attention_ms"].get<double>());
}

}  // namespace

Bench::Bench(const Job& job, Runtime& runtime, int64_t document_length)
    : job_(job), runtime_(runtime), model_(job, false, runtime), state_(model_.state()) {
  const Config& config = job.config;
  Stream& stream = runtime.stream();
  const std::unique_ptr<WeightSource> initial = open_same_weights(config.init_from, runtime.group());
  runtime.group().throw_file_errors_on_all_ranks(
      "making the weights", [&] { load_initial_weights(config, initial.get(), state_.parameters, stream); });
  cast_weights(state_);
  const Batch batch = synthetic_batch(config, job.local_batch(), document_length, runtime.mesh());
  state_.batch.upload(batch);
  runtime.tune([&] { warm_up(state_); });
  targets_ = static_cast<int64_t>(runtime.sum_over_tokens(static_cast<double>(count_targets(batch.targets))));
}

void Bench::step() { training_step(state_, {.number = ++step_, .lr = kLearningRate, .targets = targets_}); }

std::vector<double> Bench::time(int64_t repetitions, const std::function<void()>& work) {
  runtime_.group().barrier();
  std::vector<double> times;
  for (const double seconds : time_each(repetitions, work, runtime_.stream())) {
    times.push_back(static_cast<double>(runtime_.group().all_reduce_max(static_cast<int64_t>(seconds * 1e9))) / 1e6);
  }
  return times;
}

std::vector<double> Bench::time_forward_backward(int64_t steps) {
  const int64_t micro_batches = state_.batch.num_micro_batches();
  const auto tokens = static_cast<float>(micro_batches * state_.model.shape().tokens());
  const StepBatches batches{.count = micro_batches,
                            .micro_batch = [this](int64_t i) { return state_.batch.micro_batch(i); },
                            .scale = 1 / tokens};
  return time(steps, [&] {
    state_.model.run(entries_of_step(state_), batches);
    state_.parameters.fsdp().finish_reductions();
  });
}

ProfiledStep Bench::profile_step() {
  Stream& stream = runtime_.stream();
  Profiler profiler(stream.device());
  Event begin(stream.device(), true), end(stream.device(), true);
  stream.set_profiler(&profiler);
  ProfiledStep profiled;
  for (int64_t i = 0; i <= kProfiledSteps; ++i) {
    if (i == 1) profiler.clear();  // Discards the first step, during which the profiler's events were created.
    begin.record(stream);
    step();
    end.record(stream);
    stream.synchronize();
    if (i > 0) profiled.step_ms += end.milliseconds_since(begin) / kProfiledSteps;
  }
  stream.set_profiler(nullptr);
  profiled.ops = profiler.totals();
  for (auto& [name, total] : profiled.ops) {
    total.calls /= kProfiledSteps;
    total.milliseconds /= kProfiledSteps;
    total.flops /= kProfiledSteps;
    total.fp8_flops /= kProfiledSteps;
    total.bytes /= kProfiledSteps;
  }
  return profiled;
}

GpuUse Bench::measure_use(GpuEnergy& energy, double step_ms) {
  const auto steps = std::max<int64_t>(5, std::llround(kStepsMs / step_ms));
  GpuUse mean;
  runtime_.group().throw_on_all_ranks([&] { energy.use(); });
  for (int64_t i = 0; i < steps; ++i) {
    step();
    runtime_.stream().synchronize();
    runtime_.group().throw_on_all_ranks([&] {
      const GpuUse use = *energy.use();
      mean.watts += use.watts / static_cast<double>(steps);
      mean.sm_mhz += use.sm_mhz / static_cast<double>(steps);
    });
  }
  const auto ranks = static_cast<double>(runtime_.group().size());
  return {.watts = runtime_.group().all_reduce_sum(mean.watts) / ranks,
          .sm_mhz = runtime_.group().all_reduce_sum(mean.sm_mhz) / ranks};
}

void Bench::trace_step(const std::string& path) {
  StepTrace trace(state_, runtime_.group());
  {
    const ProfilerRange range(runtime_.stream(), "queue step", Profiler::Kind::kHostRange);
    step();
  }
  trace.write(path, fmt::format("a step of octavo bench {}, {}", job_.config.source, runtime_.describe()));
}

void Bench::add_throughput(Table& table, const char* batch, int64_t warmup, int64_t steps, GpuEnergy* energy) {
  const Config& config = job_.config;
  ProcessGroup& group = runtime_.group();
  if (warmup > 0) time(warmup, [&] { step(); });
  const std::vector<double> step_times = time(steps, [&] { step(); });
  std::optional<GpuUse> use;
  if (energy != nullptr) use = measure_use(*energy, median(step_times));
  const double attended_tokens = group.all_reduce_sum(state_.batch.attended_tokens()) / group.size();
  const double tokens = static_cast<double>(config.training.global_batch_size * config.data.seq_len);
  const double step_ms = median(step_times);
  const double wps = tokens / group.size() / step_ms * 1e3;
  const ModelFlops flops = model_flops(config.model, config.precision, config.data.seq_len, attended_tokens);
  const auto [fastest, slowest] = std::ranges::minmax_element(step_times);
  table.row()
      .add({"", "batch", -15}, batch)
      .add({"parameters"}, config.model.num_parameters())
      .add({"compute"}, dtype_name(config.precision.compute))
      .add({"seq_len"}, config.data.seq_len)
      .add({"micro_batch_size"}, config.training.micro_batch_size)
      .add({"global_batch_size", "sequences", 9}, config.training.global_batch_size)
      .add({"step_ms", "step ms", 9, "{:.2f}"}, step_ms)
      .add({"step_ms_min", "least", 9, "{:.2f}"}, *fastest)
      .add({"step_ms_max", "most", 9, "{:.2f}"}, *slowest)
      .add({"wps", "wps", 9, ","}, wps)
      .add({"tflops", "TFLOP/s", 7, "{:.1f}"}, wps * flops.palm / 1e12)
      .add({"memory_gib", "GiB", 6, "{:.1f}"}, runtime_.memory_gib());
  if (config.data.document_mask) table.add({"attended_tokens"}, attended_tokens);
  if (runtime_.stream().is_cuda()) {
    const Utilization rates = utilization_of(flops, wps);
    table.add({"mfu", "mfu", 6, "{:.1f}%", 100}, rates.mfu)
        .add({"mfu_causal"}, rates.mfu_causal)
        .add({"utilization", "util", 6, "{:.1f}%", 100}, rates.utilization);
  }
  if (!use) return;
  table.add({"sm_mhz", "MHz", 5, "{:.0f}"}, use->sm_mhz)
      .add({"watts", "W", 5, "{:.0f}"}, use->watts)
      .add({"joules_per_token", "J/token", 8, "{:.4g}"}, use->watts / wps);
}

void add_ops(OrderedJson& result, const ProfiledStep& profiled, const Floors* floors) {
  result["profiled_step_ms"] = profiled.step_ms;
  result["ops"] = ops_table(profiled, floors).json();
  if (floors != nullptr) add_floors(result, profiled, *floors);
}

void add_exposed_communication(OrderedJson& result, const ProfiledStep& profiled) {
  double compute = 0;
  for (const auto& [name, total] : profiled.ops) {
    if (!total.communication) compute += total.milliseconds;
  }
  result["exposed_communication_ms"] = profiled.step_ms - compute;
}

void print_ops(const OrderedJson& r, const ProfiledStep& profiled, const Floors* floors) {
  Table table = ops_table(profiled, floors);
  Profiler::Total all;
  for (const auto& [name, total] : profiled.ops) {
    all.calls += total.calls;
    all.milliseconds += total.milliseconds;
    all.flops += total.flops;
    all.bytes += total.bytes;
  }
  add_row(table, profiled, "all ops", all, floors != nullptr, floors != nullptr ? r["floor_ms"] : OrderedJson());
  std::cout << table.text();
  if (floors != nullptr) print_floors(r, profiled, floors->rates);
  if (!r.contains("exposed_communication_ms")) return;
  const double exposed_ms = r["exposed_communication_ms"];
  std::cout << fmt::format(
      "\nexposed communication, including gaps between ops: {:.2f} ms, {:.1f}% of the profiled step\n", exposed_ms,
      100 * exposed_ms / profiled.step_ms);
}

}  // namespace octavo
