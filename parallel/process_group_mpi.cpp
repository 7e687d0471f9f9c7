#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <utility>

#include "kernels/core/error.h"
#include "parallel/handles_mpi.h"
#include "parallel/process_group.h"

namespace octavo {

namespace {

using mpi::check;

// Whether a launcher started this process. MPI's own singleton start-up is slow and needs its daemons, so a program
// started by hand does without it.
bool launched() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

// The first of these variables that is set, as a number; `missing` when none is.
int number_from(std::initializer_list<const char*> variables, int missing) {
  for (const char* variable : variables) {
    if (const char* text = std::getenv(variable)) return std::atoi(text);
  }
  return missing;
}

// Processes that the launcher started; srun sets its own for processes that MPI knows nothing of, too.
int launched_processes() { return number_from({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1); }

int checked_size(const std::string& text) {
  CHECK(text.size() < (size_t{1} << 30), "a control message of {} bytes is too large", text.size());
  return static_cast<int>(text.size());
}

// The board that the ranks of this machine share, or one of this rank alone where that cannot be had.
RankBoard share_board(const mpi::Comm& local, int local_rank, int local_size) {
  // Unlike that of any other run on this machine.
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
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  initialised_ = true;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  const mpi::Comm local = mpi::Comm::of_this_machine(rank_);
  check(MPI_Comm_rank(local.get(), &local_rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(local.get(), &local_size_), "MPI_Comm_size");
  RankBoard board = share_board(local, local_rank_, local_size_);
  board.sign_in(local_size_ == 1 ? 0 : local_rank_, rank_);
  // From a thread that MPI was not promised, but this process does nothing else any more.
  watchdog_ = std::make_unique<Watchdog>(rank_, std::move(board), [] { MPI_Abort(MPI_COMM_WORLD, 1); });
}

ProcessGroup::~ProcessGroup() {
  if (!initialised_) return;
  // Open MPI's mpirun may hang itself when a rank is aborted while another is in MPI_Finalize, so whoever does not come
  // is waited for before.
  const Watchdog::Scope scope(*watchdog_, {"MPI_Finalize"});
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
}

void ProcessGroup::barrier() {
  if (size_ == 1) return;
  const Watchdog::Scope scope(*watchdog_, {"barrier"});
  check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

std::string ProcessGroup::broadcast(const std::string& text, int root) {
  if (size_ == 1) return text;
  const Watchdog::Scope scope(*watchdog_, {"broadcast"});
  std::string result = text;
  int bytes = checked_size(text);
  check(MPI_Bcast(&bytes, 1, MPI_INT, root, MPI_COMM_WORLD), "MPI_Bcast");
  result.resize(static_cast<size_t>(bytes));
  check(MPI_Bcast(result.data(), bytes, MPI_CHAR, root, MPI_COMM_WORLD), "MPI_Bcast");
  return result;
}

std::vector<std::string> ProcessGroup::all_gather(const std::string& text) { return exchange(text, "all_gather"); }

std::vector<std::string> ProcessGroup::exchange(const std::string& text, const char* op) {
  if (size_ == 1) return {text};
  const Watchdog::Scope scope(*watchdog_, {op});
  const auto ranks = static_cast<size_t>(size_);
  const int bytes = checked_size(text);
  std::vector<int> counts(ranks);
  check(MPI_Allgather(&bytes, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  std::vector<int> offsets(ranks);
  int total = 0;
  for (size_t i = 0; i < ranks; ++i) {
    offsets[i] = total;
    CHECK(total <= (1 << 30) - counts[i], "the control messages of {} ranks are too large", size_);
    total += counts[i];
  }
  std::string all(static_cast<size_t>(total), '\0');
  check(
      MPI_Allgatherv(text.data(), bytes, MPI_CHAR, all.data(), counts.data(), offsets.data(), MPI_CHAR, MPI_COMM_WORLD),
      "MPI_Allgatherv");
  std::vector<std::string> texts(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    texts[i] = all.substr(static_cast<size_t>(offsets[i]), static_cast<size_t>(counts[i]));
  }
  return texts;
}

std::vector<std::string> ProcessGroup::gather(const std::string& text) {
  std::vector<std::string> texts = exchange(text, "gather");
  if (!is_root()) texts.clear();
  return texts;
}

int64_t ProcessGroup::all_reduce_max(int64_t value) {
  if (size_ == 1) return value;
  const Watchdog::Scope scope(*watchdog_, {"all_reduce_max"});
  check(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
  return value;
}

double ProcessGroup::all_reduce_sum(double value) {
  if (size_ == 1) return value;
  const Watchdog::Scope scope(*watchdog_, {"all_reduce_sum"});
  check(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
  return value;
}

void ProcessGroup::agree(const std::function<void()>& work) {
  // A first character tells the kind: '-' no error, 'i' an InputError, 'e' any other.
  std::string outcome = "-";
  try {
    work();
  } catch (const InputError& error) {
    outcome = std::string("i") + error.what();
  } catch (const std::exception& error) {
    outcome = std::string("e") + error.what();
  }
  for (const std::string& text : exchange(outcome, "agreement")) {
    if (text[0] == '-') continue;
    agreed_failure_ = true;
    if (text[0] == 'i') throw InputError(text.substr(1));
    throw Error(text.substr(1));
  }
}

void ProcessGroup::abort(int exit_code) {
  if (initialised_ && size_ > 1) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace octavo
