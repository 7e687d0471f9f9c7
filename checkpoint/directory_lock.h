// A lock on a directory that a run writes into, so that no second run writes there: a directory of checkpoints, or the
// run's folder.
//
// The lock is flock() on a file in the directory, held by rank 0. It ends with the process, whatever ends the process,
// so a restart has nothing to clean up. fcntl() locks would work on more old file systems, but end when any descriptor
// of the file is closed. On NFS the kernel turns flock() into an fcntl() lock on the server, so that it holds between
// machines. Lustre does so when mounted with -o flock; with localflock the lock holds on one machine only. After the
// loss of a machine its lock lasts until the server's lease ends.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace octavo {

// A use of a directory. One directory may have a lock for each use.
struct DirectoryUse {
  const char* key;   // Config key that names the directory in messages.
  const char* file;  // Name of the file that is locked.
};
inline constexpr DirectoryUse kCheckpointDirectory{"checkpoint.dir", "lock"};
inline constexpr DirectoryUse kLoggingDirectory{"logging.dir", "log.lock"};

class DirectoryLock {
 public:
  // Waits up to `patience` for a holder that is ending, because the processes of a restarted run may take seconds to
  // die. Then throws an InputError that names the holder's host and process. If the file system has no locks, warns and
  // locks nothing.
  DirectoryLock(const std::filesystem::path& dir, DirectoryUse use,
                std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  // Throws an InputError if a run on this machine, or on one that shares its locks, holds the lock. Creates nothing.
  static void check_free(const std::filesystem::path& dir, DirectoryUse use);

  // Locks the directory again if its lock file was removed or replaced, for example with the directory. Throws an Error
  // if there is no such directory, or if another run has the lock.
  void renew();

 private:
  enum class Attempt { kTaken, kHeld, kUnknown };
  Attempt try_lock();
  bool is_in_place() const;
  static std::string holder(const std::filesystem::path& path);

  std::filesystem::path dir_;
  DirectoryUse use_;
  std::filesystem::path path_;
  int descriptor_ = -1;  // Descriptor of the locked file. -1 means that nothing is locked.
  bool has_locks_ = true;
};

}  // namespace octavo
