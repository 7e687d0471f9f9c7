// The directory in shared memory that belongs to a directory of checkpoints.
//
// Its name is drawn at random and stands in the file kMemoryIdFile of the directory of checkpoints, with the number of
// that file's inode. So no other user can make it beforehand, and a run folder that was removed and made again, a copy
// of it, and the equal path of another container each get a different directory. It is open to its user alone. Because
// /dev/shm is sticky, nobody else can rename or remove it once it is there, and what lies in it was written by this
// user: only the directory itself has to be checked.
#pragma once

#include <filesystem>
#include <string>

namespace octavo {

inline constexpr const char* kMemoryIdFile = "memory_id";

// Returns the path in shared memory that belongs to `checkpoint_dir`, empty if it has none. InputError where its
// kMemoryIdFile holds something else.
std::filesystem::path memory_directory(const std::filesystem::path& checkpoint_dir);
// Draws a new name for `checkpoint_dir` and returns the path.
std::filesystem::path renew_memory_directory(const std::filesystem::path& checkpoint_dir);
// Removes the name.
void forget_memory_directory(const std::filesystem::path& checkpoint_dir);

// Makes the directory `path`, open to this user alone. InputError where it cannot be made, or where something is there
// that is no directory (a link included), belongs to another user, or is open to others.
void make_private_directory(const std::filesystem::path& path);

// Locks (checkpoint/directory_lock.h) and removes a directory that make_private_directory() made, if it is there. One
// that is not this user's, or that a process uses, stays, with a warning.
void remove_private_directory(const std::filesystem::path& path);

}  // namespace octavo
