#include "parallel/ranks/rank_board.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace octavo {

namespace {

uint64_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// Opens shared memory with that name. Returns -1, which stands for no memory, if the name is empty.
int open_shared(const std::string& name, int flags, size_t bytes) {
  if (name.empty()) return -1;
  const int file = shm_open(name.c_str(), flags, S_IRUSR | S_IWUSR);
  CHECK(file >= 0, "shared memory {} cannot be opened: {}", name, std::strerror(errno));
  if ((flags & O_CREAT) == 0) return file;
  // Reserves the memory, so that later writes cannot fail.
  const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (error != 0) close(file);
  CHECK(error == 0, "shared memory {} of {} bytes cannot be allocated: {}", name, bytes, std::strerror(error));
  return file;
}

}  // namespace

RankBoard::RankBoard(const std::string& name, int local_size, int flags) : local_size_(local_size) {
  const size_t bytes = static_cast<size_t>(local_size) * sizeof(Entry);
  const int file = open_shared(name, flags, bytes);
  const int sharing = MAP_SHARED | (name.empty() ? MAP_ANONYMOUS : 0);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing, file, 0);
  const int error = errno;
  if (file >= 0) close(file);
  CHECK(memory != MAP_FAILED, "{} bytes of shared memory cannot be mapped: {}", bytes, std::strerror(error));
  // The memory is zero, which is the initial state of these atomics.
  entries_ = {static_cast<Entry*>(memory), [bytes](Entry* entries) { munmap(entries, bytes); }};
}

RankBoard RankBoard::create(const std::string& name, int local_size) {
  return {name, local_size, O_CREAT | O_EXCL | O_RDWR};
}

RankBoard RankBoard::open(const std::string& name, int local_size) { return {name, local_size, O_RDWR}; }

void RankBoard::unlink(const std::string& name) noexcept { shm_unlink(name.c_str()); }

void RankBoard::sign_in(int local_rank, int rank) {
  local_rank_ = local_size_ == 1 ? 0 : local_rank;
  mine().rank = rank;
  mine().pid = getpid();
  mine().pid_namespace = pid_namespace();
}

void RankBoard::sign_out() { mine().pid = 0; }

void RankBoard::set_entered(int64_t number) { mine().entered.store(number, std::memory_order_relaxed); }

void RankBoard::set_stage(int64_t stage) { mine().stage = stage + 1; }

std::string RankBoard::name_of(const Entry& entry) {
  const std::string rank = fmt::format("rank {}", entry.rank.load());
  return entry.stage == 0 ? rank : fmt::format("{} of pipeline stage {}", rank, entry.stage.load() - 1);
}

bool RankBoard::is_missing(const Entry& entry, int64_t number) const {
  const int64_t entered = entry.entered.load(std::memory_order_relaxed);
  return entry.stage == mine().stage ? entered < number : entered / kInterval < number / kInterval;
}

std::string RankBoard::missing(int64_t number) const {
  std::vector<std::string> ranks;
  for (const Entry& entry : entries()) {
    if (!is_missing(entry, number)) continue;
    ranks.push_back(name_of(entry) + (is_gone(entry) ? " is gone" : " has not entered it"));
  }
  return fmt::format("{}", fmt::join(ranks, ", "));
}

bool RankBoard::is_gone(const Entry& entry) const {
  const pid_t pid = entry.pid;
  return pid != 0 && entry.pid_namespace == mine().pid_namespace && kill(pid, 0) != 0 && errno == ESRCH;
}

std::string RankBoard::gone() const {
  std::vector<std::string> ranks;
  for (const Entry& entry : entries()) {
    if (is_gone(entry)) ranks.push_back(name_of(entry) + " is gone");
  }
  return fmt::format("{}", fmt::join(ranks, ", "));
}

bool RankBoard::claim_report() { return entries_[0].is_reported.exchange(1) == 0; }

bool RankBoard::claim_notice(int64_t number) { return entries_[0].noticed.exchange(number) < number; }

}  // namespace octavo
