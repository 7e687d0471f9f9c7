#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "parallel/ranks/handles_mpi.h"
#include "parallel/ranks/machines.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

namespace {

using mpi::check;

// Returns whether a launcher started this process. MPI's singleton initialisation is slow and starts daemons, so a
// program that was started without a launcher does not initialise MPI.
bool launched() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

// Returns the first of these variables that is set, as a number, or `missing` if none is.
int number_from(std::initializer_list<const char*> variables, int missing) {
  for (const char* variable : variables) {
    if (const char* text = std::getenv(variable)) return std::atoi(text);
  }
  return missing;
}

// Returns the number of processes that the launcher started. srun sets its variable even if MPI does not know the other
// processes.
int launched_processes() { return number_from({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1); }

// Returns the board that the ranks of this machine share, or a board of this rank only if there is no shared memory.
RankBoard share_board(const mpi::Comm& local, int local_rank, int local_size) {
  // Makes the name different from that of any other run on this machine.
  int64_t tag = std::chrono::system_clock::now().time_since_epoch().count() ^ (int64_t{getpid()} << 40);
  check(MPI_Bcast(&tag, 1, MPI_INT64_T, 0, local.get()), "MPI_Bcast");
  const std::string name = fmt::format("/octavo-{:016x}", static_cast<uint64_t>(tag));
  RankBoard board;
  int is_open = 1;
  const auto attempt = [&](bool is_mine, auto make) {
    try {
      if (is_mine) board = make(name, local_size);
    } catch (const Error&) {
      is_open = 0;
    }
    check(MPI_Allreduce(MPI_IN_PLACE, &is_open, 1, MPI_INT, MPI_MIN, local.get()), "MPI_Allreduce");
  };
  attempt(local_rank == 0, RankBoard::create);
  attempt(local_rank != 0 && is_open == 1, RankBoard::open);
  if (local_rank == 0) RankBoard::unlink(name);
  return is_open == 1 ? std::move(board) : RankBoard();
}

constexpr int64_t kMessageBytes = int64_t{1} << 26;  // Maximum number of bytes per call, because MPI counts are ints.
constexpr int kGatherTag = 2;

// Calls call(offset, count) for each message that the bytes of a text are divided into.
template <typename Call>
void by_messages(int64_t bytes, Call call) {
  for (int64_t begin = 0; begin < bytes; begin += kMessageBytes) {
    call(begin, static_cast<int>(std::min(kMessageBytes, bytes - begin)));
  }
}

template <typename T>
T all_reduce(ProcessGroup& group, T value, MPI_Datatype type, MPI_Op op, const char* what) {
  if (group.size() == 1) return value;
  const Watchdog::Scope scope(group.watchdog(), {what});
  check(MPI_Allreduce(MPI_IN_PLACE, &value, 1, type, op, MPI_COMM_WORLD), "MPI_Allreduce");
  return value;
}

// Outcome of some work as a text: empty for success, otherwise a character for the kind of the error and its message.
constexpr char kBadInput = 'i';
constexpr char kFailed = 'e';

std::string outcome_of(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const InputError& error) {
    return kBadInput + std::string(error.what());
  } catch (const std::exception& error) {
    return kFailed + failure_text(error);
  }
}

}  // namespace

ProcessGroup::ProcessGroup() {
  if (launched()) start_mpi();
  const int processes = launched_processes();
  if (size_ == 1 && processes > 1) {
    if (initialised_) MPI_Finalize();
    throw InputError(
        fmt::format("the launcher started {} processes, but MPI does not connect them; with srun, use "
                    "--mpi=pmix (srun --mpi=list shows what there is), or start them with mpirun",
                    processes));
  }
  if (!watchdog_) watchdog_ = std::make_unique<Watchdog>(0, RankBoard(), [] {});
}

int ProcessGroup::launcher_rank() {
  return number_from({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}, 0);
}

