// ProcessGroup: the ranks of a run and their control messages, on the host, over MPI. One process a GPU (or a share of
// the CPU). Started without a launcher it is a group of one and MPI is not initialised at all.
//
// Every method but the accessors is a collective: all ranks call it in the same order, from the main thread. Messages
// are small, but for the text that one rank sends all; tensors go through a Communicator. All of them are watched, once
// watchdog() has been given a time limit.
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

// What ProcessGroup::agree() throws, on every rank alike.
class AgreedFailure {
 public:
  virtual ~AgreedFailure() = default;
};
class AgreedError final : public Error, public AgreedFailure {
 public:
  using Error::Error;
};
class AgreedInputError final : public InputError, public AgreedFailure {
 public:
  using InputError::InputError;
};

class ProcessGroup {
 public:
  // Initialises MPI when mpirun, srun or another PMI launcher started this process. At most one may exist. Throws
  // InputError when a launcher started several processes but MPI does not connect them: each would train by itself.
  ProcessGroup();
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the ranks of this machine
  int local_size() const { return local_size_; }
  int machine() const { return machine_; }  // the lowest rank of this machine, by which ranks tell machines apart
  bool is_root() const { return rank_ == 0; }

  void barrier();
  std::string broadcast(std::string text, int root = 0);  // root's text on every rank; of any length
  // The text of the lowest rank that has one, on every rank; empty where none has. Texts travel only then.
  std::string broadcast_first(std::string text);
  // Every rank's text, of any length, on rank 0; empty elsewhere.
  std::vector<std::string> gather(const std::string& text);
  // Every rank's text, on every rank; less than 1 GiB in all.
  std::vector<std::string> all_gather(const std::string& text);
  std::vector<uint64_t> all_gather(uint64_t number);  // every rank's number: 8 bytes of each
  int64_t all_reduce_max(int64_t value);
  double all_reduce_sum(double value);
  uint64_t all_reduce_or(uint64_t bits);  // bitwise or of every rank's bits

  // Runs `work` on every rank; when it throws on any, the error of the lowest such rank is thrown on all of them, as
  // AgreedInputError if that rank's was an InputError, else as AgreedError. So a bad file seen by one rank ends the run
  // everywhere, with one message. `work` must not call collectives that the other ranks would be left alone in.
  void agree(const std::function<void()>& work);
  // The same for work with files, which a rank may be busy with for any time: the others wait for it beyond the
  // watchdog's limit. `what` is for its messages ("reading the checkpoint"), and borrowed.
  void agree_on_files(const char* what, const std::function<void()>& work);
  // Whether every rank throws this error: agree() threw it, or there is one rank. Any other leaves ranks waiting.
  bool shares(const std::exception& error) const;

  Watchdog& watchdog() { return *watchdog_; }

  // This process's rank by the launcher's variables, without MPI; 0 when there are none.
  static int launcher_rank();

  // Whether threads other than the main one may talk to other ranks too (parallel/ranks/rank_transfers.h).
  bool has_threads() const { return has_threads_; }

  // Ends all ranks at once, for failures the others cannot know of.
  [[noreturn]] void abort(int exit_code);

 private:
  void start_mpi();
  int64_t reduce_max(int64_t value, const char* op);
  std::string first_text(std::string text, const char* op);
  void settle(std::string outcome);  // throws the first failure among all ranks' outcomes of some work

  bool initialised_ = false;
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  int machine_ = 0;
  bool has_threads_ = true;
  std::unique_ptr<Watchdog> watchdog_;
};

// Of the MPI library, as it names itself: "Open MPI v4.1.4". Needs no process group.
std::string mpi_version();

}  // namespace octavo
