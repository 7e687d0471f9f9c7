#include "app/run/checkpoint_command.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/process/events.h"
#include "checkpoint/checkpoint_format.h"
#include "core/log.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxDepth = 16;  // Numbers in objects that are nested deeper are not read.

void add_numbers(const nlohmann::json& object, const std::string& prefix, NumbersByName& numbers) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::any_of(key, [](unsigned char c) { return std::iscntrl(c) != 0; })) continue;
    if (value.is_object()) add_numbers(value, prefix + key + "/", numbers);
    if (value.is_number()) numbers.emplace_back(prefix + key, value.get<double>());
  }
}

// Returns the last MiB of a file.
std::string end_of(const fs::path& path) {
  constexpr uintmax_t kBytes = 1 << 20;
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (!error && size > kBytes) file.seekg(static_cast<std::streamoff>(size - kBytes));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

NumbersByName numbers_in(const std::string& output) {
  NumbersByName numbers;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const auto is_shallow = [](int depth, nlohmann::json::parse_event_t, const auto&) { return depth <= kMaxDepth; };
    const nlohmann::json found = nlohmann::json::parse(line, is_shallow, /*allow_exceptions=*/false);
    if (!found.is_object()) continue;
    numbers.clear();
    add_numbers(found, "", numbers);
  }
  return numbers;
}

CheckpointCommand::CheckpointCommand(const Config& config)
    : checkpoints_(fs::absolute(config.checkpoint.dir)),
      run_(fs::absolute(config.logging.dir)),
      command_("checkpoint.command", config.checkpoint.command, config.checkpoint.command_timeout_s, run_) {}

CheckpointCommand::~CheckpointCommand() { end("the run ended"); }

fs::path CheckpointCommand::output_of(int64_t step) const {
  return run_ / "checkpoint_commands" / (step_directory_name(step) + ".log");
}

void CheckpointCommand::set_loss(int64_t step, double loss) { losses_[step] = loss; }

void CheckpointCommand::start(int64_t step) {
  if (waiting_) {
    log_event(EventKind::kWarning, *waiting_,
              "checkpoint.command does not run for step {}, because that of step {} still runs and step {} is saved",
              *waiting_, running_, step);
  }
  waiting_ = step;
  poll();
}

void CheckpointCommand::spawn(int64_t step) {
  running_ = step;
  const fs::path output = output_of(step);
  const auto loss = losses_.find(step);
  std::error_code error;
  fs::create_directories(output.parent_path(), error);
  fs::remove(output, error);
  const std::string refusal = command_.start(
      {"OCTAVO_CHECKPOINT=" + (checkpoints_ / step_directory_name(step)).string(), fmt::format("OCTAVO_STEP={}", step),
       fmt::format("OCTAVO_LOSS={}", loss == losses_.end() ? std::nan("") : loss->second),
       "OCTAVO_RUN=" + run_.string()},
      output);
  losses_.erase(losses_.begin(), losses_.upper_bound(step));
  if (refusal.empty()) return;
  log_event(EventKind::kWarning, step, "checkpoint.command cannot be started for step {}: {}", step, refusal);
}

bool CheckpointCommand::poll() {
  if (const std::optional<ShellCommand::End> end = command_.poll()) finish(*end);
  if (!command_.is_running() && waiting_) spawn(*std::exchange(waiting_, std::nullopt));
  return command_.is_running();
}

void CheckpointCommand::finish(const ShellCommand::End& end) {
  const fs::path output = output_of(running_);
  NumbersByName values = end.failed ? NumbersByName() : numbers_in(end_of(output));
  std::string text;
  for (const auto& [name, value] : values) text += fmt::format("  {} {:g}", name, value);
  log_event(end.failed ? EventKind::kWarning : EventKind::kNote, running_, "checkpoint.command of step {} {}; {}{}",
            running_, end.how, output.string(), text);
  if (!values.empty()) numbers_.push_back({running_, std::move(values)});
}

std::optional<CheckpointCommand::Numbers> CheckpointCommand::next_numbers() {
  if (numbers_.empty()) return std::nullopt;
  Numbers numbers = std::move(numbers_.front());
  numbers_.pop_front();
  return numbers;
}

void CheckpointCommand::end(const std::string& reason) {
  if (waiting_) {
    log_event(EventKind::kWarning, *waiting_, "checkpoint.command does not run for step {}, because {}", *waiting_,
              reason);
  }
  waiting_.reset();
  if (!command_.is_running()) return;
  command_.kill();
  log_event(EventKind::kWarning, running_, "checkpoint.command of step {} was ended, because {}", running_, reason);
}

}  // namespace octavo
