#include "app/observers/slow_rank_watch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "app/process/events.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

SlowRankWatch::SlowRankWatch(const ObserverContext& context)
    : context_(context), every_(context.runtime.group().size() > 1 ? context.config.logging.slow_rank_every : 0) {}

void SlowRankWatch::before_step(const TrainingStep& step) {
  const bool is_first = std::exchange(is_first_, false);
  Stream& compute = context_.runtime.stream();
  if (every_ == 0 || is_first || step.number % every_ != 0 || measured_ || compute.profiler() != nullptr) return;
  const std::vector<TrainingStream> streams = training_streams(context_.state);
  profilers_.clear();
  streams_.clear();
  profilers_.reserve(streams.size());
  origin_ = Event(compute.device(), true);
  origin_.record(compute);
  for (const TrainingStream& stream : streams) {
    profilers_.emplace_back(stream.stream->device(), Profiler::Detail::kCollectives);
    stream.stream->set_profiler(&profilers_.back());
    streams_.push_back(stream.stream);
  }
  measured_ = step.number;
}

void SlowRankWatch::after_step(int64_t /*step*/) {
  for (Stream* stream : streams_) stream->set_profiler(nullptr);
  streams_.clear();
}

void SlowRankWatch::on_result(Step& step) {
  if (measured_ != step.number) return;
  measured_.reset();
  double collectives_ms = 0;
  for (const Profiler& profiler : profilers_) {
    for (const Profiler::Span& span : profiler.spans(origin_)) collectives_ms += span.end_ms - span.begin_ms;
  }
  const nlohmann::json mine = {collectives_ms, step.data_lost_ms, host_name()};
  std::vector<RankTimes> ranks;
  std::vector<std::string> hosts;
  for (const std::string& text : context_.runtime.group().gather(mine.dump())) {
    const nlohmann::json rank = nlohmann::json::parse(text);
    ranks.push_back({.collectives_ms = rank[0], .data_ms = rank[1]});
    hosts.push_back(rank[2]);
  }
  if (!context_.runtime.group().is_root()) return;
  const std::optional<SlowRank> slow = slow_ranks_.judge(find_slow_rank(ranks, step.step_ms));
  if (!slow) return;
  const auto rank = static_cast<size_t>(slow->rank);
  log_event(EventKind::kWarning, step.number,
            "step {}: rank {} on {} is slow in {}: the other ranks wait {:.0f} ms of a step of {:.0f} ms for it (in "
            "collectives it spends {:.0f} ms and waits {:.0f} ms for data)",
            step.number, rank, hosts[rank], slow->in_data ? "reading data" : "computing", slow->held_ms, step.step_ms,
            ranks[rank].collectives_ms, ranks[rank].data_ms);
}

}  // namespace octavo
