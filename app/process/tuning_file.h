// Stores the matmul algorithms that were chosen by timing (kernels/matmul/tuned_algorithms.h), so that a second run
// need not time them. There is one file per kind of GPU and versions of the libraries, in the folder octavo/ in
// $XDG_CACHE_HOME or ~/.cache. The root reads and writes the file, and sends its content to all ranks.
//
// The file only saves time. If it cannot be read or written, the run logs that and continues.
#pragma once

#include <functional>
#include <string>

#include "core/stream.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

class TuningFile {
 public:
  // Gives `stream` the stored choices. `on` describes the GPU and the versions of the libraries. An empty `path`
  // disables the file. A collective.
  // Requires: `stream` and `group` outlive the object.
  TuningFile(Stream& stream, ProcessGroup& group, std::string on, std::string path);
  // Calls keep().
  ~TuningFile();
  TuningFile(const TuningFile&) = delete;
  TuningFile& operator=(const TuningFile&) = delete;

  // Calls `work`, which queues every kind of matmul. Each rank then times the matmuls that have no choice yet while no
  // collective runs. All ranks with the same kind of GPU use the root's choices, so that replicas compute equal
  // results. If there were new matmuls, `work` is called a second time. A collective.
  void tune(const std::function<void()>& work);

  // On the root, writes the file if there are new choices since the last read or write, and logs how many matmuls were
  // timed and which could not be timed for lack of memory. Never throws.
  void keep() noexcept;

 private:
  Stream& stream_;
  ProcessGroup& group_;
  std::string on_;
  std::string path_;
  int64_t kept_ = 0;  // Number of choices that the file already contains.
  size_t said_untimed_ = 0;
};

// Returns the path of the file for `on`, the description of GPU and versions. Empty if there is no home directory.
std::string tuning_path(const std::string& on);

}  // namespace octavo
