// What lies in logging.dir beside the metrics, so that a run is known by its folder alone:
//   config.yaml     the config of its last start, every key with its value
//   starts.jsonl    a line a start: when, the command line and where, version and commit, hosts, ranks, device
//   log.txt         the console's lines of every start, each with the time of day
//   log.lock        held by the run that writes here (checkpoint/directory_lock.h)
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "checkpoint/directory_lock.h"

namespace octavo {

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
  // With the lock, writes the files: log.txt by a thread, so that the run waits for no disk, and goes on where that is
  // full (app/log/append_file.h). A collective; rank 0 writes. InputError where a file cannot be opened.
  void open();
  // A line for log.txt alone: what ends the run goes to the console as an error of the program.
  void note(const std::string& line);

 private:
  class LogFile;
  const Config& config_;
  Runtime& runtime_;
  std::optional<DirectoryLock> lock_;
  std::shared_ptr<LogFile> log_;  // of the default logger too
};

}  // namespace octavo
