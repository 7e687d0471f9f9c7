#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>

#include "app/commands/commands.h"
#include "app/measure/doctor_checks.h"
#include "app/measure/rates.h"
#include "app/process/runtime.h"
#include "core/arena.h"
#include "core/error.h"
#include "core/files/json_input.h"
#include "core/files/output_file.h"
#include "parallel/communicator.h"
#include "parallel/config.h"

namespace octavo {

namespace {

struct DoctorArguments {
  bool json = false;
  bool quick = false;      // Only check what is known without measuring.
  int ranks_per_node = 0;  // Number of ranks of a future run, one per GPU. 0 if not given.
  std::string save;        // Machine file to write (app/predict/machine_rates.h). Empty if none.
  // Directory whose write speed is measured. With --quick, it must exist or it must be possible to create it.
  std::string disk = ".";
};

// Timeout of a collective of the quick check. NCCL takes seconds to connect many nodes.
constexpr double kQuickTimeoutS = 60;

// Returns the rates of all ranks on every rank. A collective.
std::vector<MachineRates> measure(const DoctorArguments& arguments, const std::vector<RankFacts>& ranks,
                                  ProcessGroup& group) {
  const RankFacts& facts = ranks[static_cast<size_t>(group.rank())];
  const bool on_gpu = all_have_gpus(ranks);
  std::optional<Stream> stream;
  group.throw_on_all_ranks([&] { stream.emplace(on_gpu ? Stream::cuda(choose_gpu(group)) : Stream::cpu()); });
  omp_set_num_threads(facts.threads);

  MachineRates mine = measure_machine(arguments.disk, !on_gpu || !any_share_a_gpu(ranks), group, *stream);
  if (mine.collectives) mine.collectives->hosts = count_hosts(ranks);
  mine.name = facts.host;
  mine.device = on_gpu ? facts.gpus.front().name : "cpu";
  mine.gpu_memory_bytes = on_gpu ? facts.gpus.front().total_bytes : 0;
  mine.versions = facts.versions;
  std::vector<MachineRates> all;
  for (const std::string& text : group.all_gather(to_json(mine).dump())) {
    all.push_back(machine_rates_from_json(nlohmann::json::parse(text), "a rank's rates"));
  }
  return all;
}

// Checks that all ranks can communicate by summing a few numbers, with NCCL if each rank has its own GPU, otherwise
// with MPI. Throws an Error if the sum is wrong. If the sum does not complete, the watchdog ends the process. A
// collective.
void check_reach(std::span<const RankFacts> ranks, ProcessGroup& group) {
  if (group.size() == 1) return;
  constexpr int64_t kElements = 1024;
  std::optional<Stream> stream;
  std::optional<Arena> arena;
  Tensor sum;
  std::vector<float> host(kElements, static_cast<float>(group.rank() + 1));
  group.throw_on_all_ranks([&] {
    const bool on_gpu = all_have_gpus(ranks) && !any_share_a_gpu(ranks);
    stream.emplace(on_gpu ? Stream::cuda(choose_gpu(group)) : Stream::cpu());
    arena.emplace(stream->device(), kElements * dtype_bytes(DType::kFloat32));
    sum = arena->allocate("sum", DType::kFloat32, {kElements});
    stream->copy(sum.raw(), host.data(), sum.bytes());
    stream->synchronize();
  });
  const std::unique_ptr<Communicator> world = make_communicator(group, *stream);
  world->all_reduce_sum(sum, *stream, "the check of the ranks' reach");
  stream->synchronize();
  group.throw_on_all_ranks([&] {
    stream->copy(host.data(), sum.raw(), sum.bytes());
    stream->synchronize();
    const auto expected = static_cast<float>(group.size()) * static_cast<float>(group.size() + 1) / 2;
    const auto wrong = std::ranges::find_if(host, [&](float value) { return value != expected; });
    CHECK(wrong == host.end(), "a sum over all ranks is {}, expected {}", *wrong, expected);
  });
}

DoctorReport measured_report(const DoctorArguments& arguments, ProcessGroup& group) {
  group.watchdog().set_timeout(ParallelConfig{}.timeout_s);
  std::optional<OutputFile> file;
  group.throw_on_all_ranks([&] {
    std::error_code error;
    const std::string& dir = arguments.disk;
    CHECK_INPUT(std::filesystem::is_directory(dir, error), "--disk {}: there is no such directory", dir);
    CHECK_INPUT(::access(dir.c_str(), W_OK) == 0, "--disk {}: the directory cannot be written to", dir);
    if (group.is_root() && !arguments.save.empty()) file.emplace(arguments.save, kMachineFile);
  });
  DoctorReport report{.ranks = gather_facts(arguments.ranks_per_node, "", group)};
  report.findings = find_problems(report.ranks);
  try {
    report.rates = measure(arguments, report.ranks, group);
  } catch (const InputError&) {
    throw;
  } catch (const Error& error) {  // A failure that all ranks share is a finding about the machine.
    if (!group.shares(error)) throw;
    report.findings.push_back({true, fmt::format("the rates could not be measured: {}", error.what())});
  }
  group.throw_on_all_ranks([&] {
    if (!file || report.rates.empty()) return;
    file->write(to_json(slowest_of(report.rates)).dump(2) + "\n");
    file->finish();
    file->rename();
  });
  return report;
}

DoctorReport quick_report(const DoctorArguments& arguments, ProcessGroup& group) {
  group.watchdog().set_timeout(kQuickTimeoutS);
  DoctorReport report{.ranks = gather_facts(arguments.ranks_per_node, arguments.disk, group)};
  report.findings = find_problems(report.ranks);
  try {
    check_reach(report.ranks, group);
  } catch (const Error& error) {
    if (!group.shares(error)) throw;
    report.findings.push_back({true, error.what()});
  }
  return report;
}

int run_doctor(const DoctorArguments& arguments, ProcessGroup& group) {
  const DoctorReport report = arguments.quick ? quick_report(arguments, group) : measured_report(arguments, group);
  group.throw_on_all_ranks([&] {
    if (!group.is_root()) return;
    if (arguments.json) {
      std::cout << printable_json(to_json(report), 2) << "\n";
    } else if (arguments.quick) {
      print_findings(report);
    } else {
      print_report(report);
    }
  });
  return report.is_ok() ? kExitDone : kExitFailed;
}

}  // namespace

void add_doctor(CommandLine& line) {
  const auto [doctor, arguments] =
      line.add<DoctorArguments>("doctor", "describe and measure this machine, and find what prevents training on it",
                                run_doctor, "octavo doctor --save mine.json");
  line.add_json(doctor, arguments.json);
  auto* quick = doctor->add_flag("--quick", arguments.quick, "find problems in seconds, without measuring");
  doctor
      ->add_option("--ranks-per-node", arguments.ranks_per_node,
                   "number of ranks, and so of GPUs, that a run will have per machine")
      ->check(integer(1, 1 << 10))
      ->default_str("");
  doctor->add_option("--save", arguments.save, "FILE to which the measured rates are written as JSON")->excludes(quick);
  doctor->add_option("--disk", arguments.disk,
                     "directory whose write speed is measured; with --quick, the directory of the checkpoints");
}

}  // namespace octavo
