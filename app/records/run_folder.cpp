#include "app/records/run_folder.h"

#include <fmt/chrono.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "app/config/config_changes.h"
#include "app/process/events.h"
#include "app/records/alert_command.h"
#include "app/records/append_file.h"
#include "app/records/goodput.h"
#include "app/records/metric_row.h"
#include "app/records/metrics_writer.h"
#include "build_config.h"
#include "checkpoint/checkpoint_files.h"
#include "core/commit.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/files/output_file.h"
#include "core/log.h"
#include "core/printable.h"
#include "core/thread.h"
#include "parallel/ranks/machines.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

std::vector<std::string> command_line() {
  std::istringstream text(read_system_file("/proc/self/cmdline"));
  std::vector<std::string> words;
  for (std::string word; std::getline(text, word, '\0');) words.push_back(word);
  return words;
}

nlohmann::ordered_json describe_start(const Runtime& runtime, const std::set<std::string>& hosts) {
  return {{"time", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
          {"command", command_line()},
          {"directory", fs::current_path().string()},
          {"version", kVersion},
          {"commit", build_commit()},
          {"hosts", hosts},
          {"ranks", runtime.group().size()},
          {"runs_on", runtime.describe()}};
}

// Ignores training data whose files no longer exist at the earlier paths, because they may have moved to the paths in
// `now`.
void follow_moved_data(Config& earlier, const Config& now) {
  const auto is_gone = [](const std::string& path) { return !path_exists(path) && !path_exists(path + ".bin"); };
  std::vector<DatasetSource>& train = earlier.data.train;
  for (size_t i = 0; i < std::min(train.size(), now.data.train.size()); ++i) {
    if (std::ranges::all_of(train[i].paths, is_gone)) train[i].paths = now.data.train[i].paths;
  }
}

// Returns false if the run's events can be read and say that it has saved no checkpoint.
bool has_saved_checkpoint(const fs::path& run) {
  try {
    InputFile events(run / kEventsName);
    for (std::string line; events.read_line(line);) {
      const std::optional<RunEvent> event = parse_event(line);
      if (event && event->kind == EventKind::kCheckpoint) return true;
    }
    return false;
  } catch (const UnreadableFile&) {
    return true;
  }
}

// Returns the last step in metrics.jsonl.
int64_t last_logged_step(const fs::path& run) {
  InputFile metrics(run / "metrics.jsonl");
  MetricsHistory history;
  for (std::string line; metrics.read_line(line);) {
    if (const std::optional<MetricsLine> parsed = parse_metrics_line(line)) history.diverges(*parsed);
  }
  return history.last_step();
}

bool has_checkpoints(const fs::path& dir) {
  std::error_code error;
  return fs::is_directory(dir, error) && !find_checkpoints(dir).empty();
}

}  // namespace

FolderUse use_of_folder(const FolderFacts& facts) {
  if (facts.begins_again) return FolderUse::kSetAside;
  // A run with checkpoints must resume one of them. A run without any is started over with the same config.
  const bool may_continue = facts.resumes || !facts.has_checkpoints;
  const bool is_this_run =
      facts.knows_its_run ? (facts.computes_the_same && may_continue) || facts.resumes_its_checkpoint : facts.resumes;
  if (is_this_run && !facts.resumes && facts.has_steps && facts.has_saved) return FolderUse::kLost;
  if (is_this_run) return FolderUse::kContinue;
  return facts.has_steps ? FolderUse::kRefuse : FolderUse::kSetAside;
}

