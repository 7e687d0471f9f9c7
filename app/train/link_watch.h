// Says which link between machines the others wait for, and in which collective.
//
// Every logging.links_every steps the ranks time their collectives. Where these take long, or longer than before
// (app/guard/transfer_growth.h), every link is measured by itself, between two steps; a link that is slow beside the
// others is measured again behind the next measured step, and named if it still is: what comes and goes is the noise of
// shared machines. On one machine nothing is done.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/guard/link_suspects.h"
#include "app/guard/transfer_growth.h"
#include "app/log/step_results.h"
#include "app/process/runtime.h"
#include "app/train/collective_times.h"
#include "parallel/links.h"

namespace octavo {

// The warning's text: the links, the collective in which others wait for them, and what of a step that takes.
std::string describe(const SlowLinks& links, const TransferTime& time, const Machines& machines,
                     std::span<const std::string> hosts);

class LinkWatch {
 public:
  // A collective. Both must outlive it.
  LinkWatch(const LoggingConfig& config, Runtime& runtime);

  // Around what queues a step; the first of a run, which is not like the others, is not measured.
  void begin_step(TrainingState& state, int64_t step, bool first);
  void end_step() { times_.stop(); }
  // Of each step once its result is there. A collective where the step was measured.
  void finish_step(const StepResult& result);

  // Whether links are to be measured, which is for when nothing is queued: the same on all ranks.
  bool wants_probe() const { return wants_probe_; }
  // A collective. `scratch`: memory of the device, whose contents are lost.
  void probe(const Tensor& scratch);

 private:
  bool has_room();
  bool judge(const StepResult& result, const std::vector<std::string>& of_ranks);

  Runtime& runtime_;
  int64_t every_ = 0;  // 0: never
  CollectiveTimes times_;
  std::optional<int64_t> measured_;  // the step whose times are recorded
  bool wants_probe_ = false;
  bool said_no_room_ = false;
  // Of rank 0.
  std::vector<std::string> hosts_;  // by machine
  TransferGrowth growth_;
  LinkSuspects suspects_;
};

}  // namespace octavo
