// The directory in shared memory that belongs to a directory of checkpoints.
//
// Its name is random and is stored in the file kMemoryIdFile of the directory of checkpoints, with the inode number of
// that file. So no other user can create it in advance, and a run folder that was removed and created again, a copy of
// it, and the equal path in another container each have a different directory. Only its user can open it. Because
// /dev/shm is sticky, nobody else can rename or remove it, and its contents were written by this user. So only the
// directory itself must be checked.
#pragma once

#include <filesystem>
#include <string>

namespace octavo {

inline constexpr const char* kMemoryIdFile = "memory_id";

// Returns the path in shared memory that belongs to `checkpoint_dir`, or an empty path if it has none. Throws an
// InputError if its kMemoryIdFile is invalid.
std::filesystem::path memory_directory(const std::filesystem::path& checkpoint_dir);
// Draws a new name for `checkpoint_dir` and returns the path.
std::filesystem::path renew_memory_directory(const std::filesystem::path& checkpoint_dir);
// Removes the name.
void forget_memory_directory(const std::filesystem::path& checkpoint_dir);

// Makes the directory `path`, accessible to this user only. Throws an InputError if it cannot be made, or if the path
// exists and is not a directory (or is a link), belongs to another user, or is accessible to others.
void make_private_directory(const std::filesystem::path& path);

// Locks (checkpoint/directory_lock.h) and removes a directory that make_private_directory() made, if it exists. Warns
// and leaves it if it belongs to another user or a process uses it.
void remove_private_directory(const std::filesystem::path& path);

}  // namespace octavo
