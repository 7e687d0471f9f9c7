#include "app/observers/slow_rank.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "app/observers/step_observer.h"
#include "app/process/events.h"
#include "core/profiler.h"
#include "parallel/ranks/machines.h"

namespace octavo {

namespace {

constexpr double kMinShare = 0.1;
constexpr double kMinHeldMs = 2;
constexpr int kSteps = 3;

// Returns the upper median. With two ranks that is the rank that waits longer.
double median(std::span<const RankTimes> ranks, double RankTimes::*time) {
  std::vector<double> times;
  for (const RankTimes& rank : ranks) times.push_back(rank.*time);
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Observer that reports the rank that the others wait for (app/observers/slow_rank.h), and whether computing or reading
// data makes it slow. Every logging.slow_rank_every steps all ranks measure their collectives; on a GPU that records
// two events per collective, without any waiting. With pipeline stages all ranks also measure the logged steps, and the
// observer sets the metrics pipeline_bubble and pipeline_slowest_stage. Does nothing in a run with one rank.
class SlowRankWatch : public StepObserver {
 public:
  explicit SlowRankWatch(const ObserverContext& context)
      : context_(context), every_(context.runtime.group().size() > 1 ? context.config.logging.slow_rank_every : 0) {}
  SlowRankWatch(const SlowRankWatch&) = delete;  // Not copyable, because the streams point to its profilers.
  SlowRankWatch& operator=(const SlowRankWatch&) = delete;

  void before_step(const TrainingStep& step) override {
    const bool is_first = std::exchange(is_first_, false);
    Stream& compute = context_.runtime.stream();
    const bool wanted = looks_for_slow_rank(step.number) || reports_stages(step.number);
    if (!wanted || is_first || compute.profiler() != nullptr) return;
    const std::vector<TrainingStream> streams = training_streams(context_.state);
    Measurement& measurement = measurements_.emplace_back(step.number, Event(compute.device(), true));
    measurement.profilers.reserve(streams.size());
    measurement.origin.record(compute);
    for (const TrainingStream& stream : streams) {
      // A stage waits for its neighbours for many reasons, so only ranks of one stage are compared.
      if (stream.between_stages) continue;
      measurement.profilers.emplace_back(stream.stream->device(), Profiler::Detail::kCollectives);
      stream.stream->set_profiler(&measurement.profilers.back());
      streams_.push_back(stream.stream);
    }
  }

  void after_step(int64_t /*step*/) override {
    for (Stream* stream : streams_) stream->set_profiler(nullptr);
    streams_.clear();
  }

  void on_result(Step& step) override {
    if (measurements_.empty() || measurements_.front().step != step.number) return;
    const Measurement measurement = std::move(measurements_.front());
    measurements_.pop_front();
    RankTimes times{.data_ms = step.data_lost_ms};
    for (const Profiler& profiler : measurement.profilers) {
      for (const Profiler::Span& span : profiler.spans(measurement.origin)) {
        const bool over_stages = stages() > 1 && spans(span.op.axis, kMeshAxes[static_cast<size_t>(Axis::kPipeline)]);
        (over_stages ? times.stages_ms : times.collectives_ms) += span.end_ms - span.begin_ms;
      }
    }
    const nlohmann::json mine = {times.collectives_ms, times.data_ms, times.stages_ms, host_name()};
    std::vector<RankTimes> ranks;
    std::vector<std::string> hosts;
    for (const std::string& text : context_.runtime.group().gather(mine.dump())) {
      const nlohmann::json rank = nlohmann::json::parse(text);
      ranks.push_back({.collectives_ms = rank[0], .data_ms = rank[1], .stages_ms = rank[2]});
      hosts.push_back(rank[3]);
    }
    if (!context_.runtime.group().is_root()) return;
    if (stages() > 1) {
      const StageTimes pipeline = stage_times(ranks, stages(), step.step_ms);
      step.row.set("pipeline_bubble", pipeline.bubble);
      step.row.set("pipeline_slowest_stage", static_cast<double>(pipeline.slowest));
    }
    if (looks_for_slow_rank(step.number)) warn_of_slow_rank(step, ranks, hosts);
  }

  void on_new_state() override {
    is_first_ = true;
    measurements_.clear();
  }

 private:
  // Times of the streams in one step.
  struct Measurement {
    int64_t step;
    Event origin;                          // Event at the start of the step.
    std::vector<Profiler> profilers = {};  // One per stream.
  };
  int64_t stages() const { return context_.runtime.mesh().shape().pipeline; }
  bool looks_for_slow_rank(int64_t step) const { return every_ > 0 && step % every_ == 0; }
  bool reports_stages(int64_t step) const { return stages() > 1 && step % context_.config.logging.every == 0; }

  void warn_of_slow_rank(const Step& step, std::span<const RankTimes> ranks, std::span<const std::string> hosts) {
    const std::optional<SlowRank> slow = slow_ranks_.judge(find_slow_rank_of_stage(ranks, step.step_ms));
    if (!slow) return;
    const auto rank = static_cast<size_t>(slow->rank);
    log_event(EventKind::kWarning, step.number,
              "step {}: rank {} on {} is slow in {}: the other ranks wait for it for {:.0f} ms of a step of {:.0f} ms "
              "(the slow rank spends {:.0f} ms in collectives and waits {:.0f} ms for data)",
              step.number, rank, hosts[rank], slow->in_data ? "reading data" : "computing", slow->held_ms, step.step_ms,
              ranks[rank].collectives_ms, ranks[rank].data_ms);
  }

  // Returns the slow rank that delays the ranks of its pipeline stage the most.
  std::optional<SlowRank> find_slow_rank_of_stage(std::span<const RankTimes> ranks, double step_ms) const {
    const auto in_stage = ranks.size() / static_cast<size_t>(stages());
    std::optional<SlowRank> slowest;
    for (size_t first = 0; first < ranks.size(); first += in_stage) {
      std::optional<SlowRank> slow = find_slow_rank(ranks.subspan(first, in_stage), step_ms);
      if (!slow || (slowest && slowest->held_ms >= slow->held_ms)) continue;
      slow->rank += static_cast<int>(first);
      slowest = slow;
    }
    return slowest;
  }

  const ObserverContext context_;
  int64_t every_;                 // 0 if no slow rank is looked for.
  std::vector<Stream*> streams_;  // Streams that are being recorded.
  // Measured steps whose results have not arrived, oldest first. There can be two, because a step is queued before the
  // result of the previous step arrives.
  std::deque<Measurement> measurements_;
  bool is_first_ = true;  // The first step is not measured, because it differs from the others.
  SlowRanks slow_ranks_;  // Used on rank 0.
};

}  // namespace

StageTimes stage_times(std::span<const RankTimes> ranks, int64_t stages, double step_ms) {
  const auto in_stage = ranks.size() / static_cast<size_t>(stages);
  StageTimes times;
  double least_ms = std::numeric_limits<double>::infinity();
  double sum_ms = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    double stage_ms = 0;
    for (const RankTimes& rank : ranks.subspan(static_cast<size_t>(stage) * in_stage, in_stage)) {
      stage_ms += rank.stages_ms;
    }
    sum_ms += stage_ms;
    if (stage_ms >= least_ms) continue;
    least_ms = stage_ms;
    times.slowest = stage;
  }
  times.bubble = sum_ms / static_cast<double>(ranks.size()) / step_ms;
  return times;
}

std::optional<SlowRank> find_slow_rank(std::span<const RankTimes> ranks, double step_ms) {
  if (ranks.size() < 2) return std::nullopt;
  const auto slowest = std::ranges::min_element(ranks, {}, &RankTimes::collectives_ms);
  const double held_ms = median(ranks, &RankTimes::collectives_ms) - slowest->collectives_ms;
  if (held_ms < std::max(kMinHeldMs, kMinShare * step_ms)) return std::nullopt;
  double least_data_ms = slowest->data_ms;
  for (const RankTimes& rank : ranks) least_data_ms = std::min(least_data_ms, rank.data_ms);
  return SlowRank{.rank = static_cast<int>(slowest - ranks.begin()),
                  .held_ms = held_ms,
                  .in_data = slowest->data_ms - least_data_ms >= held_ms / 2};
}

std::optional<SlowRank> SlowRanks::judge(const std::optional<SlowRank>& found) {
  const int rank = found ? found->rank : -1;
  in_a_row_ = rank == rank_ ? in_a_row_ + 1 : 1;
  rank_ = rank;
  return in_a_row_ >= kSteps && found && reported_.insert(rank).second ? found : std::nullopt;
}

std::unique_ptr<StepObserver> make_slow_rank_watch(const ObserverContext& context) {
  return std::make_unique<SlowRankWatch>(context);
}

}  // namespace octavo
