// The algorithms that timing chose on this kind of GPU with these versions of the libraries (kernels/
// tuned_algorithms.h), kept from run to run, so that a second start times nothing: octavo/ in $XDG_CACHE_HOME or
// ~/.cache holds a file for each such pair. The root reads and writes it, and all ranks have what it read.
//
// The file only saves time. If it cannot be read or written, a line says so and the run continues.
#pragma once

#include <functional>
#include <string>

#include "core/stream.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

class TuningFile {
 public:
  // Gives `stream` the choices of the file. `stream` and `group` must outlive the object. `on` describes the GPU and
  // the versions. An empty `path` keeps no file. A collective.
  TuningFile(Stream& stream, ProcessGroup& group, std::string on, std::string path);
  // Keeps what was timed since, as keep() does.
  ~TuningFile();
  TuningFile(const TuningFile&) = delete;
  TuningFile& operator=(const TuningFile&) = delete;

  // Calls `work`, which queues every kind of matmul. Each rank then times the new ones while no collective runs. All
  // ranks with the same GPU use the root's choices, so that replicas compute equal results. `work` is called once more
  // if there were new ones. A collective.
  void tune(const std::function<void()>& work);

  // On the root: writes the file, if anything was timed since it was read or written, and logs how much was timed and
  // what could not be, because too little memory was left. Never throws.
  void keep() noexcept;

 private:
  Stream& stream_;
  ProcessGroup& group_;
  std::string on_;
  std::string path_;
  int64_t kept_ = 0;  // Number of timed choices that are in the file.
  size_t said_untimed_ = 0;
};

// Returns the path of the file of `on`, empty without a home directory.
std::string tuning_path(const std::string& on);

}  // namespace octavo
