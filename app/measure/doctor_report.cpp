#include "app/measure/doctor_report.h"

#include <algorithm>
#include <iostream>
#include <tuple>

#include "app/measure/doctor_facts.h"
#include "core/error.h"
#include "core/format.h"
#include "core/printable.h"
#include "core/table.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

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

std::vector<RateSpread> spreads(std::span<const MachineRates> ranks) {
  std::vector<RateSpread> all;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int number = static_cast<int>(rank);
    MachineRates rates = ranks[rank];
    size_t i = 0;
    visit_rates(rates, [&](const std::string& name, const std::string& unit, double value) {
      if (rank == 0) all.push_back({name, unit, value, value, number, number});
      RateSpread& s = all.at(i++);
      if (value < s.slowest) std::tie(s.slowest, s.slowest_rank) = std::pair(value, number);
      if (value > s.fastest) std::tie(s.fastest, s.fastest_rank) = std::pair(value, number);
    });
  }
  return all;
}

bool DoctorReport::is_ok() const {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.prevents_training; });
}

OrderedJson to_json(const DoctorReport& report) {
  OrderedJson findings = OrderedJson::array();
  for (const Finding& f : report.findings)
    findings.push_back({{"prevents_training", f.prevents_training}, {"text", f.text}});
  OrderedJson ranks = OrderedJson::array();
  for (const RankFacts& facts : report.ranks) ranks.push_back(OrderedJson(nlohmann::json(facts)));
  return {{"ok", report.is_ok()},
          {"findings", findings},
          {"ranks", ranks},
          {"rates", rates_table(report.rates).json()},
          {"machine", report.rates.empty() ? OrderedJson() : to_json(slowest_of(report.rates))}};
}

void print_report(const DoctorReport& report) {
  const RankFacts& first = report.ranks.front();
  std::string versions;
  for (const auto& [name, version] : first.versions) {
    versions += fmt::format("{}{} {}", versions.empty() ? "" : ", ", name, version);
  }
  std::cout << versions << "\n\n";
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
