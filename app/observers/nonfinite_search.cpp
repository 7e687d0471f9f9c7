#include "app/observers/nonfinite_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/observers/step_observer.h"
#include "app/process/events.h"
#include "core/error.h"
#include "core/format.h"
#include "kernels/fp8/fp8_cpu.h"
#include "kernels/math/cpu_math.h"
#include "parallel/ranks/machines.h"

namespace octavo {

namespace {

// Computes the largest magnitude of a tensor and waits for it.
class Magnitudes {
 public:
  // `scratch` [1] float32 is overwritten by every call.
  Magnitudes(const Tensor& scratch, Stream& stream) : scratch_(scratch), stream_(stream) {}

  // Returns max |x|. Infinity is larger than any finite number, and NaN is larger than infinity.
  float of(const Tensor& x) const {
    float magnitude = 0;
    stream_.zero(scratch_);
    amax({.out = scratch_, .x = x.view({x.numel()})}, stream_);
    stream_.copy(&magnitude, scratch_.raw(), sizeof(magnitude));
    stream_.synchronize();
    return magnitude;
  }

  float of(const Fp8Operand& x) const {
    if (!x.scale_inv.defined()) return of(x.data);
    std::vector<uint8_t> bytes(static_cast<size_t>(x.data.bytes()));
    std::vector<float> scales(static_cast<size_t>(x.scale_inv.numel()));
    stream_.copy(bytes.data(), x.data.raw(), x.data.bytes());
    stream_.copy(scales.data(), x.scale_inv.raw(), x.scale_inv.bytes());
    stream_.synchronize();
    const int64_t rows = x.data.dim(0);
    const int64_t k = x.data.dim(1);
    float largest = 0;
    cpu::with_float8_dtype(x.data.dtype(), [&]<typename Format>() {
      for (int64_t i = 0; i < rows * k; ++i) {
        const auto scale = static_cast<size_t>(scale_index(x.scaling, rows, k, i / k, i % k));
        cpu::update_amax(largest, Format::decode(bytes[static_cast<size_t>(i)]) * scales[scale]);
      }
    });
    return largest;
  }

 private:
  Tensor scratch_;
  Stream& stream_;
};

std::string format_magnitude(float magnitude) { return fmt::format("{:.3g}", unsigned_nan(magnitude)); }

class Search : public ResultObserver {
 public:
  Search(const Magnitudes& magnitudes, int64_t num_layers) : magnitudes_(magnitudes), num_layers_(num_layers) {}

  void begin_entry(int64_t micro_batch, bool backward) override {
    micro_batch_ = micro_batch;
    backward_ = backward;
  }

  void begin_part(int64_t layer) override { layer_ = layer; }

  void on_result(const OpResult& result) override {
    if (found_) return;
    ++count_;
    std::vector<std::pair<const void*, float>> measured;
    float worst = 0;
    for (const Tensor& x : result.results) {
      if (x.defined()) measured.emplace_back(x.raw(), magnitudes_.of(x));
      if (x.defined()) cpu::update_amax(worst, measured.back().second);
    }
    if (!std::isfinite(worst)) {
      const int64_t layer = result.layer.value_or(layer_);
      found_ = {.order = {micro_batch_, backward_ ? 1 : 0, backward_ ? -layer : layer, count_},
                .micro_batch = micro_batch_,
                .text = describe(result, layer, worst)};
    }
    for (const auto& [place, magnitude] : measured) known_[place] = magnitude;
  }

  const std::optional<NonfiniteResult>& found() const { return found_; }

