#include "parallel/pipeline_group.h"

#include <utility>

#include "core/error.h"
#include "core/profiler.h"

namespace octavo {

PipelineGroup::PipelineGroup(const Options& options, Arena& arena, Stream& compute)
    : options_(options), compute_(&compute) {
  if (options.mesh == nullptr || options.mesh->shape().pipeline == 1) return;
  const int64_t stage = options.mesh->rank(Axis::kPipeline);
  const StageBoundaries& boundaries = options.boundaries;
  if (boundaries.has_previous) input_ = make_link(StageData::kActivations, neighbour(-1), arena);
  if (boundaries.has_next) output_ = make_link(StageData::kActivations, stage, arena);
  if (!options.training) return;
  if (boundaries.has_next) d_output_ = make_link(StageData::kGradients, neighbour(1), arena);
  if (boundaries.has_previous) d_input_ = make_link(StageData::kGradients, stage, arena);
}

int64_t PipelineGroup::neighbour(int64_t distance) const {
  const int64_t stages = options_.mesh->shape().pipeline;
  return (options_.mesh->rank(Axis::kPipeline) + stages + distance) % stages;
}

std::optional<PipelineGroup::Link> PipelineGroup::make_link(StageData data, int64_t sender, Arena& arena) const {
  const bool activations = data == StageData::kActivations;
  const int64_t stage = options_.mesh->rank(Axis::kPipeline);
  const int64_t receiver = stage != sender ? stage : neighbour(activations ? 1 : -1);
  return Link{.ranks = &options_.mesh->stage_link(data, sender),
              .color = options_.mesh->link_color(sender),
              .sends = stage == sender,
              .peer = static_cast<int>(stage == sender ? receiver : sender),
              .what = fmt::format("{} of pipeline stage {} for stage {}", activations ? "activations" : "gradients",
                                  sender, receiver),
              .buffer = arena.allocate("transfers of pipeline stages", options_.dtype,
                                       {options_.rows, options_.columns}, Lifetime::kStep),
              .transfers = Stream::beside(*compute_),
              .filled = Event(compute_->device()),
              .free = Event(compute_->device())};
}

// A plan does not predict how long the compute stream waits, so it records no op "wait".
void PipelineGroup::wait(Link& link, const Event& event) {
  std::optional<OpTimer> timer;
  const Op op{.name = "wait", .bound = OpBound::kCommunication, .axis = link.ranks->name().c_str()};
  if (!compute_->is_planned()) timer.emplace(*compute_, op, link.what.c_str());
  link.ranks->finish_transfer(link.what.c_str());
  event.wait(*compute_);
}

void PipelineGroup::send(std::optional<Link>& link, const Tensor& tensor) {
  if (!link) return;
  wait(*link, link->free);
  if (tensor.raw() != link->buffer.raw()) compute_->copy(link->buffer, tensor);
  link->filled.record(*compute_);
  link->filled.wait(link->transfers);
  link->ranks->send(link->buffer, link->peer, link->transfers, link->what.c_str());
  link->free.record(link->transfers);
}

void PipelineGroup::post(std::optional<Link>& link) {
  if (!link || link->posted) return;
  link->free.wait(link->transfers);
  link->ranks->receive(link->buffer, link->peer, link->transfers, link->what.c_str());
  link->filled.record(link->transfers);
  link->posted = true;
}

void PipelineGroup::receive(std::optional<Link>& link, const Tensor& tensor) {
  if (!link) return;
  post(link);
  wait(*link, link->filled);
  if (tensor.raw() != link->buffer.raw()) compute_->copy(tensor, link->buffer);
  link->free.record(*compute_);
  link->posted = false;
}

// Each communicator divides the ranks into pairs, so a rank has at most one transfer at a time. All ranks use the
// communicators in the same order.
void PipelineGroup::warm_up() {
  if (alone()) return;
  const auto transfer = [&](std::optional<Link>& link, int64_t color) {
    if (!link || link->color != color) return;
    link->sends ? send(link, link->buffer) : receive(link, link->buffer);
  };
  for (const auto& [in, out] : {std::pair(&input_, &output_), std::pair(&d_output_, &d_input_)}) {
    for (int64_t color = 0; color < options_.mesh->shape().link_colors(); ++color) {
      transfer(*in, color);
      transfer(*out, color);
    }
  }
}

std::vector<Stream*> PipelineGroup::streams() {
  std::vector<Stream*> streams;
  for (std::optional<Link>* link : {&input_, &output_, &d_output_, &d_input_}) {
    if (*link) streams.push_back(&(*link)->transfers);
  }
  return streams;
}

}  // namespace octavo
