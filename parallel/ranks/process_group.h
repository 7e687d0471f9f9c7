// ProcessGroup is the set of ranks of a run: one process per GPU, or several on CPUs. It sends their control messages
// over MPI, on the host. A process started without a launcher is a group of one rank and does not initialise MPI.
//
// Every method except the accessors is a collective: all ranks call the same methods in the same order from the main
// thread. Messages are small, except for texts; tensors use a Communicator. The watchdog watches all
// collectives once watchdog() has been given a time limit.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "parallel/ranks/watchdog.h"

namespace octavo {

// Base of the errors that ProcessGroup::throw_on_all_ranks() throws on every rank.
class FailureOfAllRanks {
 public:
  virtual ~FailureOfAllRanks() = default;
};
class ErrorOfAllRanks final : public Error, public FailureOfAllRanks {
 public:
  using Error::Error;
};
class InputErrorOfAllRanks final : public InputError, public FailureOfAllRanks {
 public:
  using InputError::InputError;
};

class ProcessGroup {
 public:
  // Initialises MPI if mpirun, srun or another PMI launcher started this process. At most one object may exist. Throws
  // InputError if a launcher started several processes but MPI does not connect them, because each process would train
  // by itself.
  ProcessGroup();
  ~ProcessGroup();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // Returns this rank's number among the ranks of its machine.
  int local_size() const { return local_size_; }
  // Returns the lowest rank of this machine, which identifies the machine.
  int machine() const { return machine_; }
  bool is_root() const { return rank_ == 0; }

  void barrier();
  // Returns root's text on every rank. The text may have any length.
  std::string broadcast(std::string text, int root = 0);
  // Returns, on every rank, the non-empty text of the lowest rank that has one. Empty if all texts are empty. Then
  // only one number per rank is transferred. `what` names the collective in messages.
  std::string broadcast_first(std::string text, const char* what = "broadcast_first");
  // Returns every rank's text on rank 0, and an empty list on other ranks. Texts may have any length.
  std::vector<std::string> gather(const std::string& text);
  // Returns every rank's text on every rank.
  std::vector<std::string> all_gather(const std::string& text);
  // Returns every rank's number on every rank.
  std::vector<uint64_t> all_gather(uint64_t number);
  int64_t all_reduce_max(int64_t value, const char* what = "all_reduce_max");
  double all_reduce_sum(double value);
  // Returns the bitwise OR of every rank's bits.
  uint64_t all_reduce_or(uint64_t bits);

  // Runs `work` on every rank. If it throws on any rank, all ranks throw the error of the lowest such rank, as
  // InputErrorOfAllRanks if it was an InputError and otherwise as ErrorOfAllRanks. So a bad file that one rank finds
  // ends the run everywhere with one message. The message begins with the name of that rank's machine, unless it is the
  // machine of rank 0.
  // Requires: `work` calls no collectives, because a rank that fails would leave the others waiting in them.
  void throw_on_all_ranks(const std::function<void()>& work);
  // Equivalent of throw_on_all_ranks() for work with files, which may take any time. The watchdog's time limit does not
  // apply to ranks that wait for it. `what` names the work in messages ("reading the checkpoint") and is borrowed.
  void throw_file_errors_on_all_ranks(const char* what, const std::function<void()>& work);
  // Returns whether every rank throws this error, because throw_on_all_ranks() threw it or there is only one rank.
  // After any other error, the other ranks keep waiting for this one.
  bool shares(const std::exception& error) const;

  Watchdog& watchdog() { return *watchdog_; }

  // Returns this process's rank from the launcher's environment variables, without MPI. 0 if there are none.
  static int launcher_rank();

  // Returns whether threads other than the main thread may communicate too (parallel/ranks/rank_transfers.h).
  bool has_threads() const { return has_threads_; }

  // Ends all ranks at once. Used for failures that the other ranks cannot detect.
  [[noreturn]] void abort(int exit_code);

 private:
  void start_mpi();
  // Throws the error of the lowest rank whose work in throw_on_all_ranks() failed. `outcome`, of this rank, is empty
  // for success.
  void throw_error_of_lowest_rank(std::string outcome);

  bool initialised_ = false;
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  int machine_ = 0;
  bool has_threads_ = true;
  std::unique_ptr<Watchdog> watchdog_;
};

// Returns the name and version of the MPI library: "Open MPI v4.1.4". Needs no process group.
std::string mpi_version();

}  // namespace octavo