 private:
  std::string describe(const OpResult& result, int64_t layer, float worst) const {
    const std::string part = layer == ResultObserver::kEmbedding ? "the embedding"
                             : layer == num_layers_              ? "the head"
                                                                 : fmt::format("layer {}", layer);
    std::vector<std::string> parts;
    // Adds "3.4 in its input" or "3.4 and 0.1 in its inputs". Returns whether there are such tensors.
    const auto add = [&](std::initializer_list<OpInput> tensors, const char* what) {
      std::vector<std::string> texts;
      for (const OpInput& x : tensors) {
        if (x.operand.data.defined()) texts.push_back(format_magnitude(of_input(x.operand, result)));
      }
      if (texts.empty()) return false;
      parts.push_back(fmt::format("{} in its {}{}", fmt::join(texts, " and "), what, texts.size() > 1 ? "s" : ""));
      return true;
    };
    add(result.inputs, "input");
    if (add(result.weights, "weight") && *result.parameter != '\0') {
      parts.back() += fmt::format(" ({})", result.parameter);
    }
    parts.push_back(fmt::format("{} in its result", format_magnitude(worst)));
    // The forward of a micro-batch includes the backward of the head, so the pass of the head is not named.
    const char* pass = layer == num_layers_ ? "" : backward_ ? "backward of " : "forward of ";
    return fmt::format("{} in {}, {}micro-batch {}; largest magnitudes: {}", result.op, part, pass, micro_batch_,
                       fmt::join(parts, ", "));
  }

  // Returns the magnitude of an input before the operation, which may have written a result over it.
  float of_input(const Fp8Operand& x, const OpResult& result) const {
    const bool overwritten = std::ranges::any_of(
        result.results, [&](const Tensor& written) { return written.defined() && written.raw() == x.data.raw(); });
    const auto known = overwritten ? known_.find(x.data.raw()) : known_.end();
    return known != known_.end() ? known->second : magnitudes_.of(x);
  }

  const Magnitudes& magnitudes_;
  const int64_t num_layers_;
  int64_t micro_batch_ = 0;
  bool backward_ = false;
  int64_t layer_ = 0;
  int64_t count_ = 0;
  std::map<const void*, float> known_;  // Magnitudes of the last results, by address.
  std::optional<NonfiniteResult> found_;
};

// Returns the first sum of gradients over micro-batches and ranks that is not finite, or the gradient norm if only the
// norm is not finite, or nothing.
std::optional<NonfiniteResult> find_in_gradients(TrainingState& state, const Magnitudes& magnitudes) {
  Stream& stream = state.mesh.stream();
  const int64_t after = state.batch.num_micro_batches();
  state.optimizer.measure_gradients(stream);
  float squares = 0;
  stream.copy(&squares, state.optimizer.grad_sum_of_squares().raw(), sizeof(squares));
  stream.synchronize();
  if (std::isfinite(squares)) return std::nullopt;
  float largest = 0;
  const auto& units = state.parameters.layout().units();
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const float magnitude = magnitudes.of(state.parameters.fsdp().gradient_shard(unit));
    if (!std::isfinite(magnitude)) {
      return NonfiniteResult{.order = {after, 0, static_cast<int64_t>(unit), 0},
                             .text = fmt::format("the sum over micro-batches and ranks of the gradients of {}: the "
                                                 "largest magnitude is {}",
                                                 units[unit].name, format_magnitude(magnitude))};
    }
    largest = std::max(largest, magnitude);
  }
  return NonfiniteResult{.order = {after, 1, 0, 0},
                         .text = fmt::format("the gradient norm: the largest magnitude of a gradient on this rank is "
                                             "{}, and the sum of the squares overflows",
                                             format_magnitude(largest))};
}

// Observer that explains the first step of a run that is skipped because its loss or gradient norm is not finite: its
// batch is computed once more, and the log names the first result that is not finite
// (app/observers/nonfinite_search.h). Does nothing if training.locate_nonfinite is false.
class NonfiniteWatch : public StepObserver {
 public:
  explicit NonfiniteWatch(const ObserverContext& context)
      : context_(context), is_done_(!context.config.training.locate_nonfinite) {}

  void on_result(Step& step) override {
    if (step_ && !step.skipped) weights_after_ = step.number;
    // Loss and norm are finite on all ranks or on none, so all ranks decide the same.
    if (is_done_ || !step.skipped || (std::isfinite(step.loss()) && std::isfinite(step.grad_norm))) return;
    is_done_ = true;
    step_ = {.number = step.number, .targets = step.num_targets()};
    samples_ = step.samples;
  }

  bool wants_result(int64_t /*step*/) const override { return step_.has_value(); }

