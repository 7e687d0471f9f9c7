// The files in logging.dir besides the metrics, so that a run is known by its folder alone:
//   config.yaml     the config of its last start, every key with its value
//   starts.jsonl    a line a start: when, the command line and where, version and commit, hosts, ranks, device
//   log.txt         the console's lines of every start, each with the time of day; "warning: " marks the warnings
//   events.jsonl    the lines of log.txt that tell of an event, for programs (app/process/events.h)
//   metric_table.json  key, tag, title and unit of each metric (app/run/metric_table.h)
//   log.lock        held by the run that writes here (checkpoint/directory_lock.h)
//   earlier/        these files and the metrics of a run that was begun again (checkpoint.resume: never)
// A folder belongs to one run, with all its restarts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "checkpoint/directory_lock.h"

namespace octavo {

// Facts about logging.dir and about the checkpoint that a start resumes.
struct FolderFacts {
  bool has_steps = false;               // whether a step was logged there
  bool knows_its_run = false;           // whether its config.yaml can be read
  bool computes_the_same = false;       // as the run that starts, by that config
  bool resumes = false;                 // whether the run starts from a checkpoint
  bool resumes_its_checkpoint = false;  // one of the run that the folder belongs to
  bool has_checkpoints = false;         // whether that run has checkpoints, by its config or in its folder
  bool begins_again = false;            // checkpoint.resume is never
};
enum class FolderUse : uint8_t {
  kContinue,  // the folder belongs to this run: its files are appended to
  kSetAside,  // this run begins in it, and what is there is moved to earlier/
  kRefuse     // the folder belongs to another run
};
FolderUse use_of_folder(const FolderFacts& facts);

// Looks at logging.dir for a run that starts from a checkpoint in the directory `resumed_from` (empty for none), and
// writes nothing. Throws InputError where the folder belongs to another run.
FolderUse find_use_of_folder(const Config& config, const std::filesystem::path& resumed_from);

class RunFolder {
 public:
  // From here on until the object ends, what goes to the console goes to log.txt too. It is kept until open(): a start
  // that is refused leaves nothing behind. Both must outlive the object.
  RunFolder(const Config& config, Runtime& runtime);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Before anything is written here: creates the directory and locks it, once, on rank 0. InputError where another run
  // has it. Not a collective.
  void lock();
  // Once it is locked: makes sure that the folder is that of this run, which starts from a checkpoint in the directory
  // `resumed_from` (empty for none), and moves aside what a run that is begun again left there. InputError where it
  // belongs to another run. Not a collective; acts on rank 0.
  void claim(const std::filesystem::path& resumed_from);
  // With the lock, writes the files: log.txt by a thread, so that the run waits for no disk, and goes on where that is
  // full (app/records/append_file.h). A collective; rank 0 writes. InputError where a file cannot be opened.
  void open();
  // A line for log.txt alone: what ends the run goes to the console as an error of the program.
  void note(const std::string& line);

 private:
  class LogFiles;
  void set_aside() const;
  const Config& config_;
  Runtime& runtime_;
  std::optional<DirectoryLock> lock_;
  std::shared_ptr<LogFiles> log_;  // of the default logger too
};

}  // namespace octavo
