// Writes the files in logging.dir that describe a run, in addition to the metrics:
//   config.yaml     config of the last start, with the values of all keys
//   starts.jsonl    one line per start: time, command line, directory, version and commit, hosts, ranks, device
//   log.txt         the console's lines of all starts with the time of day; "warning: " marks warnings
//   events.jsonl    the lines of log.txt that describe events, for programs (app/process/events.h)
//   alert_command.log  output of logging.alert_command (app/records/alert_command.h)
//   metric_table.json  key, tag, title and unit of each metric (app/run/metric_table.h)
//   log.lock        lock of the run that writes here (checkpoint/directory_lock.h)
//   earlier/        these files and the metrics of a previous run that was started over (checkpoint.resume: never)
// A folder belongs to one run with all its restarts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "checkpoint/directory_lock.h"

namespace octavo {

// Facts about logging.dir and about the checkpoint that a start resumes.
struct FolderFacts {
  bool has_steps = false;               // Whether the folder has logged steps.
  bool knows_its_run = false;           // Whether the folder's config.yaml can be read.
  bool computes_the_same = false;       // Whether that config computes the same as the run that starts.
  bool resumes = false;                 // Whether the run starts from a checkpoint.
  bool resumes_its_checkpoint = false;  // Whether that checkpoint belongs to the folder's run.
  // Whether the folder's run has checkpoints, at the path in its config or in the folder.
  bool has_checkpoints = false;
  // Whether the folder's run has no checkpoint left, although its events name one or cannot be read.
  bool has_saved = false;
  bool begins_again = false;  // Whether checkpoint.resume is never.
};
enum class FolderUse : uint8_t {
  kContinue,  // The folder belongs to this run, whose files are continued.
  kSetAside,  // This run starts in the folder, and existing files are moved to earlier/.
  kRefuse,    // The folder belongs to another run.
  kLost       // The folder belongs to this run, which has saved checkpoints, but none are left.
};
FolderUse use_of_folder(const FolderFacts& facts);

// Examines logging.dir for a run that starts from a checkpoint in the directory `resumed_from`, which is empty if there
// is none. Writes nothing to the folder. Throws an InputError if the folder belongs to another run or if the run's
// checkpoints are lost. Warns if the run begins again, because it ended before its first checkpoint.
FolderUse find_use_of_folder(const Config& config, const std::filesystem::path& resumed_from);

class RunFolder {
 public:
  // From construction to destruction, lines of the console also go to log.txt. They are kept in memory until open(), so
  // that a start that is refused leaves nothing behind.
  // Requires: `config` and `runtime` outlive the object.
  RunFolder(const Config& config, Runtime& runtime);
  // Waits for the last alert, if end_alerts() was not called.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Creates the directory on rank 0 and locks it. Called once, before anything is written there. Throws an InputError
  // if another run holds the lock. Not a collective.
  void lock();
  // Checks that the locked folder belongs to this run, which starts from a checkpoint in the directory `resumed_from`
  // (empty if there is none). If the run is started over, moves the files of the previous run aside. Throws like
  // find_use_of_folder(). Not a collective; acts on rank 0.
  void claim(const std::filesystem::path& resumed_from);
  // Writes the files of the locked folder on rank 0. A thread writes log.txt, so that the run never waits for a disk
  // and survives a full one (app/records/append_file.h). A collective. Throws an InputError if a file cannot be opened.
  void open();
  // Writes the error that ends the run to log.txt and adds it to the alerts. Does not write to the console, where the
  // program itself prints the error.
  void note(const std::string& line);
  // Waits on all ranks until rank 0 has sent all alerts (AlertCommand::end). A collective without a time limit.
  void end_alerts();
  // Waits until log.txt and events.jsonl are written. Returns a sentence for each file whose lines are lost
  // (AppendFile::add_lost_lines). Not a collective; empty on ranks other than 0.
  std::vector<std::string> lost_lines();

 private:
  class LogFiles;
  void set_aside() const;
  const Config& config_;
  Runtime& runtime_;
  std::optional<DirectoryLock> lock_;
  std::shared_ptr<LogFiles> log_;  // Shared with the default logger.
};

}  // namespace octavo
