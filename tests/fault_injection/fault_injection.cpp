// A library for LD_PRELOAD that makes one system call of a program fail, to test how the program handles it.
//
//   OCTAVO_FAULT=CALL:K:ERRNO     the K-th call of CALL, counted from 1 once main() is entered, fails with ERRNO
//   OCTAVO_FAULT=CALL:K+:ERRNO    the K-th call and all later ones fail
//   OCTAVO_FAULT=CALL:K+:SLOW     these calls take a second longer, but succeed
//   OCTAVO_FAULT_COUNTS=FILE      when the process ends, FILE gets a line "CALL COUNT" for each CALL
//
// CALL is a name of kNames. For mmap only the calls of the program itself count. `new` is operator new, which throws
// std::bad_alloc. Writing to standard error never fails. The library requires glibc.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string_view>

namespace {

constexpr std::array<std::string_view, 26> kNames = {
    "open",           "fopen", "read",          "pread", "write",     "pwrite",    "fsync",  "stat",    "fstat",
    "rename",         "mkdir", "unlink",        "mmap",  "ftruncate", "fallocate", "close",  "opendir", "readdir",
    "pthread_create", "new",   "aligned_alloc", "flock", "pipe",      "fwrite",    "fflush", "fclose"};

// Returns the index of a name in kNames.
consteval size_t call(std::string_view name) {
  return static_cast<size_t>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin());
}

struct Fault {
  size_t call = kNames.size();
  long first = 0;
  bool lasts = false;
  int error = 0;
};

constexpr int kSlow = 0;  // Number of the "error" of calls that take longer and succeed.

int error_number(const char* name) {
  struct Known {
    const char* name;
    int number;
  };
  constexpr std::array kKnown = {Known{"EIO", EIO},       Known{"EAGAIN", EAGAIN}, Known{"ENOSPC", ENOSPC},
                                 Known{"ENOMEM", ENOMEM}, Known{"ESTALE", ESTALE}, Known{"EACCES", EACCES},
                                 Known{"EMFILE", EMFILE}, Known{"EINTR", EINTR},   Known{"SLOW", kSlow}};
  for (const Known& known : kKnown) {
    if (std::strcmp(known.name, name) == 0) return known.number;
  }
  std::fprintf(stderr, "fault injection: unknown error %s\n", name);
  std::_Exit(99);
}

Fault read_fault() {
  Fault fault;
  const char* text = std::getenv("OCTAVO_FAULT");
  if (text == nullptr) return fault;
  char name[32] = {}, error[16] = {};
  const bool is_once = std::sscanf(text, "%31[^:]:%ld:%15s", name, &fault.first, error) == 3;
  fault.lasts = !is_once;
  if (is_once || std::sscanf(text, "%31[^:]:%ld+:%15s", name, &fault.first, error) == 3) {
    fault.error = error_number(error);
    fault.call = static_cast<size_t>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin());
  }
  if (fault.call < kNames.size()) return fault;
  std::fprintf(stderr, "fault injection: OCTAVO_FAULT is %s, expected CALL:K:ERRNO\n", text);
  std::_Exit(99);
}

Fault fault;
std::atomic<bool> is_counting{false};
std::array<std::atomic<long>, kNames.size()> counts{};

// Counts a call. Returns true and sets errno if the call must fail.
bool fails(size_t call) {
  if (!is_counting.load(std::memory_order_relaxed)) return false;
  const long number = ++counts[call];
  if (fault.call != call || number < fault.first || (number > fault.first && !fault.lasts)) return false;
  if (fault.error == kSlow) {
    constexpr timespec kDelay{1, 0};
    ::nanosleep(&kDelay, nullptr);
    return false;
  }
  errno = fault.error;
  return true;
}

void write_counts() {
  is_counting = false;
  const char* path = std::getenv("OCTAVO_FAULT_COUNTS");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return;
  for (size_t i = 0; i < kNames.size(); ++i) std::fprintf(file, "%s %ld\n", kNames[i].data(), counts[i].load());
  std::fclose(file);
}

using Main = int (*)(int, char**, char**);
Main program_main = nullptr;

