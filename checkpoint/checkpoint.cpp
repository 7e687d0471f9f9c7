#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/mapped_file.h"
#include "core/thread.h"
#include "model/optimizer/optimizer_config.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

bool has_manifest(const fs::path& dir) { return is_there(dir / kManifestName); }

// Opens a shard. Errors in its header are damage.
// Requires: the file has the length that the manifest lists.
SafetensorsFile open_shard(const std::string& path) {
  try {
    return SafetensorsFile(path);
  } catch (const UnreadableFile&) {
    throw;
  } catch (const InputError& error) {
    throw DamagedCheckpoint(error.what());
  }
}

constexpr int64_t kReadAheadBytes = int64_t{8} << 20;

// Copies with all threads of the rank, because one thread copies more slowly than good disks read.
void copy_bytes(char* out, const std::byte* source, int64_t bytes) {
  constexpr int64_t kBytesATime = int64_t{1} << 20;
#pragma omp parallel for if (bytes > 4 * kBytesATime)
  for (int64_t begin = 0; begin < bytes; begin += kBytesATime) {
    std::memcpy(out + begin, source + begin, static_cast<size_t>(std::min(kBytesATime, bytes - begin)));
  }
}

// Converts `count` elements of `dtype` at `source` (unaligned) to elements of `out`, of the same or another dtype.
void copy_elements(DType dtype, const std::byte* source, int64_t count, const Tensor& out, int64_t out_begin,
                   const std::string& where) {
  if (out.dtype() == dtype) {
    const int64_t size = dtype_bytes(dtype);
    return copy_bytes(static_cast<char*>(out.raw()) + out_begin * size, source, count * size);
  }
  if (out.dtype() == DType::kFloat32) {
    return convert_to_float32(safetensors_dtype(dtype), source, count, out.data<float>() + out_begin, where);
  }
  CHECK_INPUT(out.dtype() == DType::kBFloat16 && dtype == DType::kFloat32,
              "{} is stored as {}, which cannot be read as {}", where, dtype_name(dtype), dtype_name(out.dtype()));
  for (int64_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, source + i * static_cast<int64_t>(sizeof(float)), sizeof(float));
    out.data<BFloat16>()[out_begin + i] = BFloat16(value);
  }
}

}  // namespace

void PieceCheck::add_up_to(int64_t end) {
  if (!checksum_) checksum_ = std::make_unique<Checksum>();
  while (added_ < end) {
    if (added_ == read_ahead_) {
      read_ahead_ = std::min(added_ + kReadAheadBytes, std::ssize(bytes_));
      read_ahead(bytes_.subspan(static_cast<size_t>(added_), static_cast<size_t>(read_ahead_ - added_)));
    }
    const int64_t next = std::min(end, read_ahead_);
    checksum_->add(bytes_.data() + added_, next - added_);
    added_ = next;
  }
}

void PieceCheck::finish() {
  add_up_to(std::ssize(bytes_));
  const std::string checksum = std::exchange(checksum_, nullptr)->hex();
  CHECK_AS(DamagedCheckpoint, checksum == piece_->checksum,
           "{}: tensor {} is damaged: its checksum is {}, the manifest says {}", shard_, piece_->key, checksum,
           piece_->checksum);
}

void TensorReader::read(int64_t begin, int64_t end, const Tensor& out) {
  const TensorSlice wanted = checked_slice(where_, tensor_->shape, columns_, begin, end);
  CHECK(out.numel() == end - begin, "{}: elements {} to {} were requested into {}", where_, begin, end, out.describe());
  const int64_t size = dtype_bytes(tensor_->dtype);
  for (Source& source : sources_) {
    for_each_run(source.slice, wanted, [&](int64_t from, int64_t to, int64_t count) {
      if (!source.is_verified) source.check.add_up_to((from + count) * size);
      copy_elements(tensor_->dtype, source.check.bytes().data() + from * size, count, out, to, where_);
    });
  }
  try {
    check_finite(where_, tensor_->shape, columns_, begin, out);
  } catch (const InputError&) {
    if (!not_finite_) not_finite_ = std::current_exception();
  }
  if (end < end_) return;
  for (Source& source : sources_) {
    if (!source.is_verified) source.check.finish();
  }
  if (not_finite_) std::rethrow_exception(not_finite_);
}

Checkpoint::Checkpoint(const fs::path& path) : Checkpoint(read_manifest(resolve(path))) {}

