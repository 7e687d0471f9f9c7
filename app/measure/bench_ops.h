// Tables of `octavo bench`: the time of each op of a step, alone or compared with its lower bound.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/measure/bench_rates.h"
#include "core/profiler.h"

namespace octavo {

// Time of a step with the profiler enabled, and of each op in it by name. If other processes use the machine, this step
// may take much longer than the timed steps, so shares of ops are relative to this step.
struct ProfiledStep {
  double step_ms = 0;
  std::map<std::string, Profiler::Total> ops;
};

// Rates and times from which lower bounds of ops are computed.
struct Floors {
  DeviceRates rates;
  std::vector<double> forward_backward_times;  // Time of the forward and backward passes of each step, in milliseconds.
};

// Adds profiled_step_ms and ops, a list of {op, calls, ms, share, tflops, gb_s} sorted by time, to the result of a
// bench. share is relative to profiled_step_ms. If `floors` is not null, also adds the results of --ops: fp8, floor_ms
// and ratio of each op (null without a floor); rates; ops_ms, floor_ms and unexplained_ms (time of the profiled step
// outside of ops); and forward_backward_ms, products_and_attention_ms, products_and_attention_floor_ms and
// forward_backward_ratio (relative to that floor).
void add_ops(nlohmann::ordered_json& result, const ProfiledStep& profiled, const Floors* floors);

// Adds exposed_communication_ms: the time of the profiled step minus its ops other than collectives, which includes
// gaps between ops.
void add_exposed_communication(nlohmann::ordered_json& result, const ProfiledStep& profiled);

// Prints to standard output what add_ops() added to `result`.
void print_ops(const nlohmann::ordered_json& result, const ProfiledStep& profiled, const Floors* floors);
// Prints to standard output what add_exposed_communication() added to `result`.
void print_exposed_communication(const nlohmann::ordered_json& result);

}  // namespace octavo
