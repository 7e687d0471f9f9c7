#include <algorithm>
#include <fstream>
#include <optional>
#include <random>

#include "app/bench.h"
#include "app/weights.h"
#include "kernels/core/error.h"

namespace octavo {

namespace {

constexpr double kLearningRate = 1e-5;
constexpr int64_t kProfiledSteps = 3;
constexpr int64_t kTileElements = int64_t{1} << 20;

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

// Initial weights whose values repeat after a while: as good for timing, and made in no time.
void fill_tiled(const ParameterLayout& layout, uint64_t seed, const Tensor& master, Stream& stream) {
  const Buffer buffer = Buffer::host(stream.device(), kTileElements * dtype_bytes(DType::kFloat32));
  for (const ParameterSpec& spec : layout.specs()) {
    const int64_t tile = std::min(kTileElements, spec.numel());
    initialize_parameter(spec, seed, 0, tile, static_cast<float*>(buffer.data()));
    const Tensor parameter = master.rows(spec.offset, spec.offset + spec.numel());
    stream.copy(parameter.rows(0, tile), Tensor(buffer.data(), DType::kFloat32, {tile}));
    for (int64_t filled = tile; filled < spec.numel();) {
      const int64_t more = std::min(filled, spec.numel() - filled);
      stream.copy(parameter.rows(filled, filled + more), parameter.rows(0, more));
      filled += more;
    }
    stream.synchronize();  // the host tile is used again
  }
}

int64_t local_rows(const Config& config, Runtime& runtime) {
  return config.training.global_batch_size / runtime.communicator().size();
}

Arena allocate(const Config& config, const ParameterLayout& layout, Runtime& runtime) {
  std::optional<Arena> arena;
  runtime.group().agree([&] {
    const Arena plan = plan_training(config, layout, local_rows(config, runtime), runtime.stream());
    arena.emplace(runtime.stream().device(), plan.used());
  });
  return std::move(*arena);
}

// Bytes that this machine can still hand out.
int64_t available_host_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  for (std::string rest; file >> name >> kib; std::getline(file, rest)) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<int64_t>::max();  // unknown
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Bench::Bench(const Config& config, Runtime& runtime)
    : config_(config),
      runtime_(runtime),
      layout_(config.model),
      rows_(local_rows(config, runtime)),
      arena_(allocate(config, layout_, runtime)),
      state_(config, layout_, rows_, arena_, runtime.stream()) {
  Stream& stream = runtime.stream();
  runtime.group().agree([&] {
    if (config.init_from.empty()) {
      fill_tiled(layout_, config.training.seed, state_.parameters.master, stream);
    } else {
      load_initial_weights(config, layout_, state_.parameters.master, stream);
    }
  });
  cast_weights(state_.parameters, stream);
  state_.model.prepare_weights();
  state_.batch.upload(synthetic_batch(config, rows_, runtime.communicator().rank()));
}

void Bench::step() { training_step(state_, ++step_, kLearningRate, runtime_.communicator(), runtime_.stream()); }

std::vector<double> Bench::time(int64_t repetitions, const std::function<void()>& work) {
  Stream& stream = runtime_.stream();
  std::vector<Event> events;
  for (int64_t i = 0; i <= repetitions; ++i) events.emplace_back(stream.device(), true);
  runtime_.group().barrier();
  events[0].record(stream);
  for (size_t i = 1; i < events.size(); ++i) {
    work();
    events[i].record(stream);
  }
  stream.synchronize();
  std::vector<double> times;
  for (size_t i = 1; i < events.size(); ++i) {
    const double ms = events[i].milliseconds_since(events[i - 1]);
    times.push_back(static_cast<double>(runtime_.group().all_reduce_max(static_cast<int64_t>(ms * 1e6))) / 1e6);
  }
  return times;
}

std::vector<double> Bench::time_steps(int64_t steps) {
  return time(steps, [&] { step(); });
}

std::vector<double> Bench::time_forward_backward(int64_t steps) {
  const int64_t micro_batches = state_.batch.num_micro_batches();
  const auto tokens = static_cast<float>(micro_batches * state_.model.shape().tokens());
  return time(steps, [&] {
    for (int64_t i = 0; i < micro_batches; ++i) {
      state_.model.forward_backward(state_.batch.micro_batch(i), 1 / tokens, i == 0);
    }
  });
}

std::map<std::string, Profiler::Total> Bench::profile_step() {
  Stream& stream = runtime_.stream();
  Profiler profiler(stream.device());
  stream.set_profiler(&profiler);
  for (int64_t i = 0; i <= kProfiledSteps; ++i) {
    if (i == 1) profiler.clear();  // the events of the first step were created in it
    step();
    stream.synchronize();
  }
  stream.set_profiler(nullptr);
  auto totals = profiler.totals();
  for (auto& [name, total] : totals) {
    total.calls /= kProfiledSteps;
    total.milliseconds /= kProfiledSteps;
    total.flops /= kProfiledSteps;
    total.fp8_flops /= kProfiledSteps;
    total.bytes /= kProfiledSteps;
  }
  return totals;
}

nlohmann::ordered_json throughput_json(const Config& config, Runtime& runtime, const std::vector<double>& step_times) {
  const double tokens = static_cast<double>(config.training.global_batch_size * config.data.seq_len);
  const double step_ms = median(step_times);
  const double wps = tokens / runtime.communicator().size() / step_ms * 1e3;
  const double flops = wps * config.model.flops_per_token(config.data.seq_len);
  const auto [fastest, slowest] = std::minmax_element(step_times.begin(), step_times.end());
  return {{"parameters", config.model.num_parameters()},
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

MemoryNeed memory_need(const Config& config, Runtime& runtime) {
  const ParameterLayout layout(config.model);
  MemoryNeed need;
  runtime.group().agree([&] {
    need.needed = plan_training(config, layout, local_rows(config, runtime), runtime.stream()).used();
    need.available = runtime.stream().is_cuda() ? gpu_info(runtime.gpu()).free_bytes
                                                : available_host_bytes() / runtime.group().local_size();
  });
  return need;
}

}  // namespace octavo
