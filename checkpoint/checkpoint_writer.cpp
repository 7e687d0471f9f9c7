#include "checkpoint/checkpoint_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <system_error>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_slice.h"
#include "core/error.h"
#include "core/files/checksum.h"
#include "core/files/parallel_write.h"
#include "core/log.h"
#include "core/thread.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStagingAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment; }

bool is_whole(const CheckpointTensor& piece) {
  return piece.columns.none() && piece.begin == 0 && piece.end == slice_numel(piece.shape, {});
}

using Clock = std::chrono::steady_clock;

// Longest delay after which a network file system shows what another machine wrote. NFS looks again after at most a
// minute.
constexpr std::chrono::seconds kLongestLag{60};

// Returns the size of a file that another rank wrote, after waiting until it is as expected or time is up. Does not
// wait if its directory, which this rank made, is gone.
int64_t size_when_seen(const fs::path& path, int64_t expected, Clock::time_point by, std::error_code& error) {
  constexpr std::chrono::milliseconds kPause{100};
  for (;;) {
    const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
    const bool may_come = error == std::errc::no_such_file_or_directory || (!error && bytes < expected);
    std::error_code ignored;
    if (!may_come || Clock::now() >= by || !fs::is_directory(path.parent_path(), ignored)) return bytes;
    std::this_thread::sleep_for(kPause);
  }
}

// A whole tensor keeps its name, so that the shards of a single rank are also plain safetensors files of the model.
std::string piece_key(const CheckpointTensor& piece) {
  if (is_whole(piece)) return piece.name;
  const ColumnRange columns = piece.columns;
  const std::string slice = columns.none() ? "" : fmt::format("[:, {}:{}]", columns.begin, columns.end);
  return fmt::format("{}{}[{}:{}]", piece.name, slice, piece.begin, piece.end);
}

// Checks a piece, and returns it with empty columns if they are all columns of the tensor.
CheckpointTensor checked_piece(CheckpointTensor piece) {
  const std::string where = "checkpoint piece of " + piece.name;
  checked_slice(where, piece.shape, piece.columns, piece.begin, piece.end);
  CHECK(piece.data.numel() == piece.end - piece.begin, "{} {}: its elements {} to {} do not match the data {}", where,
        describe_slice(piece.shape, piece.columns), piece.begin, piece.end, piece.data.describe());
  piece.columns = normalized_columns(piece.shape, piece.columns);
  return piece;
}

// Returns the pieces as this rank's part of the manifest, without checksums.
std::vector<CheckpointTensorInfo> describe_pieces(std::span<const CheckpointTensor> pieces, const std::string& file) {
  std::vector<CheckpointTensorInfo> tensors;
  std::map<std::string, size_t> index;
  for (const CheckpointTensor& piece : pieces) {
    const auto [position, fresh] = index.emplace(piece.name, tensors.size());
    if (fresh) tensors.push_back({piece.name, piece.shape, piece.data.dtype(), {}});
    if (piece.begin == piece.end) continue;
    tensors[position->second].pieces.push_back({file, piece_key(piece), piece.begin, piece.end, "", piece.columns});
  }
  return tensors;
}

// Removes the remains of crashed runs. Failures are ignored, because the remains do not disturb the run.
void remove_left_behind(const std::vector<fs::path>& left) {
  for (const fs::path& path : left) {
    try {
      remove_directory(path);
    } catch (const std::exception& error) {
      log_warning("the remains of an earlier run could not be removed; the next save tries again: {}", error.what());
    }
  }
}

}  // namespace

std::vector<CheckpointTensor> divide_tensors(std::span<const CheckpointTensor> tensors, int index, int count) {
  CHECK(0 <= index && index < count, "part {} of {}", index, count);
  int64_t total_bytes = 0;
  for (const CheckpointTensor& tensor : tensors) total_bytes += tensor.data.bytes();
  // Divides before it multiplies, so that the numbers fit in 64 bits even for petabytes.
  const auto boundary = [&](int64_t i) { return total_bytes / count * i + total_bytes % count * i / count; };
  const int64_t first = boundary(index), last = boundary(index + 1);

  std::vector<CheckpointTensor> part;
  int64_t offset = 0;  // Offset in bytes of the current tensor in the list.
  for (const CheckpointTensor& tensor : tensors) {
    const int64_t size = dtype_bytes(tensor.data.dtype());
    const int64_t elements = tensor.data.numel();
    // Returns the first element that starts at or after a byte. The end of one part is the beginning of the next.
    const auto element_at = [&](int64_t byte) {
      return byte <= offset ? 0 : std::min((byte - offset + size - 1) / size, elements);
    };
    const int64_t begin = element_at(first), end = element_at(last);
    offset += elements * size;
    if (begin == end) continue;
    char* data = static_cast<char*>(tensor.data.raw()) + begin * size;
    part.push_back({tensor.name, tensor.shape, tensor.begin + begin, tensor.begin + end,
                    Tensor(data, tensor.data.dtype(), {end - begin}), tensor.columns, tensor.stable});
  }
  return part;
}

