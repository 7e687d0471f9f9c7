// Checkpoint directories on disk: finding, filling, installing and clearing them away.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_format.h"

namespace octavo {

// Whether there is such a path. InputError where the system cannot tell (an I/O error, no permission, a loop of links),
// and for a link to nothing: a checkpoint that cannot be looked at is not one that is not there.
bool is_there(const std::filesystem::path& path);

// The N of a directory called step_N. Nothing for other names.
std::optional<int64_t> step_of_directory(const std::filesystem::path& directory);

// Complete checkpoints in `dir`, by step; none when it does not exist. A replaced one (kReplacedPrefix) counts only
// where its step has no other: the crash of a replacement on a file system that cannot exchange directories. InputError
// where one cannot be looked at.
struct FoundCheckpoint {
  int64_t step = 0;
  std::filesystem::path path;
};
std::vector<FoundCheckpoint> find_checkpoints(const std::filesystem::path& dir);

// Removes a directory and what is in it, if it exists. Error naming it when the system refuses.
void remove_directory(const std::filesystem::path& dir);

// Removes a checkpoint, first its name, so that a crash midway leaves no half one under it. Error naming it when the
// system refuses.
void remove_checkpoint(const FoundCheckpoint& checkpoint);

// Gives a checkpoint another name that is free, which begins with `prefix`, and returns it. Error naming it when the
// system refuses.
std::filesystem::path set_aside_directory(const std::filesystem::path& checkpoint, const std::string& prefix);

// Creates a directory for what an earlier run left in `dir`: kEarlierName, or that with a number where the name is
// taken.
std::filesystem::path create_earlier(const std::filesystem::path& dir);

// Moves checkpoints into a directory of their own beside them (create_earlier), and returns it.
std::filesystem::path move_to_earlier(const std::filesystem::path& dir,
                                      const std::vector<FoundCheckpoint>& checkpoints);

// What this process may still write to the file system of `dir`; nothing where the system does not say.
std::optional<int64_t> free_bytes(const std::filesystem::path& dir);

// Makes a directory's entries (files created or renamed in it) durable. Error naming it when the system refuses.
void sync_directory(const std::filesystem::path& dir);

// Puts the complete directory `fresh` at `final`, replacing what is there: exchanged in one step where the file system
// can, else the old one is put aside first under kReplacedPrefix, so that at any moment one of both is complete. Both
// must have the same parent, which is synced. What was replaced stays under its temporary name where it cannot be
// removed.
void install_directory(const std::filesystem::path& fresh, const std::filesystem::path& final);

// Writes a file into `dir` and describes it for the manifest.
CarriedFileInfo write_carried_file(const std::filesystem::path& dir, const CarriedFile& file);

// The text of a checkpoint's manifest, in the hands of whoever read the file or was sent it.
struct ManifestFile {
  std::filesystem::path checkpoint;
  std::string text;
};
// Of the checkpoint at that path. UnreadableFile where it cannot be read.
ManifestFile read_manifest(const std::filesystem::path& checkpoint);
// What tells a checkpoint's manifest from another one without reading it: its length and its last bytes, where its
// checksum of itself stands. UnreadableFile where it cannot be read.
std::string manifest_mark(const std::filesystem::path& checkpoint);
// The same of one that is at hand.
std::string manifest_mark(const ManifestFile& manifest);

// Writes manifest.json into `dir`, syncs both and reads the file back. Error when it is not as it was written.
void write_manifest(const std::filesystem::path& dir, const CheckpointManifest& manifest);

// Puts an interrupted replacement back. Returns what else crashed runs left in `dir`, to be removed.
std::vector<std::filesystem::path> put_interrupted_back(const std::filesystem::path& dir);
// And removes it.
void clean_up_interrupted(const std::filesystem::path& dir);

}  // namespace octavo
