#include "app/measure/doctor_checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <ranges>

#include "app/config/config_check.h"
#include "core/error.h"
#include "core/format.h"
#include "core/printable.h"
#include "core/table.h"

namespace octavo {

namespace {

// Size of a CUDA context. The process that runs the check has one on the GPU.
constexpr int64_t kOwnContextBytes = kGiB / 2;
constexpr int64_t kForeignBytes = kGiB;
// Share of a GPU's memory that other processes may use without a finding. Processes of an earlier run may still hold
// memory.
constexpr double kForeignShare = 0.1;
constexpr int64_t kFreeDiskBytes = kGiB;
constexpr double kMinFreeMemory = 0.1;  // Smallest acceptable share of free memory on the host.
constexpr int64_t kSharedMemoryBytes = 64 * kMiB;
constexpr int64_t kLockedMemoryBytes = kGiB;
constexpr int64_t kOpenFiles = 4096;

using Findings = std::vector<Finding>;
using OrderedJson = nlohmann::ordered_json;

// Values of Finding::prevents_training.
constexpr bool kProblem = true;
constexpr bool kWarning = false;

template <typename... Args>
void add(Findings& findings, bool prevents_training, fmt::format_string<Args...> format, Args&&... args) {
  findings.push_back({prevents_training, fmt::format(format, std::forward<Args>(args)...)});
}

std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// Checks the driver, and the GPUs that it shows.
void check_driver(const RankFacts& r, Findings& findings) {
  // All minor versions of one major version of CUDA are compatible.
  if (r.has_cuda && r.driver_cuda > 0 && r.driver_cuda / 1000 < r.runtime_cuda / 1000) {
    add(findings, kProblem,
        "{}: the driver supports CUDA {}, but this program uses CUDA {}; install a newer driver, or build with an "
        "older CUDA toolkit",
        r.host, cuda_version(r.driver_cuda), cuda_version(r.runtime_cuda));
  } else if (r.has_cuda && r.gpus_visible == 0) {
    add(findings, kWarning,
        "{}: no GPU was found ({}), so training runs on the CPU; check nvidia-smi, CUDA_VISIBLE_DEVICES, and the "
        "devices of the container or job",
        r.host, r.driver_cuda == 0 ? "there is no driver" : "the driver shows none");
  }
  if (r.gpus_visible > 0 && r.gpus_visible < r.planned_ranks) {
    add(findings, kProblem,
        "{}: {} {} visible, but {} ranks are to run here, one per GPU; check nvidia-smi and dmesg for failed GPUs "
        "(Xid), and CUDA_VISIBLE_DEVICES",
        r.host, r.gpus_visible, r.gpus_visible == 1 ? "GPU is" : "GPUs are", r.planned_ranks);
  }
}

void check_memory(const RankFacts& r, Findings& findings) {
  if (r.memory_errors > 0) {
    add(findings, kProblem,
        "{}: {} of the host's memory could not be corrected since the machine was booted; replace the module, which "
        "dmesg and edac-util name",
        r.host, r.memory_errors == 1 ? "an error" : fmt::format("{} errors", r.memory_errors));
  }
  if (static_cast<double>(r.memory_available_bytes) < kMinFreeMemory * static_cast<double>(r.memory_bytes)) {
    add(findings, kWarning, "{}: {:.1f} of {:.1f} GiB of memory are available; check which processes use the rest",
        r.host, gib(r.memory_available_bytes), gib(r.memory_bytes));
  }
}

void check_disk(const RankFacts& r, Findings& findings) {
  if (r.disk.dir.empty()) return;
  if (!r.disk.error.empty()) {
    add(findings, kProblem, "{}: checkpoints cannot be written: {}", r.host, r.disk.error);
  } else if (r.disk.free_bytes < kFreeDiskBytes) {
    add(findings, kWarning, "{}: {} has {:.2f} GiB free for checkpoints", r.host, r.disk.dir, gib(r.disk.free_bytes));
  }
}

// Checks how the system is set up: access between GPUs, limits of a process, and threads.
void check_set_up(const RankFacts& r, size_t num_ranks, Findings& findings) {
  if (!r.pairs_without_peer_access.empty()) {
    add(findings, kWarning,
        "{}: GPUs {} cannot access each other's memory, so NCCL copies through the host; check nvidia-smi topo -p2p r, "
        "and on a machine without NVLink disable the IOMMU and PCI access control",
        r.host, fmt::join(r.pairs_without_peer_access, ", "));
  }
  if (r.open_files_limit < kOpenFiles) {
    add(findings, kWarning, "{}: a process may open {} files, expected at least {}; raise it with ulimit -n {}", r.host,
        r.open_files_limit, kOpenFiles, 16 * kOpenFiles);
  }
  if (!r.gpus.empty() && num_ranks > 1 && r.locked_memory_limit < kLockedMemoryBytes) {
    add(findings, kWarning,
        "{}: a process may lock {} KiB of memory, but InfiniBand needs more; raise the limit with ulimit -l unlimited, "
        "or in a container with --ulimit memlock=-1",
        r.host, r.locked_memory_limit / 1024);
  }
  if (r.shared_memory_bytes < kSharedMemoryBytes) {
    const bool needs_it = !r.gpus.empty() && r.local_size > 1;
    add(findings, needs_it,
        "{}: /dev/shm has {:.0f} MiB, but the ranks of a machine exchange data there and need at least {} MiB; in a "
        "container, raise it with --shm-size=1g",
        r.host, static_cast<double>(r.shared_memory_bytes) / kMiB, kSharedMemoryBytes / kMiB);
  }
  if (r.omp_num_threads_is_set && r.threads * r.local_size > r.cores) {
    add(findings, kWarning, "{}: OMP_NUM_THREADS={} on each of {} ranks exceeds the {} cores; set it to at most {}",
        r.host, r.threads, r.local_size, r.cores, std::max(1, r.cores / r.local_size));
  }
}

void check_health(const RankFacts& r, const GpuInfo& gpu, const GpuHealth& health, Findings& findings) {
  const std::string where = fmt::format("{}: GPU {} ({})", r.host, gpu.pci_bus_id, gpu.name);
  if (health.uncorrected_errors > 0) {
    add(findings, kProblem,
        "{} had {} uncorrected memory errors since its last reset; reset it (nvidia-smi --gpu-reset), and replace it "
        "if they recur",
        where, health.uncorrected_errors);
  }
  if (health.remapping_failed) {
    add(findings, kProblem, "{} could not remap a faulty row of its memory; replace the GPU", where);
  } else if (health.remapping_pending) {
    add(findings, kWarning,
        "{} will remap a faulty row of its memory at its next reset; reset it (nvidia-smi --gpu-reset)", where);
  }
  for (const std::string& slowdown : health.slowdowns) {
    const bool by_hardware = slowdown.starts_with("HW");
    add(findings, by_hardware,
        "{} runs at reduced clocks ({}), which slows all ranks down; check its cooling and power (nvidia-smi -q -d "
        "PERFORMANCE)",
        where, slowdown);
  }
}

void check_gpus(const RankFacts& r, Findings& findings) {
  for (const GpuInfo& gpu : r.gpus) {
    const std::string where = fmt::format("{}: GPU {} ({})", r.host, gpu.pci_bus_id, gpu.name);
    if (!has_kernels_for(gpu)) {
      const bool is_used = &gpu == &r.gpus.front();
      add(findings, is_used,
          "{} has compute capability {}.{}, but this program only has kernels for 9.0; use an H100 or H200{}", where,
          gpu.compute_major, gpu.compute_minor,
          is_used ? ", or device: cpu" : ", and hide this one with CUDA_VISIBLE_DEVICES");
    }
    const int64_t used_bytes = gpu.total_bytes - gpu.free_bytes - kOwnContextBytes;
    if (used_bytes > kForeignBytes) {
      const bool is_much = static_cast<double>(used_bytes) > kForeignShare * static_cast<double>(gpu.total_bytes);
      add(findings, is_much,
          "{} has {:.1f} of {:.1f} GiB in use already; find the processes that use it with nvidia-smi, and end them",
          where, gib(used_bytes), gib(gpu.total_bytes));
    }
  }
  for (size_t i = 0; i < r.gpu_health.size(); ++i) check_health(r, r.gpus[i], r.gpu_health[i], findings);
}

void check_own_gpus(std::span<const RankFacts> ranks, Findings& findings) {
  std::map<std::string, const RankFacts*> users;
  for (const RankFacts& r : ranks) {
    if (r.gpus.empty()) continue;
    const GpuInfo& gpu = r.gpus.front();
    const auto [first, is_new] = users.emplace(gpu.uuid, &r);
    if (is_new) continue;
    add(findings, kProblem,
        "{}: ranks {} and {} both use GPU {} ({}); start one rank per GPU (this machine shows {} and has "
        "{} ranks)",
        r.host, first->second->rank, r.rank, gpu.pci_bus_id, gpu.name, r.gpus_visible, r.local_size);
  }
}

// Checks that all ranks compute on the same kind of device and with the same libraries.
void check_alike(std::span<const RankFacts> ranks, Findings& findings) {
  const RankFacts& first = ranks.front();
  for (const RankFacts& r : ranks) {
    if (r.gpus.empty() != first.gpus.empty()) {
      add(findings, kProblem,
          "rank {} on {} has {} GPU, but rank {} on {} has {}; give all ranks one, or use device: cpu", first.rank,
          first.host, first.gpus.empty() ? "no" : "a", r.rank, r.host, r.gpus.empty() ? "none" : "one");
      break;
    }
  }
  for (const RankFacts& r : ranks) {
    for (const auto& [name, version] : r.versions) {
      const auto other = first.versions.find(name);
      if (r.local_rank > 0 || (other != first.versions.end() && other->second == version)) continue;
      add(findings, kWarning, "{}: {} is {}, but {} on {}; install the same version on every machine", r.host, name,
          version, other == first.versions.end() ? "not there" : other->second, first.host);
    }
  }
}

std::string rate_text(double value, const std::string& unit) {
  const bool is_flops = unit == "FLOP/s";
  return fmt::format("{:.4g} {}", value / (is_flops ? 1e12 : 1e9), is_flops ? "TFLOP/s" : "GB/s");
}

void print_rank(const RankFacts& r) {
  if (r.local_rank == 0) {
    std::cout << fmt::format("{}: {} cores{}, {:.1f} GiB of memory ({:.1f} available)\n", r.host, r.cores,
                             r.processor.empty() ? "" : " (" + r.processor + ")", gib(r.memory_bytes),
                             gib(r.memory_available_bytes));
  }
  if (r.gpus.empty()) {
    std::cout << fmt::format("  rank {}: {} CPU thread{}, matmuls by {}\n", r.rank, r.threads,
                             r.threads == 1 ? "" : "s", r.product_kernels);
  }
  for (size_t i = 0; i < r.gpus.size(); ++i) {
    const GpuInfo& gpu = r.gpus[i];
    std::cout << fmt::format("  {}: GPU {} {}, compute capability {}.{}, {:.1f} GiB ({:.1f} free){}\n",
                             i == 0 ? fmt::format("rank {}", r.rank) : "no rank", gpu.pci_bus_id, gpu.name,
                             gpu.compute_major, gpu.compute_minor, gib(gpu.total_bytes), gib(gpu.free_bytes),
                             r.gpu_health[i].setting.empty() ? "" : ", " + r.gpu_health[i].setting);
  }
}

// Returns a table of rates. Rows name the slowest and fastest rank if there are several.
Table rates_table(std::span<const MachineRates> ranks) {
  Table table;
  const int wide = ranks.size() > 1 ? 14 : 0;
  const int narrow = ranks.size() > 1 ? 4 : 0;
  for (const RateSpread& s : spreads(ranks)) {
    table.row()
        .add({"name", "on " + ranks.front().device, -46}, s.name)
        .add({"unit"}, s.unit)
        .add({"slowest"}, s.slowest)
        .add({"", wide > 0 ? "slowest" : "rate", 14}, rate_text(s.slowest, s.unit))
        .add({"slowest_rank", "rank", narrow}, s.slowest_rank)
        .add({"fastest"}, s.fastest)
        .add({"", "fastest", wide}, rate_text(s.fastest, s.unit))
        .add({"fastest_rank", "rank", narrow}, s.fastest_rank);
  }
  return table;
}

Table collectives_table(const CollectiveRates& collectives) {
  Table table;
  for (const CollectiveRate& c : collectives.sizes) {
    table.row()
        .add({"", fmt::format("{} ranks", collectives.ranks), -16}, c.op)
        .add({"", "MiB", 11, "{:.3f}", 1.0 / static_cast<double>(kMiB)}, c.bytes)
        .add({"", "us", 11, "{:.1f}", 1e6}, c.seconds)
        .add({"", "bus GB/s", 11, "{:.4g}", 1e-9}, c.bus_bytes_per_s);
  }
  return table;
}

}  // namespace

std::vector<Finding> find_problems(std::span<const RankFacts> ranks) {
  Findings findings;
  for (const RankFacts& r : ranks) {
    if (r.local_rank == 0) {
      check_driver(r, findings);
      check_memory(r, findings);
      check_disk(r, findings);
      check_set_up(r, ranks.size(), findings);
    }
    check_gpus(r, findings);
  }
  check_own_gpus(ranks, findings);
  if (!ranks.empty()) check_alike(ranks, findings);
  return findings;
}

bool all_have_gpus(std::span<const RankFacts> ranks) {
  return std::ranges::all_of(ranks,
                             [](const RankFacts& r) { return !r.gpus.empty() && has_kernels_for(r.gpus.front()); });
}

bool any_share_a_gpu(std::span<const RankFacts> ranks) {
  Findings findings;
  check_own_gpus(ranks, findings);
  return !findings.empty();
}

int count_hosts(std::span<const RankFacts> ranks) {
  return static_cast<int>(std::ranges::count(ranks, 0, &RankFacts::local_rank));
}

bool DoctorReport::is_ok() const { return std::ranges::none_of(findings, &Finding::prevents_training); }

OrderedJson to_json(const DoctorReport& report) {
  return {{"ok", report.is_ok()},
          {"findings", nlohmann::json(report.findings)},
          {"ranks", nlohmann::json(report.ranks)},
          {"rates", rates_table(report.rates).json()},
          {"machine", report.rates.empty() ? OrderedJson() : to_json(slowest_of(report.rates))}};
}

void print_report(const DoctorReport& report) {
  const RankFacts& first = report.ranks.front();
  const auto text = [](const auto& version) { return fmt::format("{} {}", version.first, version.second); };
  std::cout << fmt::format("{}\n\n", fmt::join(first.versions | std::views::transform(text), ", "));
  for (const RankFacts& facts : report.ranks) print_rank(facts);
  if (!report.rates.empty()) {
    std::cout << "\n" << rates_table(report.rates).text();
    if (const auto& collectives = report.rates.front().collectives) {
      std::cout << "\n"
                << collectives_table(*collectives).text()
                << fmt::format("latency {:.1f} us\n", collectives->latency_s * 1e6);
    }
  }
  std::cout << "\n";
  print_findings(report);
}

void print_findings(const DoctorReport& report) {
  for (const Finding& f : report.findings)
    std::cout << (f.prevents_training ? "PROBLEM  " : "warning  ") << printable(f.text, 4 * f.text.size()) << "\n";
  std::cout << (report.is_ok() ? "nothing prevents training\n" : "problems prevent training\n");
}

}  // namespace octavo
