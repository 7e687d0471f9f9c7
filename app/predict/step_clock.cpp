#include "app/predict/step_clock.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "core/error.h"

namespace octavo {

namespace {

using StepOp = RecordedStep::StepOp;

RankSpread group_spread(std::string_view group, const MeshShape& mesh, int64_t ranks_per_node) {
  int64_t ranks = 1;
  int64_t stride = 1;  // Number of ranks on the inner axes that the group does not span.
  for (size_t i = std::size(kMeshAxes); i-- > 0;) {
    const int64_t size = mesh.*kMeshAxes[i].size;
    if (spans(group, kMeshAxes[i])) {
      ranks *= size;
    } else if (ranks == 1) {
      stride *= size;
    }
  }
  return spread(ranks, stride, ranks_per_node);
}

// Returns whether the ranks of a group work on the same samples, and therefore communicate tokens between matmuls.
bool shares_samples(std::string_view group) {
  return std::ranges::none_of(kMeshAxes,
                              [&](const MeshAxis& axis) { return axis.divides_samples && spans(group, axis); });
}

CostKind kind_of(const StepOp& op) {
  switch (op.op.bound) {
    case OpBound::kMatmul:
    case OpBound::kFp8Matmul:
      return CostKind::kMatmul;
    case OpBound::kAttentionForward:
    case OpBound::kAttentionBackward:
      return CostKind::kAttention;
    case OpBound::kCommunication:
      return CostKind::kCommunication;
    case OpBound::kMemory:
      break;
  }
  return op.of_compute ? memory_op(op.op.name).kind : CostKind::kCommunication;
}

// Returns whether an op is a transfer between pipeline stages.
bool is_between_stages(const StepOp& op) {
  const std::string_view name = op.op.name;
  return name == "send" || name == "receive";
}

std::string name_of(const StepOp& op) {
  return op.axis.empty() ? op.op.name : fmt::format("{}, {} axis", op.op.name, op.axis);
}

}  // namespace

StepClock::StepClock(RecordedStep step, const MachineRates& machine, const NetworkRates& network)
    : step_(std::move(step)), machine_(machine), network_(network) {
  for (const StepOp& op : step_.ops) {
    compute_s_.push_back(op.of_shard ? 0 : op_seconds(machine_, op.op, step_.document_length));
  }
}

StepClock::OpTime StepClock::transfer(const StepOp& op, double bytes, const MeshShape& mesh) const {
  const RankSpread ranks = group_spread(op.axis, mesh, step_.ranks_per_node);
  // The first and the last pipeline stage exchange the gradients of a tied embedding.
  if (std::string_view(op.op.name) == "exchange") {
    const double seconds = send_seconds(machine_, network_, ranks, bytes);
    return {.alone_s = seconds, .overlapped_s = seconds, .bytes = bytes};
  }
  const auto seconds = [&](Overlap overlap) {
    return collective_seconds(machine_, network_, ranks, collective_named(op.op.name), bytes, overlap);
  };
  // Tokens are sent between matmuls, in small tensors that reach the same rate whether or not matmuls overlap.
  const Overlap alone = shares_samples(op.axis) ? Overlap::kCompute : Overlap::kNothing;
  return {.alone_s = seconds(alone),
          .overlapped_s = seconds(Overlap::kCompute),
          .bytes = bytes,
          .slowdown = shares_samples(op.axis) ? 0 : kSlowdownOfCompute};
}

std::vector<StepClock::OpTime> StepClock::op_times(const MeshShape& mesh) const {
  const double of_shard = static_cast<double>(step_.shards) / static_cast<double>(mesh.shards());
  std::vector<OpTime> op_times;
  for (size_t i = 0; i < step_.ops.size(); ++i) {
    const StepOp& op = step_.ops[i];
    const double bytes = op.op.bytes * (op.of_shard ? of_shard : 1);
    if (op.op.bound == OpBound::kCommunication) {
      op_times.push_back(is_between_stages(op) ? OpTime{.bytes = bytes} : transfer(op, bytes, mesh));
      continue;
    }
    Op here = op.op;
    here.bytes = bytes;
    const double seconds = op.of_shard ? op_seconds(machine_, here, step_.document_length) : compute_s_[i];
    op_times.push_back({.alone_s = seconds, .overlapped_s = seconds, .bytes = bytes});
  }
  return op_times;
}

// Simulates the entries of the step once, in order.
class StepClock::Walk {
 public:
  Walk(const RecordedStep& step, std::vector<OpTime> op_times)
      : step_(step),
        op_times_(std::move(op_times)),
        sums_(op_times_.size()),
        sides_(step.streams),
        places_(step.signals + 1) {}

