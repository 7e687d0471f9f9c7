// The algorithms that timing chose on this kind of GPU with these versions of the libraries (kernels/
// tuned_algorithms.h), kept from run to run, so that a second start times nothing: octavo/ in $XDG_CACHE_HOME or
// ~/.cache holds a file for each such pair. The root reads and writes it, and all ranks have what it read.
//
// It only saves time: where it cannot be read or written a line says so, and the run goes on.
#pragma once

#include <functional>
#include <string>

#include "core/stream.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

class TuningFile {
 public:
  // Gives `stream` the choices of the file. `stream` and `group` must outlive the object. `on`: the GPU and the
  // versions, as text. `path`: empty: none is kept. A collective.
  TuningFile(Stream& stream, ProcessGroup& group, std::string on, std::string path);
  // Keeps what was timed since, as keep() does.
  ~TuningFile();
  TuningFile(const TuningFile&) = delete;
  TuningFile& operator=(const TuningFile&) = delete;

  // Does `work`, which queues every kind of product. Each rank then times the new ones on its own, while no collective
  // runs; all take what the root chose, as far as they have such a GPU, so that ranks that hold the same compute the
  // same; and `work` is done once more if there were any. A collective.
  void tune(const std::function<void()>& work);

  // On the root: writes the file, if anything was timed since it was read or written, and logs how much was timed and
  // what could not be, because too little memory was left. Never throws.
  void keep() noexcept;

 private:
  Stream& stream_;
  ProcessGroup& group_;
  std::string on_;
  std::string path_;
  int64_t kept_ = 0;  // of what was timed
  size_t said_untimed_ = 0;
};

// Where the file of `on` is; empty without a home.
std::string tuning_path(const std::string& on);

}  // namespace octavo