Checkpoint::Checkpoint(const ManifestFile& manifest)
    : path_(manifest.checkpoint), manifest_(manifest_from_text(manifest.text, (path_ / kManifestName).string())) {
  CHECK_AS(DamagedCheckpoint, step_of_directory(path_).value_or(step()) == step(),
           "{}: has step {}, expected the step in its directory's name", (path_ / kManifestName).string(), step());
  for (size_t i = 0; i < manifest_.tensors.size(); ++i) index_.emplace(manifest_.tensors[i].name, i);
}

std::optional<fs::path> Checkpoint::newest(const fs::path& dir) {
  const std::vector<FoundCheckpoint> found = find_checkpoints(dir);
  return found.empty() ? std::nullopt : std::optional(found.back().path);
}

fs::path Checkpoint::resolve(const fs::path& path) {
  if (has_manifest(path)) return path;
  CHECK_INPUT(is_there(path), "{}: there is no such checkpoint", path.string());
  CHECK_INPUT(fs::is_directory(path), "{}: is a file, expected the directory of a checkpoint", path.string());
  const std::optional<fs::path> newest = Checkpoint::newest(path);
  CHECK_INPUT(newest.has_value(), "{}: has neither a {} nor a complete checkpoint step_N in it", path.string(),
              kManifestName);
  return *newest;
}

std::string Checkpoint::identity() const {
  return fmt::format("{} of step {}, manifest {}", path_.string(), step(), manifest_.checksum);
}

bool Checkpoint::has_average() const {
  const std::string prefix = fmt::format("{}.", kEmaState);
  return std::ranges::any_of(tensors(), [&](const auto& tensor) { return tensor.name.starts_with(prefix); });
}

std::string Checkpoint::prefix(SavedWeights which) const {
  if (which == SavedWeights::kMaster) return "";
  CHECK_INPUT(has_average(),
              "{}: has no average of the weights, expected a checkpoint of a run with optimizer.ema_decay",
              path_.string());
  return fmt::format("{}.", kEmaState);
}

const CheckpointTensorInfo* Checkpoint::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &manifest_.tensors[found->second];
}

void Checkpoint::read(std::string_view name, ColumnRange columns, int64_t begin, int64_t end, const Tensor& out) {
  TensorReader part = reader(name, columns, begin, end);
  part.read(begin, end, out);
  for (const TensorReader::Source& source : part.sources_) {
    if (!source.is_verified) verified_.insert(&source.check.piece());
  }
}

TensorReader Checkpoint::reader(std::string_view name, ColumnRange columns, int64_t begin, int64_t end) {
  const CheckpointTensorInfo* tensor = find(name);
  CHECK_INPUT(tensor != nullptr, "{}: has no tensor {}", path_.string(), name);
  TensorReader reader(fmt::format("{}: tensor {}", path_.string(), name), *tensor, columns, end);
  for_each_piece(*tensor, columns, begin, end, [&](const CheckpointPiece& piece, const TensorSlice& slice) {
    reader.sources_.push_back({slice, piece_check(*tensor, piece), verified_.contains(&piece)});
  });
  return reader;
}

const SafetensorsFile& Checkpoint::shard(const std::string& name) {
  if (const auto found = shards_.find(name); found != shards_.end()) return found->second;
  const auto listed = std::ranges::find(manifest_.shards, name, &ListedFile::name);
  CHECK_INPUT(listed != manifest_.shards.end(), "{}: a tensor is in the shard {}, which is not in the list of shards",
              (path_ / kManifestName).string(), name);
  const fs::path path = path_inside(path_.string(), name);
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  CHECK_AS(DamagedCheckpoint, error != std::errc::no_such_file_or_directory || fs::is_symlink(fs::symlink_status(path)),
           "{}: a shard of the checkpoint is missing", path.string());
  CHECK_INPUT(!error, "{}: a shard of the checkpoint cannot be read: {}", path.string(), error.message());
  CHECK_AS(DamagedCheckpoint, static_cast<int64_t>(bytes) == listed->bytes,
           "{}: is {} bytes long, but its manifest says {}", path.string(), bytes, listed->bytes);
  SafetensorsFile file = open_shard(path.string());
  const std::string checksum = checksum_hex(file.header().data(), static_cast<int64_t>(file.header().size()));
  CHECK_AS(DamagedCheckpoint, checksum == listed->checksum,
           "{}: its header is damaged: checksum {}, its manifest says {}", path.string(), checksum, listed->checksum);
  return shards_.emplace(name, std::move(file)).first->second;
}