CheckpointWriter::CheckpointWriter(CheckpointOptions options, ProcessGroup& group, Stream& stream)
    : options_(std::move(options)),
      group_(group),
      stream_(stream),
      staging_(stream),
      copies_(Stream::beside(stream)),
      begun_(stream.device()) {
  group_.throw_file_errors_on_all_ranks("clearing checkpoint.dir", [&] {
    std::error_code error;
    fs::create_directories(options_.dir, error);
    CHECK_INPUT(!error, "checkpoint.dir {}: cannot be created: {}", options_.dir, error.message());
    CHECK_INPUT(::access(options_.dir.c_str(), R_OK | W_OK | X_OK) == 0, "checkpoint.dir {}: cannot be written to: {}",
                options_.dir, std::strerror(errno));
    if (!manages_directory()) return;
    lock_.emplace(options_.dir, kCheckpointDirectory);
    std::vector<fs::path> left = put_interrupted_back(options_.dir);
    find_checkpoints(options_.dir);  // An inaccessible checkpoint would end the run at its first save.
    if (!left.empty()) remove_in_background([left = std::move(left)] { remove_left_behind(left); });
  });
}

// Runs `work` in the background, because removing a large checkpoint takes seconds. If no thread can be started,
// wait_for_removals() runs it.
void CheckpointWriter::remove_in_background(const std::function<void()>& work) {
  wait_for_removals();
  // `work` is copied, because a thread that fails to start would destroy what was moved to it.
  removals_ = std::async(std::launch::async | std::launch::deferred, work);
}

void CheckpointWriter::wait_for_removals() {
  if (removals_.valid()) removals_.get();
}

CheckpointWriter::~CheckpointWriter() {
  wait_for_removals();
  if (thread_.joinable()) thread_.join();
  // With several ranks others may still be writing into the directory; the next writer removes it.
  if (pending_ && group_.size() == 1) discard();
}

int64_t CheckpointWriter::staging_bytes(std::span<const CheckpointTensor> pieces) {
  int64_t bytes = 0;
  for (const CheckpointTensor& piece : pieces) bytes += aligned(piece.data.bytes());
  return bytes;
}

void CheckpointWriter::reserve(int64_t bytes) {
  CHECK(!pending_, "checkpoint staging memory cannot change while a save is pending");
  if (!stages()) return;
  staging_.reserve(bytes);
  ready_ = false;
}

void CheckpointWriter::save(int64_t step, const ModelConfig& model, const nlohmann::json& meta,
                            std::span<const CheckpointTensor> pieces) {
  finish();
  stop_ = false;
  std::vector<CheckpointTensor> checked;
  final_ = fs::path(options_.dir) / step_directory_name(step);
  temporary_ = fs::path(options_.dir) / (kTemporaryPrefix + step_directory_name(step));
  try {
    group_.throw_file_errors_on_all_ranks("preparing a checkpoint", [&] {
      for (const CheckpointTensor& piece : pieces) checked.push_back(checked_piece(piece));
      stage(checked);
      if (!manages_directory()) return;
      wait_for_removals();
      lock_->renew();
      remove_directory(temporary_);
      std::error_code error;
      // Does not create parents, because a checkpoint.dir that is gone may be a file system that is not mounted.
      fs::create_directory(temporary_, error);
      CHECK(!error, "{}: cannot be created: {}", temporary_.string(), error.message());
    });
  } catch (...) {
    if (manages_directory()) discard();
    throw;
  }
  part_ = CheckpointManifest{step, model, group_.size(), meta, {}, describe_pieces(checked, shard_name(group_.rank()))};
  error_ = nullptr;
  done_ = false;
  pending_ = true;
  staged_.reached_.store(false, std::memory_order_release);
  if (options_.async) thread_ = start_thread_if_possible([this] { run_write(); });
  if (!thread_.joinable()) run_write();
  if (!options_.async) commit();
}

// Fills host_pieces_ with places in staging memory and copies the pieces there, on a GPU only those that are not
// stable. If nothing is staged (stages()), host_pieces_ are the pieces themselves.
void CheckpointWriter::stage(std::span<const CheckpointTensor> pieces) {
  pieces_.assign(pieces.begin(), pieces.end());
  std::erase_if(pieces_, [](const CheckpointTensor& piece) { return piece.begin == piece.end; });
  host_pieces_ = pieces_;
  if (!stages()) return;
  reserve(staging_bytes(host_pieces_));
  char* next = static_cast<char*>(staging_.data());  // Waits for the thread that prepares the memory.
  for (CheckpointTensor& piece : host_pieces_) {
    piece.data = Tensor(next, piece.data.dtype(), {piece.data.numel()});
    next += aligned(piece.data.bytes());
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Tensor& to = host_pieces_[i].data;
    if (!pieces_[i].stable) staging_.copy(stream_, to.raw(), pieces_[i].data.raw(), to.bytes());
  }
  begun_.record(stream_);
  if (!stream_.is_cuda()) copy_stable_pieces();
}

