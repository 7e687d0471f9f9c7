#include "app/run/memory_checkpoints.h"

#include <utility>

#include "app/inputs/model_path.h"
#include "app/inputs/same_files.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "parallel/ranks/machines.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

// Key in the manifest of a checkpoint in memory: manifest_mark() of the newest checkpoint on disk at the time of
// saving.
constexpr const char* kOnDisk = "newest_on_disk";
// Key in the manifest of a checkpoint in memory: the name of the checkpoint that was being written to disk when this
// one was saved. It may have become the newest checkpoint on disk.
constexpr const char* kPendingOnDisk = "pending_on_disk";

}  // namespace

// Compares marks, because a machine that was offline may hold a checkpoint in memory from an earlier time.
std::optional<Checkpoint> MemoryCheckpoints::open(const std::optional<fs::path>& newest_on_disk,
                                                  std::span<const TensorPart> needed) {
  const std::string& resume = config_.checkpoint.resume;
  if (!config_.checkpoint.in_memory || resume == "never") return std::nullopt;
  const fs::path left = left_directory();
  if (left.empty()) return std::nullopt;
  use(left);
  const std::string mark = mark_of(newest_on_disk);
  const std::string name = newest_on_disk ? newest_on_disk->filename().string() : "none";
  std::optional<Checkpoint> newest;
  try {
    newest = memory_->bring_together(
        [&](const Checkpoint& checkpoint) {
          const nlohmann::json& meta = checkpoint.meta();
          if (resume != "auto" && !began_at(resume, meta)) return false;
          return meta.value(kOnDisk, nlohmann::json()) == mark || meta.value(kPendingOnDisk, nlohmann::json()) == name;
        },
        needed);
  } catch (const InputError& error) {
    if (!runtime_.group().shares(error)) throw;
    if (runtime_.group().is_root()) log_warning("{}; the run resumes from disk instead", error.what());
  }
  if (!newest) {
    writer_.reset();
    memory_.reset();
  }
  return newest;
}

void MemoryCheckpoints::prepare(std::span<const CheckpointTensor> pieces, const std::vector<AttachedFile>& files) {
  if (!config_.checkpoint.in_memory) return;
  ProcessGroup& group = runtime_.group();
  bytes_ = CheckpointWriter::staging_bytes(pieces);
  files_ = files;
  files_.resize(static_cast<size_t>(group.all_reduce_max(std::ssize(files_))));
  for (AttachedFile& file : files_) {
    file.name = group.broadcast(file.name);
    file.content = group.broadcast(file.content);
  }
  if (writer_) {
    reserve();
  } else if (left_directory().empty()) {
    check_memory();  // If nothing is to be freed first, this detects a lack of memory before anything is written.
  }
}

// Gives the directory in memory a new name at each start of the run. Otherwise a machine that is offline now could
// contribute an old checkpoint later.
void MemoryCheckpoints::begin() {
  if (writer_) return;
  free_left();
  if (!config_.checkpoint.in_memory) return;
  use(found_by_root("naming a directory in memory", runtime_.group(),
                    [&] { return renew_memory_directory(config_.checkpoint.dir).string(); }));
  reserve();
}

bool MemoryCheckpoints::due(int64_t step) const {
  return writer_ && writer_->ready() && step % config_.checkpoint.in_memory_every == 0;
}

void MemoryCheckpoints::save(int64_t step, nlohmann::json meta, std::span<const CheckpointTensor> pieces,
                             const DiskCheckpoints& on_disk) {
  const std::optional<fs::path> newest_on_disk = on_disk.last_path();
  if (newest_on_disk != marked_) {
    mark_ = mark_of(newest_on_disk);
    marked_ = newest_on_disk;
  }
  meta[kOnDisk] = mark_;
  meta[kPendingOnDisk] = on_disk.pending_name();
  attempt([&] { writer_->save(step, config_.model, meta, pieces); });
}

void MemoryCheckpoints::poll() {
  if (writer_ && !writer_->ready()) attempt([&] { writer_->poll(); });
}

void MemoryCheckpoints::free() {
  if (writer_) attempt([&] { writer_->finish(); });
  writer_.reset();
  memory_.reset();
  free_left();
}

void MemoryCheckpoints::discard() {
  if (!writer_) return;
  free();
  begin();
}

// Returns the directory in memory that an earlier start recorded, or an empty path.
fs::path MemoryCheckpoints::left_directory() {
  return found_by_root("looking for a checkpoint in memory", runtime_.group(),
                       [&] { return memory_directory(config_.checkpoint.dir).string(); });
}

void MemoryCheckpoints::use(const fs::path& directory) {
  memory_.emplace(directory, runtime_.group());
  writer_.emplace(CheckpointOptions{.dir = directory.string(), .keep = 1, .async = true, .memory = &*memory_},
                  runtime_.group(), runtime_.stream());
}

// Removes the checkpoint that an earlier start left in memory, and the record of its directory.
void MemoryCheckpoints::free_left() {
  ProcessGroup& group = runtime_.group();
  try {
    const fs::path directory = left_directory();
    group.throw_file_errors_on_all_ranks("freeing memory", [&] {
      if (!directory.empty() && group.local_rank() == 0) remove_private_directory(directory);
    });
    group.throw_file_errors_on_all_ranks("freeing memory", [&] {
      if (group.is_root()) forget_memory_directory(config_.checkpoint.dir);
    });
  } catch (const InputError& error) {
    if (config_.checkpoint.in_memory || !group.shares(error)) throw;
    if (group.is_root())
      log_warning("the checkpoint that an earlier start left in memory cannot be removed: {}", error.what());
  }
}

// Checks that memory suffices for staging, one complete checkpoint and one that is being written. With several
// machines, each also holds a replica for another machine.
void MemoryCheckpoints::check_memory() {
  const int machines = Machines(runtime_.group()).count();
  runtime_.group().throw_on_all_ranks([&] {
    const int64_t needed = (machines > 1 ? 5 : 3) * bytes_;
    const HostMemory host = share_of_host_memory(runtime_.group());
    CHECK_INPUT(needed <= host.available_bytes,
                "checkpoint.in_memory takes {:.1f} GiB of host memory per rank, but {:.1f} GiB are available{}",
                gib(needed), gib(host.available_bytes), host.describe_limit());
  });
}

// Reserves the staging memory, and passes the attached files to the writers of all machines, because any machine may be
// the only one that is left later.
void MemoryCheckpoints::reserve() {
  check_memory();
  runtime_.group().throw_on_all_ranks([&] { writer_->reserve(bytes_); });
  writer_->attach(files_);
  poll();  // Updates due(), because the memory of a small state is already prepared.
}

// Returns a text that identifies a checkpoint on disk, or an empty text if there is none.
std::string MemoryCheckpoints::mark_of(const std::optional<fs::path>& checkpoint) {
  return found_by_root("reading a manifest", runtime_.group(),
                       [&] { return checkpoint ? manifest_mark(*checkpoint) : ""; });
}

void MemoryCheckpoints::attempt(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (!runtime_.group().shares(error)) throw;
    if (runtime_.group().is_root() && !std::exchange(warned_, true)) {
      log_warning("the state cannot be saved in memory: {}", error.what());
    }
  }
}

}  // namespace octavo