FolderUse find_use_of_folder(const Config& config, const fs::path& resumed_from) {
  const fs::path dir = config.logging.dir;
  std::error_code error;
  const auto metrics_bytes = fs::file_size(dir / "metrics.jsonl", error);
  FolderFacts facts{.has_steps = !error && metrics_bytes > 0,
                    .resumes = !resumed_from.empty(),
                    .begins_again = config.checkpoint.resume == "never"};
  std::string difference = "its config.yaml cannot be read";
  try {
    Config earlier = load_config((dir / "config.yaml").string());
    follow_moved_data(earlier, config);
    const std::vector<ConfigChange> changes = changes_of_run(earlier, config);
    facts.knows_its_run = true;
    facts.computes_the_same = changes.empty();
    // A folder that was moved contains its checkpoints, whatever path its config.yaml gives.
    facts.resumes_its_checkpoint =
        facts.resumes && (is_inside(resumed_from, earlier.checkpoint.dir) || is_inside(resumed_from, dir));
    facts.has_checkpoints = has_checkpoints(earlier.checkpoint.dir) || has_checkpoints(dir / "checkpoints");
    facts.has_saved = !facts.has_checkpoints && has_saved_checkpoint(dir);
    difference = changes.empty() ? "it has checkpoints, which this run does not resume" : describe(changes);
  } catch (const InputError&) {  // config.yaml does not exist, or was written by another version.
  }
  const FolderUse use = use_of_folder(facts);
  CHECK_INPUT(use != FolderUse::kRefuse,
              "logging.dir {} belongs to another run ({}); expected another logging.dir for this run, the values of "
              "that run to continue it, or checkpoint.resume=never to move its files aside",
              dir.string(), difference);
  CHECK_INPUT(
      use != FolderUse::kLost,
      "logging.dir {}: the run reached step {} and has saved checkpoints, but no checkpoint is in {}; expected "
      "its checkpoints there, checkpoint.resume with the path of one of them, or checkpoint.resume=never to begin "
      "again and move the files of this run aside",
      dir.string(), last_logged_step(dir), config.checkpoint.dir);
  if (use == FolderUse::kContinue && facts.has_steps && facts.resumes && facts.has_saved) {
    log_warning(
        "the run reached step {} and has saved checkpoints, but no checkpoint is in {}, so it resumes one in {}",
        last_logged_step(dir), config.checkpoint.dir, resumed_from.string());
  }
  if (use == FolderUse::kContinue && facts.has_steps && !facts.resumes) {
    log_warning("the run reached step {} and saved no checkpoint, so it begins again with step 1",
                last_logged_step(dir));
  }
  return use;
}

// Writes each line to log.txt, and lines that describe events to events.jsonl.
class RunFolder::LogFiles : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogFiles(const Config& config) {
    set_pattern_("%Y-%m-%d %H:%M:%S.%e  %v");
    if (!config.logging.alert_command.empty()) alerts_.emplace(config);
  }

  void open(const fs::path& dir) {
    const std::lock_guard lock(mutex_);
    text_.file.emplace((dir / "log.txt").string());
    events_.file.emplace((dir / kEventsName).string());
    for (File* file : {&text_, &events_}) {
      file->file->drop_torn_line();
      write(*file, std::exchange(file->before, {}));
    }
    if (alerts_) alerts_->start();
  }

  // Requires: the caller does not hold the sink's lock, because a failed alert is logged to this sink.
  void end_alerts() {
    if (alerts_) alerts_->end();
  }

  std::vector<std::string> lost_lines() {
    std::vector<std::string> lost;
    queue_.post([&] {
      for (File* file : {&text_, &events_}) {
        if (file->file) file->file->add_lost_lines(lost);
      }
    });
    queue_.wait();
    return lost;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string marked =
        fmt::format("warning: {}", std::string_view(message.payload.data(), message.payload.size()));
    spdlog::details::log_msg shown = message;
    if (message.level == spdlog::level::warn) shown.payload = marked;
    spdlog::memory_buf_t line;
    formatter_->format(shown, line);
    write(text_, std::string(line.data(), line.size()));
    const std::optional<RunEvent> event = event_of(message);
    if (!event) return;
    write(events_, event_json(*event) + "\n");
    if (alerts_) alerts_->add(*event, message.level > spdlog::level::warn);
  }
  void flush_() override {}

 private:
  struct File {
    std::string before;              // Lines that were logged before the file was opened.
    std::optional<AppendFile> file;  // After opening, used only by the thread of the queue.
  };
  void write(File& file, const std::string& text) {
    if (!file.file) {
      file.before += text;
    } else if (!text.empty()) {
      queue_.post([&file, text] { file.file->write(text); });
    }
  }

  File text_;
  File events_;
  std::optional<AlertCommand> alerts_;
  WorkQueue queue_;  // Last member, so that it is destroyed first.
};

