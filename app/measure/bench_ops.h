// The tables of `octavo bench`: what each op of a step takes, alone or beside its floor.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/measure/bench_rates.h"
#include "core/profiler.h"

namespace octavo {

// The time of a step with the profiler on, and of each op in it by name. On a machine with other load this step may
// take much longer than the timed ones, so what is said of its ops is relative to it.
struct ProfiledStep {
  double step_ms = 0;
  std::map<std::string, Profiler::Total> ops;
};

// The times that ops are compared with.
struct Floors {
  DeviceRates rates;
  std::vector<double> forward_backward_times;  // milliseconds of the forward and backward passes of steps
};

// Adds to the result of a bench profiled_step_ms and ops, [{op, calls, ms, share, tflops, gb_s}], the longest first;
// share is relative to profiled_step_ms. With `floors`, which may be null, it also adds what --ops shows: to each op
// fp8, floor_ms and ratio (null without a floor); rates; ops_ms, floor_ms, unexplained_ms (of the profiled step,
// outside of ops), forward_backward_ms, products_and_attention_ms, products_and_attention_floor_ms and
// forward_backward_ratio (to that floor).
void add_ops(nlohmann::ordered_json& result, const ProfiledStep& profiled, const Floors* floors);

// Adds exposed_communication_ms: the profiled step without its ops other than collectives, so with the gaps between
// ops.
void add_exposed_communication(nlohmann::ordered_json& result, const ProfiledStep& profiled);

// Print to standard output what was added to `result`.
void print_ops(const nlohmann::ordered_json& result, const ProfiledStep& profiled, const Floors* floors);
void print_exposed_communication(const nlohmann::ordered_json& result);

}  // namespace octavo
