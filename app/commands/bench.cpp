#include "app/measure/bench.h"

#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "app/commands/commands.h"
#include "app/config/stages.h"
#include "app/resolve/memory_advice.h"
#include "app/resolve/mesh_choice.h"
#include "app/resolve/resolve.h"
#include "app/run/step_trace.h"
#include "core/error.h"
#include "core/files/json_input.h"
#include "core/files/output_file.h"
#include "core/format.h"
#include "core/median.h"
#include "data/loader.h"

namespace octavo {

namespace {

constexpr int kMaxTimedSteps = 1'000'000;

struct BenchArguments {
  ConfigArguments config;
  int64_t warmup = 3;           // Number of steps before timing starts.
  int64_t steps = 10;           // Number of timed steps, whose median is reported.
  int64_t document_length = 0;  // Mean length of a synthetic document in tokens. 0 means kBenchDocumentLength.
  bool ops = false;             // Compare every op with its lower bound.
  bool energy = false;          // Measure power, clock and energy per token.
  std::string trace = {};       // File for the trace of one more step. Empty disables it.
  bool data = false;            // Time only the data loader.
  bool json = false;
};

// Returns the job with the smallest possible batch: one micro-batch for each rank that has samples of its own. Returns
// nothing if the job has this batch already, or has pipeline stages, which need several micro-batches. The result fits
// into memory if `job` does, because it needs no more memory if it saves the same tensors. A collective.
std::optional<Job> with_one_micro_batch(const Job& job, const Site& site) {
  if (job.micro_batches() == 1 || job.mesh.shape.pipeline > 1) return std::nullopt;
  StageConfig one = job.stated;
  one.training.global_batch_size = one.training.micro_batch_size * job.mesh.shape.data();
  return resolve(one, site);
}

// Times the data loader of data-parallel rank 0 of `num_ranks`: `warmup` batches that do not count, then `steps`
// batches. Keys of the result: tokens_per_s, reader_threads, seq_len, batch (sequences per rank), first_batch_ms
// (including the time of opening the files), batch_ms (the median).
nlohmann::ordered_json bench_data(const Config& config, int64_t num_ranks, int64_t warmup, int64_t steps) {
  const double opening_ms = host_clock_ms();
  Loader loader(config.data, {.global_batch_size = config.training.global_batch_size,
                              .num_ranks = num_ranks,
                              .vocab_size = config.model.vocab_size});
  loader.next();
  const double first_batch_ms = host_clock_ms() - opening_ms;
  for (int64_t i = 0; i < warmup; ++i) loader.next();
  std::vector<double> times;
  const double begin_ms = host_clock_ms();
  for (int64_t i = 0; i < steps; ++i) {
    const double before_ms = host_clock_ms();
    loader.next();
    times.push_back(host_clock_ms() - before_ms);
  }
  const double seconds = (host_clock_ms() - begin_ms) / 1e3;
  const int64_t batch = config.training.global_batch_size / num_ranks;
  return {{"tokens_per_s", static_cast<double>(steps * batch * config.data.seq_len) / seconds},
          {"reader_threads", config.data.reader_threads},
          {"seq_len", config.data.seq_len},
          {"batch", batch},
          {"first_batch_ms", first_batch_ms},
          {"batch_ms", median(times)}};
}

// Times the loader of one rank, because those of the other ranks do the same work.
int bench_data_command(BenchArguments arguments, ProcessGroup& group) {
  arguments.config.overrides.emplace_back("data.validation=[]");  // Only the training data is read.
  const StageConfig config = stage_configs(load_run_config(arguments.config, group, Purpose::kTrain)).front();
  const int64_t data_ranks = config.parallel.data_parallel_ranks(group.size());
  nlohmann::ordered_json result;
  group.throw_on_all_ranks([&] {
    if (group.is_root()) result = bench_data(config, data_ranks, arguments.warmup, arguments.steps);
  });
  if (group.is_root() && arguments.json) std::cout << printable_json(result, 2) << std::endl;
  if (!group.is_root() || arguments.json) return kExitDone;
  std::cout << fmt::format(
      "data alone: {} tokens/s per rank with {} reader threads; batches of {} x {} tokens, {:.2f} ms "
      "each, the first {:.1f} ms after opening the files\n",
      with_thousands_separators(static_cast<int64_t>(result["tokens_per_s"].get<double>())),
      result["reader_threads"].get<int64_t>(), result["batch"].get<int64_t>(), result["seq_len"].get<int64_t>(),
      result["batch_ms"].get<double>(), result["first_batch_ms"].get<double>());
  return kExitDone;
}

int run_bench(const BenchArguments& arguments, ProcessGroup& group) {
  if (arguments.data) return bench_data_command(arguments, group);
  Config stated = load_run_config(arguments.config, group, Purpose::kSynthetic);
  group.throw_on_all_ranks([&] {
    CHECK_INPUT(arguments.document_length == 0 || stated.data.document_mask,
                "--document-length needs documents, and data.document_mask is false");
  });
  const int64_t document_length = arguments.document_length > 0 ? arguments.document_length : kBenchDocumentLength;
  group.throw_file_errors_on_all_ranks("opening the trace", [&] {
    if (group.is_root() && !arguments.trace.empty())
      // Refuses a path that cannot be written before anything is measured.
      OutputFile(arguments.trace, kStepTraceFile);
  });
  const Setting setting = with_chosen_mesh(observe_setting(std::move(stated), group), group);
  Runtime runtime(setting, group);
  std::unique_ptr<GpuEnergy> energy;
  group.throw_on_all_ranks([&] {
    if (!arguments.energy) return;
    CHECK_INPUT(runtime.stream().is_cuda(), "--energy: this run is {}, expected GPUs, whose driver counts energy",
                runtime.describe());
    energy = std::make_unique<GpuEnergy>(gpu_info(runtime.gpu()).pci_bus_id);
  });
  DeviceRates rates;
  if (arguments.ops) rates = measure_rates(setting.run.precision, runtime.stream());

  const LiveSite site(runtime);
  const Job job = resolve(setting.run, site, {});
  const StageConfig& config = job.config;
  group.throw_on_all_ranks([&] { check_fits(job); });
  Table steps;
  if (const std::optional<Job> one = with_one_micro_batch(job, site)) {
    Bench bench(*one, runtime, document_length);
    bench.add_throughput(steps, "one micro-batch", arguments.warmup, arguments.steps, energy.get());
  }
  Bench bench(job, runtime, document_length);
  bench.add_throughput(steps, "of the config", arguments.warmup, arguments.steps, energy.get());
  const std::string linear = precision_name(config.precision);
  nlohmann::ordered_json result = {{"device", runtime.describe()}, {"linear", linear}};
  result.update(steps.json().back());
  if (steps.json().size() > 1) result["one_micro_batch"] = steps.json().front();
  result["allocated_bytes"] = bench.allocated_bytes();
  if (config.data.document_mask) result["document_length"] = document_length;
  std::optional<Floors> floors;
  if (arguments.ops) floors = {.rates = rates, .forward_backward_times = bench.time_forward_backward(arguments.steps)};
  const ProfiledStep profiled = bench.profile_step();
  add_ops(result, profiled, floors ? &*floors : nullptr);
  if (group.size() > 1) add_exposed_communication(result, profiled);
  if (!arguments.trace.empty()) bench.trace_step(arguments.trace);

  if (group.is_root() && arguments.json) std::cout << printable_json(result, 2) << std::endl;
  if (!group.is_root() || arguments.json) return kExitDone;
  const std::string compute = dtype_name(config.precision.compute);
  std::cout << fmt::format(
      "{}, {} parameters, {}, micro-batch {} x {} tokens{}\n\n{}\n", runtime.describe(),
      with_thousands_separators(config.model.num_parameters()),
      linear == compute ? "computing in " + compute : fmt::format("{} linears, the rest in {}", linear, compute),
      config.training.micro_batch_size, config.data.seq_len,
      config.data.document_mask ? fmt::format(" in documents of {} on average", document_length) : "", steps.text());
  print_ops(result, profiled, floors ? &*floors : nullptr);
  return kExitDone;
}

}  // namespace

void add_bench(CommandLine& line) {
  const auto [bench, arguments] = line.add<BenchArguments>(
      "bench",
      "measure throughput on synthetic tokens, with the config's batch and with one micro-batch per step, and the time "
      "of each op",
      run_bench, "octavo bench configs/llama3_1.8b_1gpu.yaml --ops training.micro_batch_size=2");
  add_config_arguments(bench, arguments.config);
  bench->add_option("--warmup", arguments.warmup, "number of steps before the timed ones")
      ->check(integer(0, kMaxTimedSteps));
  bench->add_option("--steps", arguments.steps, "number of timed steps, of which the median is reported")
      ->check(integer(1, kMaxTimedSteps));
  auto* document_length =
      bench
          ->add_option("--document-length", arguments.document_length,
                       fmt::format("mean length of the synthetic documents with data.document_mask, default {} tokens",
                                   kBenchDocumentLength))
          ->check(integer(1, kMaxDocumentLength));
  auto* ops = bench->add_flag(
      "--ops", arguments.ops,
      "compare each op with a lower bound: the time of its FLOPs and bytes at the rates of this device");
  auto* energy =
      bench->add_flag("--energy", arguments.energy,
                      "report joules per token, average clock and power of the GPUs over 2 more seconds of steps");
  auto* trace = bench->add_option("--trace", arguments.trace,
                                  "FILE.json for a trace of the ops of every rank in one step, for Perfetto");
  bench->add_flag("--data", arguments.data, "measure only the loader, on the config's data")
      ->excludes(ops)
      ->excludes(energy)
      ->excludes(trace)
      ->excludes(document_length);
  line.add_json(bench, arguments.json);
}

}  // namespace octavo
