#include "app/train/run_checkpoints.h"

#include <utility>

#include "app/run/same_files.h"
#include "app/run/tokenizer.h"
#include "app/run/weights.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

// The amaxes of delayed FP8 scaling; undefined without it.
Tensor amax_history(TrainingState& state) {
  AmaxTable* amaxes = state.model.amaxes();
  return amaxes != nullptr ? amaxes->history() : Tensor();
}

// What of a checkpoint this rank's shard holds: the master weights and both moments of its pieces of the parameters.
std::vector<CheckpointTensor> checkpoint_tensors(TrainingState& state, bool with_history) {
  std::vector<CheckpointTensor> tensors;
  const auto add = [&](const std::string& prefix, const Tensor& shards) {
    for (const ParameterPiece& piece : state.parameters.pieces()) {
      const ParameterSpec& spec = *piece.spec;
      if (!spec.counts) continue;
      tensors.push_back({.name = prefix + spec.name,
                         .shape = spec.whole_shape,
                         .begin = spec.column_offset() + piece.begin,
                         .end = spec.column_offset() + piece.end,
                         .data = shards.rows(piece.offset, piece.offset + piece.end - piece.begin),
                         .columns = spec.columns()});
    }
  };
  add("", state.parameters.master());
  for (const OptimizerState& kept : state.optimizer.states()) add(fmt::format("{}.", kept.name), kept.shards);
  if (const Tensor history = amax_history(state); with_history && history.defined()) {
    tensors.push_back(
        {kAmaxHistory, {history.dim(0), history.dim(1)}, 0, history.numel(), history.view({history.numel()})});
  }
  return tensors;
}

}  // namespace

void load_state(Checkpoint& checkpoint, TrainingState& state, Stream& stream) {
  load_weights(checkpoint, state.parameters, stream);
  load_optimizer(checkpoint, state.parameters, state.optimizer, stream);
  load_amax_history(checkpoint, state.model.amaxes(), stream);
}

RunCheckpoints::RunCheckpoints(const Config& config, Runtime& runtime, TrainingState& state)
    : config_(config),
      runtime_(runtime),
      state_(state),
      writer_({config.checkpoint.dir, config.checkpoint.keep, config.checkpoint.async}, runtime.group(),
              runtime.stream()) {}

std::optional<Checkpoint> RunCheckpoints::open() const {
  std::optional<Checkpoint> found = open_run_checkpoint(config_.checkpoint, runtime_.group());
  check_shared_directory("checkpoint.dir", config_.checkpoint.dir, runtime_.group());
  return found;
}

void RunCheckpoints::started_from(const Checkpoint* checkpoint) {
  if (checkpoint != nullptr) resumed_ = checkpoint->path();
  carry_tokenizer(checkpoint);
}

// Checkpoints carry their tokenizer; where the one that the config names is not at hand, that of the resumed one.
void RunCheckpoints::carry_tokenizer(const Checkpoint* resumed) {
  const std::string& name = config_.data.tokenizer;
  if (!runtime_.group().is_root() || name == "byte") return;
  std::vector<CarriedFile> files = read_tokenizer_files(name);
  if (files.empty() && resumed != nullptr) {
    for (const CarriedFileInfo& file : resumed->files()) files.push_back({file.name, resumed->read_file(file)});
  }
  if (files.empty()) log_warning("data.tokenizer {} is not a file, so that checkpoints carry no tokenizer", name);
  writer_.carry(std::move(files));
}

// Pages that the system cannot hand out would end the process when they are first written, long after the start.
void RunCheckpoints::reserve_staging() {
  if (!writer_.stages()) return;
  const int64_t bytes = CheckpointWriter::staging_bytes(pieces());
  runtime_.group().agree([&] {
    const int64_t available = runtime_.available_host_bytes();
    CHECK_INPUT(bytes <= available,
                "a checkpoint is copied to host memory, {:.1f} GiB a rank, but {:.1f} GiB are available; {} takes less",
                gib(bytes), gib(available),
                runtime_.stream().is_cuda() ? "optimizer.state_dtype=bfloat16" : "checkpoint.async=false");
  });
  runtime_.group().agree([&] { writer_.reserve(bytes); });
}

bool RunCheckpoints::due(int64_t step) const {
  return config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0;
}

std::vector<CheckpointTensor> RunCheckpoints::pieces() const {
  const Communicator& replicas = runtime_.mesh().replicate();  // they hold the same
  const bool with_history = runtime_.mesh().shard().rank() == 0 && runtime_.mesh().tensor().rank() == 0;
  return divide_tensors(checkpoint_tensors(state_, with_history), replicas.rank(), replicas.size());
}

void RunCheckpoints::save(int64_t step, const nlohmann::json& meta) {
  writer_.save(step, config_.model, meta, pieces());
}

void RunCheckpoints::poll() {
  if (writer_.pending()) writer_.poll();
}

void RunCheckpoints::complete_pending_save() {
  try {
    writer_.finish();
  } catch (const std::exception& error) {
    if (!runtime_.group().shares(error)) throw;
    if (runtime_.group().is_root()) log_warning("the checkpoint on its way is lost: {}", error.what());
  }
}

std::optional<std::filesystem::path> RunCheckpoints::last_path() const {
  return writer_.last_saved() ? writer_.last_saved() : resumed_;
}

Checkpoint RunCheckpoints::open_last() const {
  CHECK(last_path().has_value(), "there is no checkpoint to open");
  return open_same_checkpoint(last_path()->string(), runtime_.group());
}

std::string RunCheckpoints::last() const { return last_path() ? last_path()->string() : "none"; }

}  // namespace octavo
