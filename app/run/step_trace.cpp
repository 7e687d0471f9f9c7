#include "app/run/step_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "parallel/ranks/machines.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;
using Span = Profiler::Span;

constexpr int kHostThread = 0;  // Number of the host thread. Streams have the numbers after it.
constexpr int kClockRounds = 15;

const char* category(const Span& span) {
  if (span.kind == Profiler::Kind::kHostRange) return "host";
  if (span.kind == Profiler::Kind::kRange) return "range";
  switch (span.op.bound) {
    case OpBound::kMatmul:
    case OpBound::kFp8Matmul:
      return "product";
    case OpBound::kAttentionForward:
    case OpBound::kAttentionBackward:
      return "attention";
    case OpBound::kCommunication:
      return "communication";
    case OpBound::kMemory:
      break;
  }
  return "memory";
}

// Returns the properties of an op, and its rates if it took time.
OrderedJson describe(const Op& op, double ms) {
  OrderedJson args = OrderedJson::object();
  if (op.m > 0) args["shape"] = fmt::format("{} x {} over {}", op.m, op.n, op.k);
  if (op.precision[0] != '\0') args["precision"] = op.precision;
  if (op.axis[0] != '\0') args["axis"] = op.axis;
  if (op.bytes > 0) args["bytes"] = static_cast<int64_t>(op.bytes);
  if (op.flops > 0) args["flops"] = static_cast<int64_t>(op.flops);
  if (ms <= 0) return args;
  if (op.flops > 0) args["TFLOP/s"] = op.flops / ms / 1e9;
  if (op.bytes > 0) args["GB/s"] = op.bytes / ms / 1e6;
  return args;
}

OrderedJson metadata(const char* what, int rank, int thread, const char* key, const OrderedJson& value) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{key, value}}}};
}

OrderedJson complete_event(const Span& span, int rank, int thread, double begin_ms, double end_ms) {
  const std::string name = *span.what == '\0' ? span.op.name : fmt::format("{} {}", span.op.name, span.what);
  OrderedJson event{{"ph", "X"},
                    {"name", name},
                    {"cat", category(span)},
                    {"pid", rank},
                    {"tid", thread},
                    {"ts", begin_ms * 1e3},
                    {"dur", std::max(end_ms - begin_ms, 0.0) * 1e3}};
  OrderedJson args = span.kind == Profiler::Kind::kOp ? describe(span.op, end_ms - begin_ms) : OrderedJson();
  if (!args.empty()) event["args"] = std::move(args);
  return event;
}

// Returns the offset of this rank's host clock to rank 0's clock, from the times at which ranks leave a barrier.
double clock_offset_ms(ProcessGroup& group) {
  std::vector<double> left;
  for (int round = 0; round < kClockRounds; ++round) {
    group.barrier();
    left.push_back(host_clock_ms());
  }
  const std::string of_root = group.broadcast(nlohmann::json(left).dump());
  if (group.machine() == 0) return 0;
  const auto root_left = nlohmann::json::parse(of_root).get<std::vector<double>>();
  for (size_t i = 0; i < left.size(); ++i) left[i] -= root_left[i];
  std::nth_element(left.begin(), left.begin() + kClockRounds / 2, left.end());
  return left[kClockRounds / 2];
}

}  // namespace

StepTrace::StepTrace(TrainingState& state, ProcessGroup& group)
    : group_(group), origin_(state.mesh.stream().device(), true) {
  const Mesh& mesh = state.mesh;
  if (mesh.shape().pipeline > 1) of_stage_ = fmt::format(" of pipeline stage {}", mesh.rank(Axis::kPipeline));
  for (const TrainingStream& one : training_streams(state)) {
    tracks_.push_back({one.name, one.stream, Profiler(one.stream->device(), Profiler::Detail::kTimeline)});
  }
  for (Track& track : tracks_) track.stream->synchronize();
  const double clock_offset = clock_offset_ms(group);
  const double before = host_clock_ms();
  origin_.record(state.mesh.stream());
  origin_.synchronize();
  origin_ms_ = (before + host_clock_ms()) / 2;
  begin_ms_ = nlohmann::json::parse(group.broadcast(nlohmann::json(origin_ms_).dump())).get<double>() + clock_offset;
  for (Track& track : tracks_) track.stream->set_profiler(&track.profiler);
  step_.emplace(state.mesh.stream(), "step");
}

StepTrace::~StepTrace() { stop(); }

void StepTrace::stop() {
  if (!step_) return;
  step_.reset();
  for (Track& track : tracks_) track.stream->set_profiler(nullptr);
}

// Returns the events of this rank, one per line.
std::string StepTrace::events(int rank) const {
  const bool on_gpu = tracks_.front().stream->is_cuda();
  std::string lines;
  const auto add = [&](const OrderedJson& event) { lines += event.dump() + ",\n"; };
  add(metadata("process_name", rank, 0, "name", fmt::format("rank {}{} on {}", rank, of_stage_, host_name())));
  add(metadata("process_sort_index", rank, 0, "sort_index", rank));
  add(metadata("thread_name", rank, kHostThread, "name", "host"));
  add(metadata("thread_sort_index", rank, kHostThread, "sort_index", kHostThread));
  const double stream_ms = origin_ms_ - begin_ms_;
  for (size_t i = 0; i < tracks_.size(); ++i) {
    const int thread = kHostThread + 1 + static_cast<int>(i);
    const std::vector<Span> spans = tracks_[i].profiler.spans(origin_);
    if (spans.empty()) continue;
    add(metadata("thread_name", rank, thread, "name", tracks_[i].name));
    add(metadata("thread_sort_index", rank, thread, "sort_index", thread));
    for (const Span& span : spans) {
      const bool of_host = span.kind == Profiler::Kind::kHostRange;
      if (of_host || on_gpu) {
        add(complete_event(span, rank, kHostThread, span.host_begin_ms - begin_ms_, span.host_end_ms - begin_ms_));
      }
      if (!of_host) add(complete_event(span, rank, thread, stream_ms + span.begin_ms, stream_ms + span.end_ms));
    }
  }
  return lines;
}

void StepTrace::write(const std::string& path, const std::string& about) {
  stop();
  for (Track& track : tracks_) track.stream->synchronize();
  std::vector<std::string> of_ranks = group_.gather(events(group_.rank()));
  group_.throw_file_errors_on_all_ranks("writing the trace", [&] {
    if (!group_.is_root()) return;
    std::string text = fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"octavo\":{}}},\"traceEvents\":[\n",
                                   nlohmann::json(about).dump());
    for (std::string& lines : of_ranks) text += std::exchange(lines, {});
    text.replace(text.size() - 2, 2, "\n]}\n");  // Replaces the last comma.
    write_output_file(path, kStepTraceFile, text);
  });
}

}  // namespace octavo
