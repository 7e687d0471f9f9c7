#include "app/train/link_watch.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/format.h"
#include "core/log.h"

namespace octavo {

std::string describe(const SlowLinks& links, const TransferTime& time, const Machines& machines,
                     std::span<const std::string> hosts) {
  const double at_others = time.ms * links.bytes_per_s / links.others;
  const std::string beside = time.before_ms ? fmt::format("beside {:.0f} ms before", *time.before_ms)
                                            : fmt::format("{:.0f} ms at the rate of the others", at_others);
  return fmt::format("slow link: {}; ranks wait for it in {}: {:.0f} ms of a step of {:.0f} ms, {}",
                     describe(links, machines, hosts), time.kind, time.ms, time.step_ms, beside);
}

LinkWatch::LinkWatch(const LoggingConfig& config, Runtime& runtime) : runtime_(runtime) {
  const Machines& machines = runtime.mesh().machines();
  if (machines.count() == 1 || config.links_every == 0) return;
  every_ = config.links_every;
  const std::vector<std::string> of_ranks = runtime.group().gather(host_name());
  for (int machine = 0; machine < machines.count() && runtime.group().is_root(); ++machine) {
    hosts_.push_back(of_ranks[static_cast<size_t>(machines.first_rank(machine))]);
  }
}

void LinkWatch::begin_step(TrainingState& state, int64_t step, bool first) {
  if (every_ == 0 || first || step % every_ != 0 || measured_) return;
  if (times_.start(state, training_rank(runtime_))) measured_ = step;
}

void LinkWatch::finish_step(const StepResult& result) {
  if (measured_ != result.step) return;
  measured_.reset();
  const Mesh& mesh = runtime_.mesh();
  const nlohmann::json times = times_.take([&](const char* name) { return mesh.leaves_machine(name); });
  const std::vector<std::string> of_ranks = runtime_.group().gather(times.dump());
  const bool wants = runtime_.group().is_root() && judge(result, of_ranks);
  wants_probe_ = runtime_.group().all_reduce_max(wants || wants_probe_ ? 1 : 0) == 1;
}

// Of each kind the time that all ranks are in it.
bool LinkWatch::judge(const StepResult& result, const std::vector<std::string>& of_ranks) {
  using Times = std::map<std::string, double>;
  Times least;
  for (const std::string& text : of_ranks) {
    for (const auto& [kind, ms] : nlohmann::json::parse(text).get<Times>()) {
      const auto [found, is_new] = least.emplace(kind, ms);
      if (!is_new) found->second = std::min(found->second, ms);
    }
  }
  return growth_.judge(result.step_ms, least) || suspects_.wants_look();
}

// NCCL takes memory for the first message between two ranks, and a run must not end for want of it.
bool LinkWatch::has_room() {
  constexpr int64_t kBytes = kGiB;
  const bool lacks = runtime_.stream().is_cuda() && runtime_.available_bytes() < kBytes;
  if (runtime_.group().all_reduce_max(lacks ? 1 : 0) == 0) return true;
  if (runtime_.group().is_root() && !said_no_room_) {
    log_warning("links between machines are not measured, as a GPU has less than {:.0f} GiB free", gib(kBytes));
  }
  said_no_room_ = true;
  return false;
}

void LinkWatch::probe(const Tensor& scratch) {
  wants_probe_ = false;
  if (!has_room()) return;
  const Machines& machines = runtime_.mesh().machines();
  const std::vector<Link> links =
      measure_links(runtime_.mesh().world(), runtime_.group(), machines, scratch, runtime_.stream());
  if (!runtime_.group().is_root()) return;
  for (const SlowLinks& slow : suspects_.judge(find_slow_links(links, machines))) {
    log_warning("{}", describe(slow, growth_.time(), machines, hosts_));
    growth_.forget();
  }
}

}  // namespace octavo