  void run(double middle_times);
  Times times() const;
  std::vector<TimedRange> timeline() && { return std::move(timeline_); }

 private:
  // Position of a stream when an event was recorded: the time on the compute stream, or the length of the queue on
  // another stream.
  struct Place {
    int stream = 0;
    double time_s = 0;
    size_t length = 0;
  };
  struct Transfer {
    size_t op;
    double times;
    double ready_s;  // Earliest start.
    Place after;     // Position that another side stream must reach before the start. None if its stream is 0.
  };
  // A stream other than the compute stream.
  struct Side {
    std::vector<Transfer> queue;
    std::vector<double> ends_s;  // End times of the completed transfers.
    double ready_s = 0;          // Earliest start of the next transfer after the events it waits for.
    Place after = {};
    double clock_s() const { return ends_s.empty() ? 0 : ends_s.back(); }
  };
  // Sums over all entries of an op.
  struct Sum {
    double times = 0;
    double takes_s = 0;
    double exposed_s = 0;
  };

  void wait(int stream, const Place& place);
  void advance(Side& side, size_t length);
  void add(size_t op, double times, double takes_s, double exposed_s);

  const RecordedStep& step_;
  std::vector<OpTime> op_times_;
  std::vector<Sum> sums_;         // Sums by op.
  std::vector<Side> sides_;       // Side streams by stream number. The first element is not used.
  std::vector<Place> places_;     // Positions by signal.
  double now_s_ = 0;              // Time on the compute stream.
  std::vector<double> begins_s_;  // Times at which the entries of the step begin.
  std::vector<TimedRange> timeline_;
  std::vector<size_t> open_;  // Indices in timeline_ of the ranges that have not ended.
};

void StepClock::Walk::run(double middle_times) {
  for (size_t i = 0; i < step_.entries.size(); ++i) {
    const auto& [action, stream, index] = step_.entries[i];
    while (begins_s_.size() < step_.begins.size() && step_.begins[begins_s_.size()] == i) begins_s_.push_back(now_s_);
    const double times = i >= step_.middle_begin && i < step_.middle_end ? middle_times : 1;
    Side& side = sides_[static_cast<size_t>(stream)];
    switch (action) {
      case OpRecord::Action::kOp:
        if (stream == 0) {
          add(index, times, op_times_[index].alone_s, op_times_[index].alone_s);
        } else {
          side.queue.push_back({index, times, side.ready_s, side.after});
        }
        break;
      case OpRecord::Action::kSignal:
        places_[index] = {stream, now_s_, side.queue.size()};
        break;
      case OpRecord::Action::kWait:
        wait(stream, places_[index]);
        break;
      case OpRecord::Action::kBegin:
        open_.push_back(timeline_.size());
        timeline_.push_back({.name = step_.ranges[index], .begin_s = now_s_});
        break;
      case OpRecord::Action::kEnd:
        timeline_[open_.back()].end_s = now_s_;
        open_.pop_back();
        break;
    }
  }
  for (Side& side : sides_) advance(side, side.queue.size());
}

void StepClock::Walk::add(size_t op, double times, double takes_s, double exposed_s) {
  Sum& sum = sums_[op];
  sum.times += times;
  sum.takes_s += times * takes_s;
  sum.exposed_s += times * exposed_s;
  now_s_ += exposed_s;
}

void StepClock::Walk::wait(int stream, const Place& place) {
  if (place.stream == stream) return;
  if (stream == 0) return advance(sides_[static_cast<size_t>(place.stream)], place.length);
  Side& side = sides_[static_cast<size_t>(stream)];
  if (place.stream == 0) {
    side.ready_s = std::max(side.ready_s, place.time_s);
    return;
  }
  CHECK(side.after.stream == 0 || side.after.stream == place.stream,
        "stream {} waits for stream {}, expected none but stream {}", stream, place.stream, side.after.stream);
  side.after = place;
}

// Computes when each of the first `length` entries in the queue of a side stream ends. Called when another stream waits
// for these entries.
void StepClock::Walk::advance(Side& side, size_t length) {
  while (side.ends_s.size() < length) {
    const auto& [op, times, ready_s, after] = side.queue[side.ends_s.size()];
    double start_s = std::max(side.clock_s(), ready_s);
    if (after.stream != 0 && after.length > 0) {
      Side& other = sides_[static_cast<size_t>(after.stream)];
      advance(other, after.length);
      start_s = std::max(start_s, other.ends_s[after.length - 1]);
    }
    // A transfer that begins while the compute stream waits runs alone. Others take the overlapped time until they end.
    const double takes_s = now_s_ > start_s ? op_times_[op].overlapped_s : op_times_[op].alone_s;
    side.ends_s.push_back(start_s + takes_s);
    const double exposed_s = std::max(side.clock_s() - now_s_, 0.0);
    const double hidden_s = std::clamp(takes_s - exposed_s, 0.0, std::max(now_s_ - start_s, 0.0));
    add(op, times, takes_s, exposed_s + op_times_[op].slowdown * hidden_s);
  }
}

StepClock::Times StepClock::Walk::times() const {
  Times times;
  std::map<std::string, StepCost> by_name;
  for (size_t i = 0; i < sums_.size(); ++i) {
    const StepOp& op = step_.ops[i];
    const Sum& sum = sums_[i];
    StepCost& cost = by_name[name_of(op)];
    cost.kind = kind_of(op);
    cost.seconds += sum.exposed_s;
    cost.flops += sum.times * op.op.flops;
    cost.bytes += sum.times * op_times_[i].bytes;
    if (op.op.bound == OpBound::kCommunication) times.communication_s += sum.takes_s;
  }
  for (auto& [name, cost] : by_name) {
    cost.name = name;
    times.costs.push_back(std::move(cost));
  }
  for (size_t i = 1; i < begins_s_.size(); ++i) times.entries_s.push_back(begins_s_[i] - begins_s_[i - 1]);
  if (!begins_s_.empty()) times.end_s = now_s_ - begins_s_.back();
  return times;
}

std::vector<StepClock::TimedRange> StepClock::timeline(const MeshShape& mesh) const {
  Walk walk(step_, op_times(mesh));
  walk.run(1);
  return std::move(walk).timeline();
}

StepClock::Times StepClock::run(const MeshShape& mesh, int64_t micro_batches) const {
  Walk walk(step_, op_times(mesh));
  walk.run(static_cast<double>(micro_batches - 2));
  return walk.times();
}

double StepClock::stage_transfer_s(const MeshShape& mesh) const {
  const auto found = std::ranges::find_if(step_.ops, is_between_stages);
  if (found == step_.ops.end()) return 0;
  return send_seconds(machine_, network_, group_spread(found->axis, mesh, step_.ranks_per_node), found->op.bytes);
}

StepTimeline step_timeline(const Job& job, const MachineRates& machine, const NetworkRates& network,
                           int64_t document_length) {
  const StepClock clock(record_step(job, document_length), machine, network);
  return {.ranges = clock.timeline(job.mesh.shape),
          .left_out = std::max<int64_t>(job.micro_batches() - kFirstMiddleLast, 0)};
}

namespace {

// Transfers from one stage to a neighbour. Both stages list them in the same order.
struct Link {
  std::vector<double> sent_s;    // Times at which the sender has the data.
  std::vector<double> posted_s;  // Times from which the receiver accepts them.
  std::vector<double> ends_s;
  size_t taken = 0;  // Number of transfers whose data the receiver has taken.

