#include "app/measure/bench_ops.h"

#include <algorithm>
#include <iostream>

#include "app/measure/bench.h"
#include "core/error.h"
#include "core/median.h"
#include "core/table.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

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
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.milliseconds > b.second.milliseconds; });
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
  double products = 0;
  double products_floor = 0;
  for (const auto& [name, total] : profiled.ops) {
    const double least = floor_ms(total, floors.rates);
    ops += total.milliseconds;
    floor += least;
    if (total.flops == 0) continue;
    products += total.milliseconds;
    products_floor += least;
  }
  const double forward_backward = median(floors.forward_backward_times);
  const double fp8_product = floors.rates.fp8_product;
  result["rates"] = {{"product_tflops", floors.rates.product / 1e12},
                     {"fp8_product_tflops", fp8_product > 0 ? OrderedJson(fp8_product / 1e12) : OrderedJson()},
                     {"bandwidth_gb_s", floors.rates.bandwidth / 1e9}};
  result["ops_ms"] = ops;
  result["floor_ms"] = floor;
  result["unexplained_ms"] = profiled.step_ms - ops;
  result["forward_backward_ms"] = forward_backward;
  result["products_and_attention_ms"] = products;
  result["products_and_attention_floor_ms"] = products_floor;
  result["forward_backward_ratio"] = forward_backward / products_floor;
}

}  // namespace

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

void print_exposed_communication(const OrderedJson& r) {
  const double ms = r["exposed_communication_ms"];
  std::cout << fmt::format(
      "\nexposed communication, including gaps between ops: {:.2f} ms, {:.1f}% of the profiled step\n", ms,
      100 * ms / r["profiled_step_ms"].get<double>());
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
  if (floors == nullptr) return;
  const DeviceRates& rates = floors->rates;
  std::cout << fmt::format(
      "\nmeasured rates: matmul {:.4g} TFLOP/s, {}copy {:.0f} GB/s (read and written); profiled step {:.3f} ms, "
      "outside of ops {:.3f} ms\nforward and backward {:.2f} ms: {:.3f} times the lower bound of matmuls and "
      "attention, {:.2f} ms (they took {:.2f} ms)\n",
      rates.product / 1e12,
      rates.fp8_product > 0 ? fmt::format("FP8 matmul {:.4g} TFLOP/s, ", rates.fp8_product / 1e12) : "",
      rates.bandwidth / 1e9, profiled.step_ms, r["unexplained_ms"].get<double>(),
      r["forward_backward_ms"].get<double>(), r["forward_backward_ratio"].get<double>(),
      r["products_and_attention_floor_ms"].get<double>(), r["products_and_attention_ms"].get<double>());
}

}  // namespace octavo
