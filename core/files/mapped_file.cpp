#include "core/files/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/printable.h"

namespace octavo {
namespace {

// The kernel answers a read of a mapped file with SIGBUS if the bytes are gone, because the file was truncated or its
// disk failed. Without a handler the signal ends the process without a message.
//
// Handling the signal costs nothing as long as the files are intact. Reading with pread instead would take one system
// call per document or slice of a weight, and every rank would need a copy of the index in memory. A process cannot
// continue after such a read, because nothing can replace the bytes. It ends, like after any failure of one rank, and
// the launcher ends the others.

constexpr int kExitCode = 1;

// A watched mapping, or a free entry. Entries are reused but never freed, so that the handler can walk the list at any
// time.
struct Watched {
  // Address of the mapping; 0 if the entry is free. It is set last and cleared first.
  std::atomic<uintptr_t> begin{0};
  uintptr_t end = 0;
  std::string sentence;  // Prepared in advance, because a signal handler must not allocate.
  Watched* next = nullptr;
};

// Global list, because a signal handler can only reach globals.
std::atomic<Watched*> watched_mappings{nullptr};
std::atomic_flag is_ending;
struct sigaction previous_action {};

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Watched* entry = watched_mappings.load(); entry != nullptr; entry = entry->next) {
    const uintptr_t begin = entry->begin.load();
    if (info->si_code <= 0 || begin == 0 || address < begin || address >= entry->end) continue;
    while (is_ending.test_and_set()) ::pause();  // Another thread met the same fault and reports it.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, entry->sentence.data(), entry->sentence.size());
    ::_exit(kExitCode);
  }
  // Returning repeats the read and so raises the signal again. A signal from another process must be sent again.
  ::sigaction(SIGBUS, &previous_action, nullptr);
  if (info->si_code <= 0) ::raise(signal);
}

void take_over_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  CHECK(::sigaction(SIGBUS, &action, &previous_action) == 0, "SIGBUS cannot be handled");
}

std::mutex& entries_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Makes a failing read in [begin, begin + bytes) print one sentence that names `path` on standard error and end the
// process with exit code 1. The first call installs a handler of SIGBUS, which passes other SIGBUS signals to the
// previous handler. Safe from any thread.
void watch_mapping(const void* begin, size_t bytes, const std::string& path) {
  const std::lock_guard lock(entries_mutex());
  Watched* entry = watched_mappings.load();
  if (entry == nullptr) take_over_bus_errors();
  while (entry != nullptr && entry->begin.load() != 0) entry = entry->next;
  const bool is_new = entry == nullptr;
  if (is_new) entry = std::make_unique<Watched>().release();
  entry->sentence = fmt::format(
      "octavo: {}\n", printable(fmt::format("{}: was truncated while it was being read, or its disk fails", path)));
  entry->end = reinterpret_cast<uintptr_t>(begin) + bytes;
  entry->begin.store(reinterpret_cast<uintptr_t>(begin));
  if (!is_new) return;
  entry->next = watched_mappings.load();
  watched_mappings.store(entry);
}

// Ends the watch of the mapping at `begin`.
// Requires: the range is still mapped.
void forget_mapping(const void* begin) {
  const std::lock_guard lock(entries_mutex());
  for (Watched* entry = watched_mappings.load(); entry != nullptr; entry = entry->next) {
    if (entry->begin.load() == reinterpret_cast<uintptr_t>(begin)) return entry->begin.store(0);
  }
}

}  // namespace

void MappedFile::Unmap::operator()(const std::byte* data) const {
  forget_mapping(data);
  ::munmap(const_cast<std::byte*>(data), size_bytes);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const InputFile file(path);
  size_bytes_ = file.size_bytes();
  if (size_bytes_ == 0) return;  // mmap refuses empty ranges.
  const auto size = static_cast<size_t>(size_bytes_);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  CHECK(address != MAP_FAILED, "{}: cannot be mapped into memory ({} bytes): {}", path, size_bytes_,
        std::strerror(errno));
  data_ = {static_cast<const std::byte*>(address), Unmap{size}};
  watch_mapping(address, size, path_);
}

void read_ahead(std::span<const std::byte> bytes) {
  constexpr uintptr_t kPageBytes = 4096;
  const uintptr_t place = reinterpret_cast<uintptr_t>(bytes.data()), begin = place / kPageBytes * kPageBytes;
  void* address = reinterpret_cast<void*>(begin);
  if (::madvise(address, place - begin + bytes.size(), MADV_POPULATE_READ) == 0) return;
  static_cast<void>(::madvise(address, place - begin + bytes.size(), MADV_WILLNEED));  // Used on Linux before 5.14.
}

}  // namespace octavo
