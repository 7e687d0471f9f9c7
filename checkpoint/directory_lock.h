// A lock on a directory that a run writes into, so that no second one does at the same time: of checkpoints, where they
// would clear each other's files away, or of what the run logs.
//
// It is flock() on a file there, held by rank 0: it ends with the process, however that ends, and so leaves nothing
// that a restart would have to clear away. fcntl() locks would do on more old file systems, but end when any descriptor
// of the file is closed; on NFS the kernel makes flock() one of them on the server, so that it holds between machines,
// as Lustre does when mounted with -o flock (with localflock only on one machine). After a machine is lost its lock
// lasts as long as the server's lease.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace octavo {

// What a run does with a directory; one directory may have a lock for each.
struct DirectoryUse {
  const char* key;   // of the config, for messages
  const char* file;  // that is locked
};
inline constexpr DirectoryUse kCheckpointDirectory{"checkpoint.dir", "lock"};
inline constexpr DirectoryUse kLoggingDirectory{"logging.dir", "log.lock"};

class DirectoryLock {
 public:
  // Waits up to `patience` for a holder that is ending: the processes of a run that is started again may take seconds
  // to die. Then InputError naming the holder's host and process. Where the file system has no locks, a warning, and
  // nothing is locked.
  DirectoryLock(const std::filesystem::path& dir, DirectoryUse use,
                std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  // Throws InputError where a run on this machine, or on one that shares its locks, holds the lock. Creates nothing.
  static void check_free(const std::filesystem::path& dir, DirectoryUse use);

  // Takes the lock again where its file is no longer that of the directory: it was removed, or the directory is another
  // one. Error when there is no such directory, or another run has it now.
  void renew();

 private:
  enum class Attempt { kTaken, kHeld, kUnknown };
  Attempt try_lock();
  bool is_in_place() const;
  static std::string holder(const std::filesystem::path& path);

  std::filesystem::path dir_;
  DirectoryUse use_;
  std::filesystem::path path_;
  int descriptor_ = -1;  // of the locked file; -1: nothing is locked
  bool has_locks_ = true;
};

}  // namespace octavo