  // Computes the end of each transfer that both sides have begun.
  void advance(double transfer_s) {
    while (ends_s.size() < std::min(sent_s.size(), posted_s.size())) {
      const size_t i = ends_s.size();
      const double begin_s = std::max({sent_s[i], posted_s[i], ends_s.empty() ? 0 : ends_s.back()});
      ends_s.push_back(begin_s + transfer_s);
    }
  }
};

class Pipeline {
 public:
  explicit Pipeline(const PipelineStep& step)
      : step_(step),
        activations_(static_cast<size_t>(step.stages)),
        gradients_(activations_.size()),
        stages_(activations_.size()) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const PipelinePosition position{.stages = step.stages, .stage = static_cast<int64_t>(s), .chunks = step.chunks};
      stages_[s].entries = pipeline_entries(step.schedule, position, step.micro_batches);
      post(s, 0);
    }
  }

  PipelineTimes run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (begin(s) && end(s)) moves = true;
      }
    }
    PipelineTimes times;
    for (const Stage& stage : stages_) {
      CHECK(stage.next == stage.entries.size(), "a pipeline stage waits forever at entry {} of {}", stage.next,
            stage.entries.size());
      times.end_s = std::max(times.end_s, stage.now_s);
      times.busy_s.push_back(stage.busy_s);
    }
    return times;
  }

 private:
  using Kind = StepEntry::Kind;
  struct Stage {
    std::vector<StepEntry> entries;
    size_t next = 0;    // Index of the entry that runs or comes next.
    bool runs = false;  // Whether the entry has begun, so that now_s is the time at which it has computed its output.
    double now_s = 0;
    double busy_s = 0;
  };

  // Returns the link that an entry receives from (`is_input`) or sends to, or null if it has none: at the ends of the
  // model, and for weight gradients. Element i of activations_ and of gradients_ is the link on which stage i sends.
  Link* link(size_t stage, const StepEntry& entry, bool is_input) {
    if (entry.kind == Kind::kBackwardWeights) return nullptr;
    const size_t stages = stages_.size();
    const bool is_forward = entry.kind == Kind::kForward;
    const bool is_at_end = is_forward == is_input ? stage == 0 && entry.chunk == 0
                                                  : stage + 1 == stages && entry.chunk + 1 == step_.chunks;
    if (is_at_end) return nullptr;
    const size_t neighbour = (is_forward ? stage + stages - 1 : stage + 1) % stages;
    return &(is_forward ? activations_ : gradients_)[is_input ? neighbour : stage];
  }

  // Lets the transfer of an entry's input begin.
  void post(size_t s, size_t entry) {
    const Stage& stage = stages_[s];
    if (entry == stage.entries.size()) return;
    if (Link* in = link(s, stage.entries[entry], true)) in->posted_s.push_back(stage.now_s);
  }

  // Begins the next entry. Returns false if its input has not arrived, or if there is none.
  bool begin(size_t s) {
    Stage& stage = stages_[s];
    if (stage.next == stage.entries.size()) return false;
    if (stage.runs) return true;
    const StepEntry& entry = stage.entries[stage.next];
    if (Link* in = link(s, entry, true)) {
      in->advance(step_.transfer_s);
      if (in->ends_s.size() == in->taken) return false;
      stage.now_s = std::max(stage.now_s, in->ends_s[in->taken++]);
    }
    post(s, stage.next + 1);
    const double seconds = step_.seconds(static_cast<int64_t>(s), entry);
    stage.now_s += seconds;
    stage.busy_s += seconds;
    stage.runs = true;
    return true;
  }

  // Ends the entry that runs. Returns false if the buffer of its output is still in use.
  bool end(size_t s) {
    Stage& stage = stages_[s];
    const StepEntry& entry = stage.entries[stage.next];
    if (Link* out = link(s, entry, false)) {
      out->advance(step_.transfer_s);
      if (out->ends_s.size() < out->sent_s.size()) return false;
      if (!out->ends_s.empty()) stage.now_s = std::max(stage.now_s, out->ends_s.back());
      out->sent_s.push_back(stage.now_s);
    }
    stage.runs = false;
    ++stage.next;
    return true;
  }

  const PipelineStep& step_;
  std::vector<Link> activations_, gradients_;
  std::vector<Stage> stages_;
};

}  // namespace

PipelineTimes pipeline_times(const PipelineStep& step) { return Pipeline(step).run(); }

}  // namespace octavo