  // The batch of the skipped step is still on the device, because that step is `last_step` (the last step that was
  // queued) or the step before it.
  void while_idle(int64_t last_step) override {
    if (!step_) return;
    TrainingState& state = context_.state;
    const bool is_previous = step_->number < last_step;
    if (is_previous) state.batch.swap();
    const std::optional<NonfiniteResult> found = find_nonfinite(state, *step_);
    if (is_previous) state.batch.swap();
    tell(found);
    step_.reset();
  }

 private:
  // Logs the first of the results of all ranks. A collective.
  void tell(const std::optional<NonfiniteResult>& found) const {
    ProcessGroup& group = context_.runtime.group();
    nlohmann::json mine;
    if (found) mine = {found->order, group.rank(), found->text, samples(*found), host_name()};
    nlohmann::json first;  // Has the smallest order, and then the lowest rank.
    for (const std::string& text : group.gather(mine.dump())) {
      const nlohmann::json result = nlohmann::json::parse(text);
      if (!result.is_null() && (first.is_null() || result < first)) first = result;
    }
    if (!group.is_root()) return;
    const std::string again =
        fmt::format("step {} was computed again with {}", step_->number,
                    weights_after_ ? fmt::format("the weights after step {}", *weights_after_) : "the same weights");
    if (first.is_null()) {
      log_event(EventKind::kWarning, step_->number,
                "{}, and every result is finite, so the error was not reproduced; octavo doctor checks the hardware",
                again);
      return;
    }
    const std::string where =
        group.size() > 1 ? fmt::format(" (rank {} on {})", first[1].get<int>(), first[4].get<std::string>()) : "";
    log_event(EventKind::kWarning, step_->number,
              "{}, and the first result that is not finite is that of {}{}; octavo inspect CONFIG.yaml --samples {}:{} "
              "--text prints the samples",
              again, first[2].get<std::string>(), where, first[3][0].get<int64_t>(), first[3][1].get<int64_t>());
  }

  std::array<int64_t, 2> samples(const NonfiniteResult& found) const {
    if (!found.micro_batch) return {samples_.begin, samples_.end};
    const Config& config = context_.config;
    const SampleRange range = samples_of({.step = samples_,
                                          .batch_size = config.training.batch_schedule().batch_size(step_->number),
                                          .data_rank = context_.runtime.mesh().data_rank(),
                                          .data_ranks = context_.runtime.mesh().shape().data(),
                                          .micro_batch = *found.micro_batch,
                                          .micro_batch_size = config.training.micro_batch_size});
    return {range.begin, range.end};
  }

  const ObserverContext context_;
  bool is_done_;
  std::optional<TrainingStep> step_;      // Step to compute again.
  SampleRange samples_;                   // Samples of the step.
  std::optional<int64_t> weights_after_;  // Last step after step_ that changed the weights.
};

}  // namespace

std::optional<NonfiniteResult> find_nonfinite(TrainingState& state, const TrainingStep& step) {
  // The tensor is not used until the gradients are measured, so it serves as scratch memory.
  const Magnitudes magnitudes(state.optimizer.grad_sum_of_squares(), state.mesh.stream());
  Search search(magnitudes, state.model.config().num_layers);
  state.model.observe_results(&search);
  queue_entries(state, step, entries_of_step(state));
  state.model.observe_results(nullptr);
  const std::optional<NonfiniteResult> in_gradients = find_in_gradients(state, magnitudes);
  state.model.forget_micro_batches();
  return search.found() ? search.found() : in_gradients;
}

SampleRange samples_of(const MicroBatchSamples& a) {
  if (a.step.end - a.step.begin != a.batch_size) return a.step;
  const int64_t begin = a.step.begin + a.data_rank * (a.batch_size / a.data_ranks) + a.micro_batch * a.micro_batch_size;
  return {begin, begin + a.micro_batch_size};
}

std::unique_ptr<StepObserver> make_nonfinite_watch(const ObserverContext& context) {
  return std::make_unique<NonfiniteWatch>(context);
}

}  // namespace octavo