void ProcessGroup::start_mpi() {
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  initialised_ = true;
  has_threads_ = provided >= MPI_THREAD_MULTIPLE;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  const mpi::Comm local = mpi::Comm::of_this_machine(rank_);
  check(MPI_Comm_rank(local.get(), &local_rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(local.get(), &local_size_), "MPI_Comm_size");
  machine_ = rank_;
  check(MPI_Bcast(&machine_, 1, MPI_INT, 0, local.get()), "MPI_Bcast");
  RankBoard board = share_board(local, local_rank_, local_size_);
  board.sign_in(local_rank_, rank_);
  // The watchdog's thread may call MPI_Abort even if MPI supports only one thread, because no MPI call follows.
  watchdog_ = std::make_unique<Watchdog>(rank_, std::move(board), [] { MPI_Abort(MPI_COMM_WORLD, 1); });
}

ProcessGroup::~ProcessGroup() {
  if (!initialised_) return;
  // Open MPI's mpirun may hang if a rank is aborted while another is in MPI_Finalize. The barrier makes all ranks wait
  // for missing ranks before MPI_Finalize.
  const Watchdog::Scope scope(*watchdog_, {"MPI_Finalize"});
  MPI_Barrier(MPI_COMM_WORLD);
  watchdog_->leave();
  MPI_Finalize();
}

void ProcessGroup::barrier() {
  if (size_ == 1) return;
  const Watchdog::Scope scope(*watchdog_, {"barrier"});
  check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

std::string ProcessGroup::broadcast(std::string text, int root) {
  if (size_ == 1) return text;
  const Watchdog::Scope scope(*watchdog_, {"broadcast"});
  int64_t bytes = std::ssize(text);
  check(MPI_Bcast(&bytes, 1, MPI_INT64_T, root, MPI_COMM_WORLD), "MPI_Bcast");
  text.resize(static_cast<size_t>(bytes));
  by_messages(bytes, [&](int64_t offset, int count) {
    check(MPI_Bcast(text.data() + offset, count, MPI_CHAR, root, MPI_COMM_WORLD), "MPI_Bcast");
  });
  return text;
}

// A text is transferred only if a rank has one. Otherwise the reduction of one number suffices.
std::string ProcessGroup::broadcast_first(std::string text, const char* what) {
  const int64_t highest = all_reduce_max(text.empty() ? 0 : size_ - rank_, what);
  return highest == 0 ? "" : broadcast(std::move(text), static_cast<int>(size_ - highest));
}

std::vector<std::string> ProcessGroup::all_gather(const std::string& text) {
  const std::vector<uint64_t> sizes = all_gather(uint64_t{text.size()});
  std::string all;
  for (const std::string& one : gather(text)) all += one;
  all = broadcast(std::move(all));
  std::vector<std::string> texts;
  for (size_t begin = 0; const uint64_t size : sizes) {
    texts.push_back(all.substr(begin, size));
    begin += size;
  }
  return texts;
}

std::vector<uint64_t> ProcessGroup::all_gather(uint64_t number) {
  if (size_ == 1) return {number};
  const Watchdog::Scope scope(*watchdog_, {"all_gather"});
  std::vector<uint64_t> all(static_cast<size_t>(size_));
  check(MPI_Allgather(&number, 1, MPI_UINT64_T, all.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD), "MPI_Allgather");
  return all;
}

std::vector<std::string> ProcessGroup::gather(const std::string& text) {
  if (size_ == 1) return {text};
  const Watchdog::Scope scope(*watchdog_, {"gather"});
  const int64_t bytes = std::ssize(text);
  std::vector<int64_t> sizes(is_root() ? static_cast<size_t>(size_) : 0);
  check(MPI_Gather(&bytes, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, 0, MPI_COMM_WORLD), "MPI_Gather");
  if (!is_root()) {
    by_messages(bytes, [&](int64_t offset, int count) {
      check(MPI_Send(text.data() + offset, count, MPI_CHAR, 0, kGatherTag, MPI_COMM_WORLD), "MPI_Send");
    });
    return {};
  }
  std::vector<std::string> texts(sizes.size());
  texts[0] = text;
  for (int rank = 1; rank < size_; ++rank) {
    std::string& whole = texts[static_cast<size_t>(rank)];
    whole.resize(static_cast<size_t>(sizes[static_cast<size_t>(rank)]));
    by_messages(std::ssize(whole), [&](int64_t offset, int count) {
      check(MPI_Recv(whole.data() + offset, count, MPI_CHAR, rank, kGatherTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
            "MPI_Recv");
    });
  }
  return texts;
}

uint64_t ProcessGroup::all_reduce_or(uint64_t bits) {
  return all_reduce(*this, bits, MPI_UINT64_T, MPI_BOR, "all_reduce_or");
}

int64_t ProcessGroup::all_reduce_max(int64_t value, const char* what) {
  return all_reduce(*this, value, MPI_INT64_T, MPI_MAX, what);
}

double ProcessGroup::all_reduce_sum(double value) {
  return all_reduce(*this, value, MPI_DOUBLE, MPI_SUM, "all_reduce_sum");
}

void ProcessGroup::throw_on_all_ranks(const std::function<void()>& work) {
  throw_error_of_lowest_rank(outcome_of(work));
}

void ProcessGroup::throw_file_errors_on_all_ranks(const char* what, const std::function<void()>& work) {
  std::string outcome = outcome_of(work);
  if (size_ > 1) {
    const Watchdog::Scope scope(*watchdog_, {.op = what, .waits_for_files = true});
    check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
  }
  throw_error_of_lowest_rank(std::move(outcome));
}

void ProcessGroup::throw_error_of_lowest_rank(std::string outcome) {
  // Files and devices of another machine than rank 0's are not those that the user looks at first.
  if (!outcome.empty() && machine_ != 0) outcome.insert(1, host_name() + ": ");
  const std::string first = broadcast_first(std::move(outcome), "agreement");
  if (first.empty()) return;
  if (first[0] == kBadInput) throw InputErrorOfAllRanks(first.substr(1));
  throw ErrorOfAllRanks(first.substr(1));
}

bool ProcessGroup::shares(const std::exception& error) const {
  return size_ == 1 || dynamic_cast<const FailureOfAllRanks*>(&error) != nullptr;
}

void ProcessGroup::abort(int exit_code) {
  watchdog_->claim_report();
  if (initialised_ && size_ > 1) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

// Returns the beginning of the library's version text: "Open MPI v4.1.4, package: ...", "MPICH Version: 4.2 ...".
std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  mpi::check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string version(text);
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace octavo
