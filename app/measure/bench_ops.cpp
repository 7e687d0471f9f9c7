#include "app/measure/bench_ops.h"

#include <algorithm>
#include <iostream>

#include "app/measure/bench.h"
#include "core/error.h"
#include "core/median.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string format_tflops(double tflops) {
  return tflops >= 1 ? fmt::format("{:.0f}", tflops) : fmt::format("{:.3f}", tflops);
}
std::string format_gb_s(double gb_s) { return fmt::format("{:.0f}", gb_s); }

// Of what bounds the op: its FLOPs if it has any.
std::string format_op_rate(const OrderedJson& op) {
  if (op["tflops"] > 0) return format_tflops(op["tflops"]) + " TFLOP/s";
  return op["gb_s"] > 0 ? format_gb_s(op["gb_s"]) + " GB/s" : "-";
}

}  // namespace

void add_ops(OrderedJson& result, const ProfiledStep& profiled) {
  std::vector<std::pair<std::string, Profiler::Total>> sorted(profiled.ops.begin(), profiled.ops.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.milliseconds > b.second.milliseconds; });
  result["profiled_step_ms"] = profiled.step_ms;
  OrderedJson& ops = result["ops"] = OrderedJson::array();
  for (const auto& [name, total] : sorted) {
    const double seconds = total.milliseconds / 1e3;
    ops.push_back({{"op", name},
                   {"calls", total.calls},
                   {"ms", total.milliseconds},
                   {"share", total.milliseconds / profiled.step_ms},
                   {"tflops", total.flops / seconds / 1e12},
                   {"gb_s", total.bytes / seconds / 1e9}});
  }
}

void add_exposed_communication(OrderedJson& result, const ProfiledStep& profiled) {
  double compute = 0;
  for (const auto& [name, total] : profiled.ops) {
    if (!total.communication) compute += total.milliseconds;
  }
  result["exposed_communication_ms"] = profiled.step_ms - compute;
}

void print_exposed_communication(const OrderedJson& r) {
  const double ms = r["exposed_communication_ms"];
  std::cout << fmt::format(
      "\ncommunication not hidden behind compute, with all gaps: {:.2f} ms, {:.1f}% of the profiled step\n", ms,
      100 * ms / r["profiled_step_ms"].get<double>());
}

void add_floors(OrderedJson& result, const ProfiledStep& profiled, const DeviceRates& rates,
                const std::vector<double>& forward_backward_times) {
  double ops = 0;
  double floor = 0;
  double products = 0;
  double products_floor = 0;
  for (OrderedJson& op : result["ops"]) {
    const Profiler::Total& total = profiled.ops.at(op["op"].get<std::string>());
    const double least = floor_ms(total, rates);
    op["fp8"] = total.fp8_flops > 0;
    op["floor_ms"] = least > 0 ? OrderedJson(least) : OrderedJson();
    op["ratio"] = least > 0 ? OrderedJson(total.milliseconds / least) : OrderedJson();
    ops += total.milliseconds;
    floor += least;
    if (total.flops == 0) continue;
    products += total.milliseconds;
    products_floor += least;
  }
  const double forward_backward = median(forward_backward_times);
  result["rates"] = {
      {"product_tflops", rates.product / 1e12},
      {"fp8_product_tflops", rates.fp8_product > 0 ? OrderedJson(rates.fp8_product / 1e12) : OrderedJson()},
      {"bandwidth_gb_s", rates.bandwidth / 1e9}};
  result["ops_ms"] = ops;
  result["floor_ms"] = floor;
  result["unexplained_ms"] = profiled.step_ms - ops;
  result["forward_backward_ms"] = forward_backward;
  result["products_and_attention_ms"] = products;
  result["products_and_attention_floor_ms"] = products_floor;
  result["forward_backward_ratio"] = forward_backward / products_floor;
}

void print_short_table(const OrderedJson& r) {
  std::cout << fmt::format("{:<24} {:>6} {:>10} {:>7} {:>9} {:>8}\n", "op", "calls", "ms", "share", "TFLOP/s", "GB/s");
  const double step_ms = r["profiled_step_ms"];
  double sum = 0;
  for (const OrderedJson& op : r["ops"]) {
    const double ms = op["ms"];
    sum += ms;
    std::cout << fmt::format("{:<24} {:>6} {:>10.3f} {:>6.1f}% {:>9} {:>8}\n", op["op"].get<std::string>(),
                             op["calls"].get<int64_t>(), ms, 100 * op["share"].get<double>(),
                             op["tflops"] > 0 ? format_tflops(op["tflops"]) : "-",
                             op["gb_s"] > 0 ? format_gb_s(op["gb_s"]) : "-");
  }
  std::cout << fmt::format("{:<24} {:>6} {:>10.3f} {:>6.1f}%\n", "all ops", "", sum, 100 * sum / step_ms);
}

void print_floor_table(const OrderedJson& r) {
  const OrderedJson& rates = r["rates"];
  std::cout << fmt::format("measured here: product {} TFLOP/s, ", format_tflops(rates["product_tflops"]));
  if (!rates["fp8_product_tflops"].is_null()) {
    std::cout << fmt::format("fp8 product {} TFLOP/s, ", format_tflops(rates["fp8_product_tflops"]));
  }
  std::cout << fmt::format("copy {} GB/s read and written\n\n", format_gb_s(rates["bandwidth_gb_s"]));

  const double step_ms = r["profiled_step_ms"];
  const auto row = [&](const std::string& name, const std::string& calls, double ms, const std::string& rate,
                       const OrderedJson& floor) {
    std::cout << fmt::format("{:<24} {:>6} {:>10.3f} {:>6.1f}% {:>14} {:>10} {:>6}\n", name, calls, ms,
                             100 * ms / step_ms, rate,
                             floor.is_null() ? "-" : fmt::format("{:.3f}", floor.get<double>()),
                             floor.is_null() ? "-" : fmt::format("{:.2f}", ms / floor.get<double>()));
  };
  std::cout << fmt::format("{:<24} {:>6} {:>10} {:>7} {:>14} {:>10} {:>6}\n", "op", "calls", "ms", "share", "rate",
                           "floor ms", "ratio");
  for (const OrderedJson& op : r["ops"]) {
    const std::string name = op["op"].get<std::string>() + (op["fp8"] ? " (fp8)" : "");
    row(name, std::to_string(op["calls"].get<int64_t>()), op["ms"], format_op_rate(op), op["floor_ms"]);
  }
  row("all ops", "", r["ops_ms"], "", r["floor_ms"]);
  row("not explained", "", r["unexplained_ms"], "", OrderedJson());
  row("profiled step", "", step_ms, "", r["floor_ms"]);
  std::cout << fmt::format(
      "\nforward and backward {:.2f} ms: {:.3f} x the floor of its products and attention, {:.2f} ms (which took "
      "{:.2f} "
      "ms)\n",
      r["forward_backward_ms"].get<double>(), r["forward_backward_ratio"].get<double>(),
      r["products_and_attention_floor_ms"].get<double>(), r["products_and_attention_ms"].get<double>());
}

}  // namespace octavo
