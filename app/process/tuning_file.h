// The algorithms that timing chose on this kind of GPU with these versions of the libraries (kernels/
// tuned_algorithms.h), kept from run to run, so that a second start times nothing: octavo/ in $XDG_CACHE_HOME or
// ~/.cache holds a file for each such pair. The root reads and writes it, and all ranks have what it read.
//
// It only saves time: where it cannot be read or written a line says so, and the run goes on.
#pragma once

#include <string>

#include "core/stream.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

class TuningFile {
 public:
  // Gives `stream` (borrowed) the choices of the file. `on`: the GPU and the versions, as text. `path`: empty: none is
  // kept. A collective.
  TuningFile(Stream& stream, ProcessGroup& group, std::string on, std::string path);
  // Keeps what was timed since, as keep() does.
  ~TuningFile();
  TuningFile(const TuningFile&) = delete;
  TuningFile& operator=(const TuningFile&) = delete;

  // On the root: writes the file, if anything was timed since it was read or written, and logs how much, and what was
  // not for want of memory. Never throws.
  void keep() noexcept;

 private:
  Stream& stream_;
  bool is_root_;
  std::string on_;
  std::string path_;
  int64_t kept_ = 0;  // of what was timed
  size_t said_untimed_ = 0;
};

// Where the file of `on` is; empty without a home.
std::string tuning_path(const std::string& on);

}  // namespace octavo