RunFolder::RunFolder(const Config& config, Runtime& runtime) : config_(config), runtime_(runtime) {
  if (!runtime.group().is_root()) return;
  log_ = std::make_shared<LogFiles>(config);
  add_log_sink(log_);
}

void RunFolder::lock() {
  if (!runtime_.group().is_root() || lock_) return;
  const fs::path dir = config_.logging.dir;
  std::error_code error;
  fs::create_directories(dir, error);
  CHECK_INPUT(!error, "logging.dir {}: cannot be created: {}", dir.string(), error.message());
  lock_.emplace(dir, kLoggingDirectory);
}

void RunFolder::claim(const fs::path& resumed_from) {
  if (!runtime_.group().is_root()) return;
  if (find_use_of_folder(config_, resumed_from) == FolderUse::kSetAside) set_aside();
}

// Moves the files that Octavo writes into a run's folder, and leaves other files where they are.
void RunFolder::set_aside() const {
  const fs::path dir = config_.logging.dir;
  constexpr std::array kNames = {"metrics.jsonl", kMetricTableName, "log.txt",          kEventsName,
                                 "starts.jsonl",  "config.yaml",    Goodput::kFileName, kAlertOutputName};
  constexpr std::array kPrefixes = {"events.out.tfevents.", "trace_step_"};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = std::ranges::find(kNames, name) != kNames.end() ||
                         std::ranges::any_of(kPrefixes, [&](const char* prefix) { return name.starts_with(prefix); });
    if (is_ours && entry.is_regular_file()) files.push_back(entry.path());
  }
  if (files.empty()) return;
  const fs::path earlier = create_earlier(dir);
  for (const fs::path& file : files) {
    std::error_code error;
    fs::rename(file, earlier / file.filename(), error);
    CHECK(!error, "{} cannot be moved to {}: {}", file.string(), earlier.string(), error.message());
  }
  log_info("the log and metrics of the earlier run were moved to {}", earlier.string());
}

void RunFolder::open() {
  ProcessGroup& group = runtime_.group();
  const std::vector<std::string> names = group.gather(host_name());
  group.throw_file_errors_on_all_ranks("opening the log", [&] {
    if (!group.is_root()) return;
    const fs::path dir = config_.logging.dir;
    log_->open(dir);
    const std::set<std::string> hosts(names.begin(), names.end());
    AppendFile starts((dir / "starts.jsonl").string());
    starts.drop_torn_line();
    if (!starts.write(printable_json(describe_start(runtime_, hosts)) + "\n")) {
      log_warning("{}; this start is not recorded there", starts.failure());
    }
    write_output_file((dir / "config.yaml").string(), to_yaml(config_));
    write_output_file((dir / kMetricTableName).string(), metric_table_json());
  });
}

RunFolder::~RunFolder() {
  if (!log_) return;
  log_->end_alerts();
  remove_log_sink(log_);
}

void RunFolder::end_alerts() {
  runtime_.group().throw_file_errors_on_all_ranks("the last alert", [&] {
    if (log_) log_->end_alerts();
  });
}

std::vector<std::string> RunFolder::lost_lines() { return log_ ? log_->lost_lines() : std::vector<std::string>(); }

void RunFolder::note(const std::string& line) {
  if (!log_) return;
  std::string text = line;
  std::ranges::replace(text, kErrorSeparator, ';');
  text = printable(text, 4 * text.size());
  log_->log(spdlog::details::log_msg("octavo", spdlog::level::err, text));
}

}  // namespace octavo