// Returns whether an address lies in the program itself. Failures of mmap are limited to the program, because libraries
// that compile code abort without memory for it.
bool is_of_program(const void* address) {
  Dl_info caller{}, program{};
  return dladdr(address, &caller) != 0 && dladdr(reinterpret_cast<void*>(program_main), &program) != 0 &&
         caller.dli_fbase == program.dli_fbase;
}

int counted_main(int argc, char** argv, char** environment) {
  fault = read_fault();
  std::atexit(write_counts);
  is_counting = true;
  return program_main(argc, argv, environment);
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Arguments: REPLACE(CALL, RESULT OF A FAILURE, TYPE, NAME, (PARAMETERS), (ARGUMENTS)).
#define REPLACE(which, failure, type, name, parameters, arguments) \
  type name parameters {                                           \
    static const auto real = next<type(*) parameters>(#name);      \
    if (fails(which)) return failure;                              \
    return real arguments;                                         \
  }
// Like REPLACE, for a call that takes effect even when it reports a failure.
#define REPLACE_DONE(which, failure, type, name, parameters, arguments) \
  type name parameters {                                                \
    static const auto real = next<type(*) parameters>(#name);           \
    if (!fails(which)) return real arguments;                           \
    const int error = errno;                                            \
    real arguments;                                                     \
    errno = error;                                                      \
    return failure;                                                     \
  }
#define REPLACE_OPEN(name, parameters, path)                                         \
  int name parameters {                                                              \
    static const auto real = next<int (*)(int, const char*, int, mode_t)>("openat"); \
    mode_t mode = 0;                                                                 \
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {                                      \
      va_list rest;                                                                  \
      va_start(rest, flags);                                                         \
      mode = va_arg(rest, mode_t);                                                   \
      va_end(rest);                                                                  \
    }                                                                                \
    if (fails(call("open"))) return -1;                                              \
    return real(path, file, flags, mode);                                            \
  }

extern "C" {

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*rtld_fini)(),
                      void* stack_end) {
  static const auto real =
      next<int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*)>("__libc_start_main");
  program_main = main;
  return real(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

REPLACE_OPEN(open, (const char* file, int flags, ...), AT_FDCWD)
REPLACE_OPEN(open64, (const char* file, int flags, ...), AT_FDCWD)
REPLACE_OPEN(openat, (int directory, const char* file, int flags, ...), directory)
REPLACE_OPEN(openat64, (int directory, const char* file, int flags, ...), directory)
REPLACE(call("fopen"), nullptr, FILE*, fopen, (const char* path, const char* mode), (path, mode))
REPLACE(call("fopen"), nullptr, FILE*, fopen64, (const char* path, const char* mode), (path, mode))
REPLACE(call("read"), -1, ssize_t, read, (int file, void* bytes, size_t count), (file, bytes, count))
REPLACE(call("pread"), -1, ssize_t, pread, (int file, void* bytes, size_t count, off_t place),
        (file, bytes, count, place))
REPLACE(call("pread"), -1, ssize_t, pread64, (int file, void* bytes, size_t count, off_t place),
        (file, bytes, count, place))
ssize_t write(int file, const void* bytes, size_t count) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  if (file != STDERR_FILENO && fails(call("write"))) return -1;
  return real(file, bytes, count);
}
REPLACE(call("write"), -1, ssize_t, writev, (int file, const iovec* parts, int count), (file, parts, count))
REPLACE(call("pwrite"), -1, ssize_t, pwrite, (int file, const void* bytes, size_t count, off_t place),
        (file, bytes, count, place))
REPLACE(call("pwrite"), -1, ssize_t, pwrite64, (int file, const void* bytes, size_t count, off_t place),
        (file, bytes, count, place))
REPLACE(call("fsync"), -1, int, fsync, (int file), (file))
REPLACE(call("fsync"), -1, int, fdatasync, (int file), (file))
REPLACE(call("stat"), -1, int, stat, (const char* path, struct stat* status), (path, status))
REPLACE(call("stat"), -1, int, stat64, (const char* path, struct stat64* status), (path, status))
REPLACE(call("stat"), -1, int, lstat, (const char* path, struct stat* status), (path, status))
REPLACE(call("stat"), -1, int, lstat64, (const char* path, struct stat64* status), (path, status))
REPLACE(call("stat"), -1, int, fstatat, (int directory, const char* path, struct stat* status, int flags),
        (directory, path, status, flags))
REPLACE(call("stat"), -1, int, fstatat64, (int directory, const char* path, struct stat64* status, int flags),
        (directory, path, status, flags))
REPLACE(call("fstat"), -1, int, fstat, (int file, struct stat* status), (file, status))
REPLACE(call("fstat"), -1, int, fstat64, (int file, struct stat64* status), (file, status))
REPLACE(call("rename"), -1, int, rename, (const char* from, const char* to), (from, to))
REPLACE(call("rename"), -1, int, renameat, (int a, const char* from, int b, const char* to), (a, from, b, to))
REPLACE(call("rename"), -1, int, renameat2, (int a, const char* from, int b, const char* to, unsigned flags),
        (a, from, b, to, flags))
REPLACE(call("mkdir"), -1, int, mkdir, (const char* path, mode_t mode), (path, mode))
REPLACE(call("mkdir"), -1, int, mkdirat, (int directory, const char* path, mode_t mode), (directory, path, mode))
REPLACE(call("unlink"), -1, int, unlink, (const char* path), (path))
REPLACE(call("unlink"), -1, int, unlinkat, (int directory, const char* path, int flags), (directory, path, flags))
REPLACE(call("unlink"), -1, int, rmdir, (const char* path), (path))
REPLACE(call("unlink"), -1, int, remove, (const char* path), (path))
void* mmap(void* at, size_t bytes, int access, int flags, int file, off_t place) {
  static const auto real = next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap");
  if (is_of_program(__builtin_return_address(0)) && fails(call("mmap"))) return MAP_FAILED;
  return real(at, bytes, access, flags, file, place);
}
void* mmap64(void* at, size_t bytes, int access, int flags, int file, off_t place) {
  static const auto real = next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap");
  if (is_of_program(__builtin_return_address(0)) && fails(call("mmap"))) return MAP_FAILED;
  return real(at, bytes, access, flags, file, place);
}
REPLACE(call("ftruncate"), -1, int, ftruncate, (int file, off_t bytes), (file, bytes))
REPLACE(call("ftruncate"), -1, int, ftruncate64, (int file, off_t bytes), (file, bytes))
REPLACE(call("fallocate"), -1, int, fallocate, (int file, int mode, off_t place, off_t bytes),
        (file, mode, place, bytes))
REPLACE(call("fallocate"), -1, int, fallocate64, (int file, int mode, off_t place, off_t bytes),
        (file, mode, place, bytes))
REPLACE_DONE(call("close"), -1, int, close, (int file), (file))
REPLACE(call("opendir"), nullptr, DIR*, opendir, (const char* path), (path))
REPLACE(call("opendir"), nullptr, DIR*, fdopendir, (int file), (file))
REPLACE(call("readdir"), nullptr, dirent*, readdir, (DIR * directory), (directory))
REPLACE(call("readdir"), nullptr, dirent64*, readdir64, (DIR * directory), (directory))
REPLACE(call("pthread_create"), fault.error, int, pthread_create,
        (pthread_t * thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument),
        (thread, attributes, work, argument))
REPLACE(call("aligned_alloc"), nullptr, void*, aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))
REPLACE(call("flock"), -1, int, flock, (int file, int operation), (file, operation))
REPLACE(call("pipe"), -1, int, pipe2, (int ends[2], int flags), (ends, flags))
REPLACE(call("pipe"), -1, int, pipe, (int ends[2]), (ends))
size_t fwrite(const void* bytes, size_t size, size_t count, FILE* file) {
  static const auto real = next<size_t (*)(const void*, size_t, size_t, FILE*)>("fwrite");
  if (file != stderr && fails(call("fwrite"))) return 0;
  return real(bytes, size, count, file);
}
REPLACE(call("fflush"), EOF, int, fflush, (FILE * file), (file))
REPLACE_DONE(call("fclose"), EOF, int, fclose, (FILE * file), (file))

}  // extern "C"

void* operator new(size_t bytes) {
  void* const memory = fails(call("new")) ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* operator new(size_t bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  if (fails(call("new")) || ::posix_memalign(&memory, static_cast<size_t>(alignment), bytes > 0 ? bytes : 1) != 0)
    throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
