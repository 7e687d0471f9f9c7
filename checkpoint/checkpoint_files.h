// Functions that find, fill, install and remove checkpoint directories on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_format.h"

namespace octavo {

// Returns whether the path exists. Throws an InputError if the system cannot tell (an I/O error, no permission, a loop
// of links), and for a link to nothing, because an inaccessible checkpoint must not count as missing.
bool is_there(const std::filesystem::path& path);

// Returns the N of a directory called step_N, or nothing for other names.
std::optional<int64_t> step_of_directory(const std::filesystem::path& directory);

// A checkpoint in a directory of checkpoints.
struct FoundCheckpoint {
  int64_t step = 0;
  std::filesystem::path path;
  bool is_complete = true;  // Whether it has a manifest.
};
// Returns the complete checkpoints in `dir` in the order of their steps, and none if `dir` does not exist.
// `with_incomplete` adds the directories step_N without a manifest, such as partial copies. A replaced checkpoint
// (kReplacedPrefix), which a crash leaves on a file system that cannot exchange directories, counts only if its step
// has no other complete checkpoint. Throws an InputError if a checkpoint cannot be accessed.
std::vector<FoundCheckpoint> find_checkpoints(const std::filesystem::path& dir, bool with_incomplete = false);

// Removes a directory and its contents if it exists. Throws an Error that names it if the system refuses.
void remove_directory(const std::filesystem::path& dir);

// Renames a checkpoint and removes it, so that a crash leaves no incomplete checkpoint under its name. Throws an Error
// that names it if the system refuses.
void remove_checkpoint(const FoundCheckpoint& checkpoint);

// Renames a checkpoint to a free name that begins with `prefix` and returns the name. Throws an Error that names it if
// the system refuses.
std::filesystem::path set_aside_directory(const std::filesystem::path& checkpoint, const std::string& prefix);

// Creates a directory for the checkpoints of an earlier run in `dir`: kEarlierName, with a number if the name is taken.
std::filesystem::path create_earlier(const std::filesystem::path& dir);

// Moves checkpoints into a new directory in `dir` (create_earlier) and returns it.
std::filesystem::path move_to_earlier(const std::filesystem::path& dir,
                                      const std::vector<FoundCheckpoint>& checkpoints);

// Returns the number of bytes that this process may still write to the file system of `dir`, or nothing if the system
// does not say.
std::optional<int64_t> free_bytes(const std::filesystem::path& dir);

// Makes a directory's entries (created or renamed files) durable. Throws an Error that names it if the system refuses.
void sync_directory(const std::filesystem::path& dir);

// Renames the complete directory `fresh` to `final`, replacing an existing one, and syncs their parent. The two are
// exchanged in one step if the file system can. Otherwise the old one first moves to a name with kReplacedPrefix, so
// that a complete directory exists at any moment. The replaced directory stays under its temporary name if it cannot be
// removed.
// Requires: both paths have the same parent.
void install_directory(const std::filesystem::path& fresh, const std::filesystem::path& final);

// Writes a file into `dir` and returns its description for the manifest.
ListedFile write_attached_file(const std::filesystem::path& dir, const AttachedFile& file);

// The text of a checkpoint's manifest, which was read from the file or received from another rank.
struct ManifestFile {
  std::filesystem::path checkpoint;
  std::string text;
};
// Reads the manifest of a checkpoint. Throws a DamagedCheckpoint if there is none, and an UnreadableFile if it cannot
// be read.
ManifestFile read_manifest(const std::filesystem::path& checkpoint);
// Returns a text that identifies a checkpoint's manifest without reading all of it: its length and its last bytes,
// which are its checksum. Throws an UnreadableFile if it cannot be read.
std::string manifest_mark(const std::filesystem::path& checkpoint);
// Returns the same text for a manifest in memory.
std::string manifest_mark(const ManifestFile& manifest);

// Writes manifest.json into `dir`, syncs the file and `dir`, and reads the file back. Throws an Error if it differs
// from what was written.
void write_manifest(const std::filesystem::path& dir, const CheckpointManifest& manifest);

// Restores replaced checkpoints (kReplacedPrefix) whose replacement a crash interrupted. Returns the paths of other
// remains of crashed runs in `dir`, which the caller should remove.
std::vector<std::filesystem::path> put_interrupted_back(const std::filesystem::path& dir);

}  // namespace octavo