// Copies one piece at a time. A GPU queues a limited number of copies, and a call that waits for space in the queue
// would also block calls of other threads.
void CheckpointWriter::copy_stable_pieces() {
  begun_.synchronize();
  for (size_t i = 0; i < pieces_.size() && !stop_; ++i) {
    if (!pieces_[i].stable) continue;
    const Tensor& to = host_pieces_[i].data;
    staging_.copy(copies_, to.raw(), pieces_[i].data.raw(), to.bytes());
    copies_.synchronize();
  }
}

// The writing thread. It uses only what save() prepared, and only those parts of MPI that threads may use.
void CheckpointWriter::run_write() noexcept {
  // Turns any exception into an Error, even an InputError, because the failure occurs while the run is in progress.
  const auto attempt = [this](const auto& work) {
    try {
      work();
    } catch (const std::exception& error) {
      if (!error_) error_ = std::make_exception_ptr(Error(failure_text(error)));
    }
  };
  attempt([&] {
    stream_.bind_thread();
    if (stages() && stream_.is_cuda()) copy_stable_pieces();
  });
  if (error_) attempt([&] { copies_.synchronize(); });  // The next save may use the staging memory at once.
  staged_.reached_.store(true, std::memory_order_release);
  staged_.reached_.notify_all();
  attempt([&] {
    if (error_) return;
    const auto begin = std::chrono::steady_clock::now();
    if (!host_pieces_.empty()) write_shard();
    write_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  attempt([&] {
    if (options_.memory == nullptr) return;
    const std::vector<std::span<const std::byte>> parts = shard_parts();
    const std::span<const std::span<const std::byte>> shard(parts);
    options_.memory->keep_copies(temporary_, error_ ? nullptr : &shard);
  });
  done_.store(true, std::memory_order_release);
}

// Returns this rank's shard in memory, or nothing if the rank has no pieces.
std::vector<std::span<const std::byte>> CheckpointWriter::shard_parts() const {
  std::vector<std::span<const std::byte>> parts;
  if (host_pieces_.empty()) return parts;
  parts.push_back(std::as_bytes(std::span(shard_beginning_)));
  for (const CheckpointTensor& piece : host_pieces_) {
    parts.emplace_back(static_cast<const std::byte*>(piece.data.raw()), static_cast<size_t>(piece.data.bytes()));
  }
  return parts;
}

void CheckpointWriter::write_shard() {
  std::vector<SafetensorsEntry> entries;
  for (const CheckpointTensor& piece : host_pieces_) {
    const std::vector<int64_t> shape = is_whole(piece) ? piece.shape : std::vector{piece.end - piece.begin};
    entries.push_back({piece_key(piece), safetensors_dtype(piece.data.dtype()), shape, 0, 0});
  }
  const std::string file = shard_name(group_.rank());
  shard_beginning_ = begin_safetensors(entries);
  const std::vector<std::span<const std::byte>> parts = shard_parts();
  // Runs while the file is written, which takes longer, or afterwards if no thread can be started.
  constexpr auto kAlongside = std::launch::async | std::launch::deferred;
  std::future<std::map<std::string, std::string>> checksums = std::async(kAlongside, [this] {
    std::map<std::string, std::string> by_key;
    for (const CheckpointTensor& piece : host_pieces_) {
      if (stop_) break;
      by_key[piece_key(piece)] = checksum_hex(piece.data.raw(), piece.data.bytes());
    }
    return by_key;
  });
  write_file_in_parallel((temporary_ / file).string(), parts, &stop_);
  const std::map<std::string, std::string> by_key = checksums.get();
  for (CheckpointTensorInfo& tensor : part_.tensors) {
    for (CheckpointPiece& piece : tensor.pieces) piece.checksum = by_key.at(piece.key);
  }
  int64_t bytes = 0;
  for (const auto& part : parts) bytes += std::ssize(part);
  const auto header = parts.front().subspan(kSafetensorsLengthBytes);
  part_.shards = {{file, bytes, checksum_hex(header.data(), std::ssize(header))}};
}

bool CheckpointWriter::poll() {
  if (pending_ && written()) commit();
  if (!pending_ && !ready_) {
    // If no thread could be started, wait_for_removals() does the work.
    const bool removes =
        removals_.valid() && removals_.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
    ready_ = group_.all_reduce_max(staging_.is_ready() && !removes ? 0 : 1) == 0;
  }
  return !pending_;
}

bool CheckpointWriter::written() { return group_.all_reduce_max(done_.load(std::memory_order_acquire) ? 0 : 1) == 0; }

void CheckpointWriter::finish() {
  if (!pending_) return;
  commit();
}

void CheckpointWriter::abandon() {
  if (!pending_) return;
  pending_ = false;
  group_.throw_file_errors_on_all_ranks("abandoning a checkpoint", [&] {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  });
  if (manages_directory()) discard();
}

void CheckpointWriter::commit() {
  if (thread_.joinable()) thread_.join();
  try {
    // Agreeing also waits for the threads of the other ranks.
    group_.throw_file_errors_on_all_ranks("writing a checkpoint", [&] {
      if (error_) std::rethrow_exception(error_);
    });
    gather_parts();
    group_.throw_file_errors_on_all_ranks("completing a checkpoint", [&] {
      if (manages_directory()) install();
    });
  } catch (...) {
    if (manages_directory()) discard();
    pending_ = false;
    throw;
  }
  pending_ = false;
  ready_ = false;
  last_saved_ = final_;
  if (!manages_directory()) return;
  remove_in_background([this, step = part_.step] { prune(step); });
  if (!options_.async) wait_for_removals();
}

// Makes part_ the whole manifest on the ranks that write it.
void CheckpointWriter::gather_parts() {
  std::vector<std::string> parts = group_.gather(manifest_part_to_json(part_).dump());
  CheckpointManifest manifest{part_.step, part_.model, part_.ranks, part_.meta, {}, {}};
  std::string whole;
  group_.throw_on_all_ranks([&] {
    ManifestParts together(manifest);
    for (std::string& part : parts) together.add(nlohmann::json::parse(std::exchange(part, {})));
    if (!group_.is_root()) return;
    check_complete(manifest);
    if (options_.memory != nullptr) whole = manifest_part_to_json(manifest).dump();
  });
  if (options_.memory != nullptr) {
    whole = group_.broadcast(whole);
    if (!group_.is_root()) ManifestParts(manifest).add(nlohmann::json::parse(whole));
  }
  part_ = std::move(manifest);
}

// Turns the temporary directory into the checkpoint.
// Requires: part_ is the whole manifest.
void CheckpointWriter::install() {
  std::set<std::string> elsewhere;
  for (int rank = 0; options_.memory != nullptr && rank < group_.size(); ++rank) {
    if (!options_.memory->has_shard_of(rank)) elsewhere.insert(shard_name(rank));
  }
  const Clock::time_point lag_ends = Clock::now() + kLongestLag;
  for (const ListedFile& shard : part_.shards) {
    if (elsewhere.contains(shard.name)) continue;
    std::error_code error;
    const int64_t bytes = size_when_seen(temporary_ / shard.name, shard.bytes, lag_ends, error);
    std::error_code ignored;
    CHECK(!error || fs::is_directory(temporary_, ignored), "{}: was removed while the checkpoint was being written",
          temporary_.string());
    CHECK(!error, "{}: not seen by rank 0 ({}); checkpoint.dir must be on a file system that all ranks share",
          (temporary_ / shard.name).string(), error.message());
    CHECK(bytes == shard.bytes, "{}: is {} bytes long, but its rank wrote {}", (temporary_ / shard.name).string(),
          bytes, shard.bytes);
  }
  for (const AttachedFile& file : attached_) part_.files.push_back(write_attached_file(temporary_, file));
  write_manifest(temporary_, part_);
  install_directory(temporary_, final_);
}

// Keeps the newest `keep` checkpoints up to this step, and those of `keep_every`. Checkpoints of later steps belong to
// a run that was rolled back, and stay. If one cannot be removed, warns once and tries again after the next save.
void CheckpointWriter::prune(int64_t newest_step) const {
  std::string failure;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const std::exception& error) {
      if (failure.empty()) failure = error.what();
    }
  };
  std::vector<FoundCheckpoint> found;
  attempt([&] {
    for (const fs::path& path : put_interrupted_back(options_.dir)) remove_directory(path);
  });
  attempt([&] { found = find_checkpoints(options_.dir); });
  std::erase_if(found, [&](const FoundCheckpoint& checkpoint) { return checkpoint.step > newest_step; });
  const size_t kept = options_.keep > 0 ? static_cast<size_t>(options_.keep) : found.size();
  for (size_t i = 0; i + kept < found.size(); ++i) {
    if (options_.keep_every > 0 && found[i].step % options_.keep_every == 0) continue;
    attempt([&] { remove_checkpoint(found[i]); });
  }
  if (!failure.empty()) log_warning("old checkpoints could not be removed; the next save tries again: {}", failure);
}

void CheckpointWriter::discard() noexcept {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

}  // namespace octavo
