#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "app/commands.h"
#include "app/evaluation.h"
#include "app/metrics.h"
#include "app/training_state.h"
#include "kernels/core/error.h"
#include "kernels/core/profiler.h"

namespace octavo {

namespace {

// Random tokens: real work for the embedding and the loss, no data files.
Batch synthetic_batch(const Config& config, int64_t rows, int rank) {
  std::mt19937_64 random(config.training.seed + static_cast<uint64_t>(rank));
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(config.model.vocab_size - 1));
  Batch batch;
  const auto count = static_cast<size_t>(rows * config.data.seq_len);
  for (size_t i = 0; i < count; ++i) {
    batch.inputs.push_back(token(random));
    batch.targets.push_back(token(random));
  }
  batch.document_start.assign(count, 0);
  return batch;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

class Bench {
 public:
  Bench(const Config& config, Runtime& runtime)
      : config_(config),
        runtime_(runtime),
        layout_(config.model),
        rows_(config.training.global_batch_size / runtime.communicator().size()),
        arena_(runtime.stream().device(), plan_training(config, layout_, rows_, runtime.stream()).used()),
        state_(config, layout_, rows_, arena_, runtime.stream()) {
    load_initial_weights(config, layout_, state_.parameters.master, runtime.stream());
    cast_weights(state_.parameters, runtime.stream());
    state_.model.prepare_weights();
    state_.batch.upload(synthetic_batch(config, rows_, runtime.communicator().rank()));
  }

  // Milliseconds of each of `steps` steps, the slowest rank's.
  std::vector<double> time_steps(int64_t steps) {
    Stream& stream = runtime_.stream();
    std::vector<Event> events;
    for (int64_t i = 0; i <= steps; ++i) events.emplace_back(stream.device(), true);
    runtime_.group().barrier();
    events[0].record(stream);
    for (int64_t i = 0; i < steps; ++i) {
      training_step(state_, ++step_, 1e-5, runtime_.communicator(), stream);
      events[static_cast<size_t>(i) + 1].record(stream);
    }
    stream.synchronize();
    std::vector<double> times;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const double ms = events[i + 1].milliseconds_since(events[i]);
      times.push_back(static_cast<double>(runtime_.group().all_reduce_max(static_cast<int64_t>(ms * 1e6))) / 1e6);
    }
    return times;
  }

  // Sums by op over one step.
  std::map<std::string, Profiler::Total> profile_step() {
    Stream& stream = runtime_.stream();
    Profiler profiler(stream.device());
    stream.set_profiler(&profiler);
    training_step(state_, ++step_, 1e-5, runtime_.communicator(), stream);
    stream.synchronize();
    stream.set_profiler(nullptr);
    return profiler.totals();
  }

 private:
  const Config& config_;
  Runtime& runtime_;
  ParameterLayout layout_;
  int64_t rows_;
  Arena arena_;
  TrainingState state_;
  int64_t step_ = 0;
};

nlohmann::ordered_json result_json(const Config& config, Runtime& runtime, std::vector<double> times) {
  const double tokens = static_cast<double>(config.training.global_batch_size * config.data.seq_len);
  const double step_ms = median(times);
  const double wps = tokens / runtime.communicator().size() / step_ms * 1e3;
  const double flops = wps * config.model.flops_per_token(config.data.seq_len);
  const auto [fastest, slowest] = std::minmax_element(times.begin(), times.end());
  return {{"device", runtime.describe()},
          {"parameters", config.model.num_parameters()},
          {"seq_len", config.data.seq_len},
          {"micro_batch_size", config.training.micro_batch_size},
          {"global_batch_size", config.training.global_batch_size},
          {"step_ms", step_ms},
          {"step_ms_min", *fastest},
          {"step_ms_max", *slowest},
          {"wps", wps},
          {"mfu", flops / kPeakFlops},
          {"tflops", flops / 1e12},
          {"memory_gib", runtime.memory_gib()}};
}

nlohmann::ordered_json ops_json(const std::map<std::string, Profiler::Total>& totals) {
  std::vector<std::pair<std::string, Profiler::Total>> sorted(totals.begin(), totals.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.milliseconds > b.second.milliseconds; });
  auto ops = nlohmann::ordered_json::array();
  for (const auto& [name, total] : sorted) {
    const double seconds = total.milliseconds / 1e3;
    ops.push_back({{"op", name},
                   {"calls", total.calls},
                   {"ms", total.milliseconds},
                   {"tflops", total.flops / seconds / 1e12},
                   {"gb_s", total.bytes / seconds / 1e9}});
  }
  return ops;
}

void print_tables(const nlohmann::ordered_json& r) {
  std::cout << fmt::format("{}, {} parameters, micro-batch {} x {} tokens, {} sequences a step\n",
                           r["device"].get<std::string>(), with_thousands_separators(r["parameters"]),
                           r["micro_batch_size"].get<int64_t>(), r["seq_len"].get<int64_t>(),
                           r["global_batch_size"].get<int64_t>());
  std::cout << fmt::format("step {:.2f} ms ({:.2f} to {:.2f})  wps {}  mfu {:.1f}%  {:.1f} TFLOP/s  mem {:.1f} GiB\n\n",
                           r["step_ms"].get<double>(), r["step_ms_min"].get<double>(), r["step_ms_max"].get<double>(),
                           with_thousands_separators(static_cast<int64_t>(r["wps"].get<double>())),
                           100 * r["mfu"].get<double>(), r["tflops"].get<double>(), r["memory_gib"].get<double>());
  std::cout << fmt::format("{:<20} {:>6} {:>10} {:>7} {:>9} {:>8}\n", "op", "calls", "ms", "share", "TFLOP/s", "GB/s");
  const double step_ms = r["step_ms"];
  double sum = 0;
  for (const auto& op : r["ops"]) {
    const double ms = op["ms"];
    sum += ms;
    const auto rate = [](double value) { return value > 0 ? fmt::format("{:.0f}", value) : std::string("-"); };
    const double tflops = op["tflops"];
    std::cout << fmt::format("{:<20} {:>6} {:>10.3f} {:>6.1f}% {:>9} {:>8}\n", op["op"].get<std::string>(),
                             op["calls"].get<int64_t>(), ms, 100 * ms / step_ms,
                             tflops >= 1 ? rate(tflops) : (tflops > 0 ? fmt::format("{:.3f}", tflops) : "-"),
                             rate(op["gb_s"]));
  }
  std::cout << fmt::format("{:<20} {:>6} {:>10.3f} {:>6.1f}%\n", "sum", "", sum, 100 * sum / step_ms);
}

}  // namespace

int bench_command(const BenchArguments& arguments, ProcessGroup& group) {
  Config config = load_run_config(arguments.config, group, Purpose::kSynthetic);
  Runtime runtime(config, group);
  Bench bench(config, runtime);
  if (arguments.warmup > 0) bench.time_steps(arguments.warmup);
  const std::vector<double> times = bench.time_steps(arguments.steps);
  bench.profile_step();  // its events are created on first use
  const auto totals = bench.profile_step();
  auto result = result_json(config, runtime, times);
  result["ops"] = ops_json(totals);
  if (!group.is_root()) return kExitDone;
  if (arguments.json) {
    std::cout << result.dump(2) << std::endl;
  } else {
    print_tables(result);
  }
  return kExitDone;
}

}  // namespace octavo
