#include "parallel/ranks/rank_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/error.h"

namespace octavo {

namespace {

uint64_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// Shared memory with that name, or no memory (-1) if the name is empty. The destructor closes it.
class SharedFile {
 public:
  SharedFile(const std::string& name, int flags, size_t bytes) {
    if (name.empty()) return;
    handle_ = shm_open(name.c_str(), flags, S_IRUSR | S_IWUSR);
    CHECK(handle_ >= 0, "shared memory {} cannot be opened: {}", name, std::strerror(errno));
    if ((flags & O_CREAT) == 0) return;
    // Reserves the memory, so that later writes cannot fail.
    const int error = posix_fallocate(handle_, 0, static_cast<off_t>(bytes));
    if (error != 0) close(handle_);
    CHECK(error == 0, "shared memory {} of {} bytes cannot be allocated: {}", name, bytes, std::strerror(error));
  }
  ~SharedFile() {
    if (handle_ >= 0) close(handle_);
  }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  int get() const { return handle_; }

 private:
  int handle_ = -1;
};

}  // namespace

RankBoard::RankBoard(const std::string& name, int local_size, int flags) : local_size_(local_size) {
  const size_t bytes = static_cast<size_t>(local_size) * sizeof(Entry);
  const SharedFile file(name, flags, bytes);
  const int sharing = MAP_SHARED | (name.empty() ? MAP_ANONYMOUS : 0);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing, file.get(), 0);
  CHECK(memory != MAP_FAILED, "{} bytes of shared memory cannot be mapped: {}", bytes, std::strerror(errno));
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
  std::string text;
  for (int i = 0; i < local_size_; ++i) {
    const Entry& entry = entries_[static_cast<size_t>(i)];
    if (!is_missing(entry, number)) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(entry),
                        is_gone(entry) ? "is gone" : "has not entered it");
  }
  return text;
}

bool RankBoard::is_gone(const Entry& entry) const {
  const pid_t pid = entry.pid;
  return pid != 0 && entry.pid_namespace == mine().pid_namespace && kill(pid, 0) != 0 && errno == ESRCH;
}

std::string RankBoard::gone() const {
  std::string text;
  for (int i = 0; i < local_size_; ++i) {
    const Entry& entry = entries_[static_cast<size_t>(i)];
    if (is_gone(entry)) text += fmt::format("{}{} is gone", text.empty() ? "" : ", ", name_of(entry));
  }
  return text;
}

bool RankBoard::claim_report() { return entries_[0].is_reported.exchange(1) == 0; }

bool RankBoard::claim_notice(int64_t number) { return entries_[0].noticed.exchange(number) < number; }

}  // namespace octavo