PieceCheck Checkpoint::piece_check(const CheckpointTensorInfo& tensor, const CheckpointPiece& piece) {
  const SafetensorsFile& file = shard(piece.file);
  const SafetensorsEntry* entry = file.find(piece.key);
  CHECK_INPUT(entry != nullptr, "{}: has no tensor {}, which its manifest names", file.path(), piece.key);
  CHECK_INPUT(entry->numel() == piece.end - piece.begin && entry->dtype == safetensors_dtype(tensor.dtype),
              "{}: tensor {} is {} {}, its manifest says {} elements of {}", file.path(), piece.key, entry->dtype,
              describe_shape(entry->shape), piece.end - piece.begin, dtype_name(tensor.dtype));
  return {piece, (path_ / piece.file).string(), file.bytes(*entry)};
}

std::string Checkpoint::read_file(const ListedFile& file) const {
  const std::string path = (path_ / file.name).string();
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  CHECK_INPUT(fs::status_known(status), "{}: cannot be accessed: {}", path, error.message());
  CHECK_AS(DamagedCheckpoint, fs::is_regular_file(status), "{}: is missing or not a regular file, but {} names it",
           path, (path_ / kManifestName).string());
  std::string content = read_input_file(path);
  const std::string checksum = checksum_hex(content.data(), std::ssize(content));
  CHECK_AS(DamagedCheckpoint, std::ssize(content) == file.bytes && checksum == file.checksum,
           "{}: is damaged: it has {} bytes of checksum {}, the manifest says {} of {}", path, content.size(), checksum,
           file.bytes, file.checksum);
  return content;
}

void Checkpoint::for_each_piece(const CheckpointTensorInfo& tensor, ColumnRange columns, int64_t begin, int64_t end,
                                const VisitPiece& visit) const {
  const std::string where = fmt::format("{}: tensor {}", path_.string(), tensor.name);
  const TensorSlice wanted = checked_slice(where, tensor.shape, columns, begin, end);
  for (const CheckpointPiece& piece : tensor.pieces) {
    const TensorSlice stored = checked_slice(where, tensor.shape, piece.columns, piece.begin, piece.end);
    if (overlap(stored, wanted)) visit(piece, stored);
  }
}

void Checkpoint::for_each_piece(std::span<const TensorPart> parts, const VisitTensorPiece& visit) const {
  for (const TensorPart& part : parts) {
    const CheckpointTensorInfo* tensor = find(part.name);
    if (tensor == nullptr || tensor->shape != part.shape) continue;
    for_each_piece(*tensor, part.columns, part.begin, part.end,
                   [&](const CheckpointPiece& piece, const TensorSlice&) { visit(*tensor, piece); });
  }
}

void Checkpoint::verify(std::span<const TensorPart> parts) {
  std::vector<PieceCheck> checks;
  std::unordered_set<const CheckpointPiece*> seen = verified_;
  for_each_piece(parts, [&](const CheckpointTensorInfo& tensor, const CheckpointPiece& piece) {
    if (seen.insert(&piece).second) checks.push_back(piece_check(tensor, piece));
  });
  for_each_in_parallel(checks.size(), kReadingThreads, [&](size_t i, size_t) { checks[i].finish(); });
  verified_ = std::move(seen);
}

void Checkpoint::verify() {
  for (const ListedFile& listed : manifest_.shards) shard(listed.name);
  std::vector<TensorPart> all;
  for (const CheckpointTensorInfo& tensor : manifest_.tensors) {
    all.push_back({tensor.name, tensor.shape, {}, 0, tensor.numel()});
  }
  verify(all);
  for (const ListedFile& file : files()) read_file(file);
}

std::set<std::string> Checkpoint::shards_with(std::span<const TensorPart> parts) const {
  std::set<std::string> files;
  for_each_piece(parts, [&](const CheckpointTensorInfo&, const CheckpointPiece& piece) { files.insert(piece.file); });
  return files;
}

nlohmann::json Checkpoint::describe() {
  int64_t bytes = 0;
  for (const ListedFile& listed : manifest_.shards) bytes += listed.bytes;
  nlohmann::json attached = nlohmann::json::array();
  for (const ListedFile& file : files()) attached.push_back(file.name);
  nlohmann::json json = {{"checkpoint", path_.string()},
                         {"step", step()},
                         {"model", model_config_to_json(model_config())},
                         {"parameters", model_config().num_parameters()},
                         {"tensors", tensors().size()},
                         {"shards", manifest_.shards.size()},
                         {"bytes", bytes},
                         {"files", attached},
                         {"ranks", ranks()}};
  if (meta().is_object() && meta().contains("tokens")) json["tokens"] = meta().at("tokens");
  try {
    verify();
    json["intact"] = true;
  } catch (const InputError& error) {
    json["intact"] = false;
    json["damage"] = error.what();
  }
  return json;
}

}  // namespace octavo
