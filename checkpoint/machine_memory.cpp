#include "checkpoint/machine_memory.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/directory_lock.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/mapped_file.h"
#include "core/files/output_file.h"
#include "core/log.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

constexpr size_t kIdDigits = 32;

// Returns the status of `path` itself without following links, or nothing if it does not exist.
std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return status;
  const int error = errno;
  CHECK_INPUT(error == ENOENT, "{}: cannot be accessed: {}", path.string(), std::strerror(error));
  return std::nullopt;
}

fs::path path_of(const std::string& id, const fs::path& file) {
  const std::optional<struct stat> status = status_of(file);
  CHECK_INPUT(status, "{}: was removed while it was read", file.string());
  return fs::path("/dev/shm") / fmt::format("octavo_{}_{}", id, status->st_ino);
}

void check_private(const fs::path& path, const struct stat& status) {
  const std::string remedy =
      fmt::format("remove it, or remove {} of checkpoint.dir to start without the checkpoint in memory", kMemoryIdFile);
  CHECK_INPUT(S_ISDIR(status.st_mode), "{}: is not a directory, expected one that this user created; {}", path.string(),
              remedy);
  CHECK_INPUT(status.st_uid == ::geteuid(), "{}: belongs to user {}, expected user {}; {}", path.string(),
              status.st_uid, ::geteuid(), remedy);
  CHECK_INPUT((status.st_mode & 077) == 0, "{}: has mode {:o}, expected 700; {}", path.string(), status.st_mode & 07777,
              remedy);
  struct stat parent {};
  CHECK_INPUT(::stat(path.parent_path().c_str(), &parent) == 0 &&
                  ((parent.st_mode & S_ISVTX) != 0 || (parent.st_mode & 022) == 0),
              "{}: other users may replace its contents, expected mode 1777", path.parent_path().string());
}

std::vector<ListedFile> all_files(const Checkpoint& checkpoint) {
  std::vector<ListedFile> files = checkpoint.shards();
  files.insert(files.end(), checkpoint.files().begin(), checkpoint.files().end());
  return files;
}

// Writes what rank `from` sends to a file.
void receive_file(RankTransfers& transfers, int from, const fs::path& path) {
  std::optional<OutputFile> file;
  transfers.receive(from, [&](std::span<const std::byte> block) {
    if (!file) file.emplace(path.string());
    file->write(block);
  });
  if (!file) file.emplace(path.string());
  file->finish();
  file->rename();
}

void send_file(RankTransfers& transfers, int to, const fs::path& path) {
  std::optional<MappedFile> file;
  try {
    file.emplace(path.string());
  } catch (...) {
    transfers.send_failure(to);
    throw;
  }
  const std::span<const std::byte> content(file->data(), static_cast<size_t>(file->size_bytes()));
  transfers.send(to, std::span(&content, 1));
}

}  // namespace

fs::path memory_directory(const fs::path& checkpoint_dir) {
  const fs::path file = checkpoint_dir / kMemoryIdFile;
  if (!is_there(file)) return {};
  // A hard-linked copy of a run shares the file, but must not share the memory of the run.
  if (const std::optional<struct stat> status = status_of(file); status && status->st_nlink > 1) return {};
  const std::string id = read_input_file(file.string(), 2 * kIdDigits);
  const auto is_digit = [](char c) { return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f'); };
  CHECK_INPUT(id.size() == kIdDigits && std::ranges::all_of(id, is_digit),
              "{}: expected {} hexadecimal digits; remove it to start without the checkpoint in memory", file.string(),
              kIdDigits);
  return path_of(id, file);
}

fs::path renew_memory_directory(const fs::path& checkpoint_dir) {
  std::array<uint8_t, kIdDigits / 2> bytes{};
  CHECK(::getrandom(bytes.data(), bytes.size(), 0) == std::ssize(bytes), "getrandom: {}", std::strerror(errno));
  std::string id;
  for (const uint8_t byte : bytes) id += fmt::format("{:02x}", byte);
  const fs::path file = checkpoint_dir / kMemoryIdFile;
  write_output_file(file.string(), id);
  sync_directory(checkpoint_dir);
  return path_of(id, file);
}

void forget_memory_directory(const fs::path& checkpoint_dir) {
  std::error_code ignored;
  fs::remove(checkpoint_dir / kMemoryIdFile, ignored);
}

void make_private_directory(const fs::path& path) {
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  const int error = errno;
  CHECK_INPUT(made || error == EEXIST, "{}: cannot be created: {}", path.string(), std::strerror(error));
  const std::optional<struct stat> status = status_of(path);
  CHECK_INPUT(status, "{}: was removed while it was being created", path.string());
  check_private(path, *status);
}

void remove_private_directory(const fs::path& path) {
  try {
    const std::optional<struct stat> status = status_of(path);
    if (!status) return;
    check_private(path, *status);
    const DirectoryLock lock(path, kCheckpointDirectory);
    remove_directory(path);
  } catch (const Error& error) {
    log_warning("the checkpoint that an earlier run left in memory cannot be removed: {}", error.what());
  }
}

MachineMemory::MachineMemory(fs::path dir, ProcessGroup& group)
    : dir_(std::move(dir)), group_(group), machines_(group) {
  if (machines_.count() > 1) transfers_.emplace(group);
  group_.throw_file_errors_on_all_ranks("creating a directory in memory", [&] {
    if (manages_directory()) make_private_directory(dir_);
  });
}

MachineMemory::~MachineMemory() {
  if (manages_directory()) ::rmdir(dir_.c_str());
}

bool MachineMemory::has_shard_of(int rank) const {
  const int here = machines_.of(group_.rank());
  return machines_.of(rank) == here || machines_.of(machines_.keeper(rank)) == here;
}

void MachineMemory::keep_copies(const fs::path& directory, const std::span<const std::span<const std::byte>>* parts) {
  if (!transfers_) return;
  // Sends while it receives, because two ranks may send to each other.
  const int keeper = machines_.keeper(group_.rank());
  std::exception_ptr failure;
  std::future<void> sent;
  try {
    sent = std::async(std::launch::async, [&] {
      if (parts == nullptr) return transfers_->send_failure(keeper);
      transfers_->send(keeper, *parts);
    });
  } catch (const std::exception& error) {
    failure = std::make_exception_ptr(
        Error(fmt::format("no thread can be started for sending a shard to another machine: {}", error.what())));
    transfers_->send_failure(keeper);
  }
  for (const int from : machines_.kept_by(group_.rank())) {
    try {
      receive_file(*transfers_, from, directory / shard_name(from));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (sent.valid()) sent.get();
  if (failure) std::rethrow_exception(failure);
}

std::vector<MachineMemory::Files> MachineMemory::by_machine(const std::function<Files()>& look) {
  Files found;
  group_.throw_file_errors_on_all_ranks("listing the checkpoints in memory", [&] {
    if (manages_directory()) found = look();
  });
  const std::vector<std::string> texts = group_.all_gather(nlohmann::json(found).dump());
  std::vector<Files> by_machine;
  for (int machine = 0; machine < machines_.count(); ++machine) {
    const std::string& text = texts[static_cast<size_t>(machines_.first_rank(machine))];
    by_machine.push_back(nlohmann::json::parse(text).get<Files>());
  }
  return by_machine;
}

std::vector<MachineMemory::Files> MachineMemory::files_by_machine(const Checkpoint& checkpoint) {
  return by_machine([&] {
    Files files;
    for (const ListedFile& file : all_files(checkpoint)) {
      std::error_code error;
      const auto size = fs::file_size(path_inside(checkpoint.path().string(), file.name), error);
      if (!error && static_cast<int64_t>(size) == file.bytes) files.insert(file.name);
    }
    return files;
  });
}

std::string MachineMemory::first_that_nobody_has(const Checkpoint& checkpoint, const std::vector<Files>& held) {
  for (const ListedFile& file : all_files(checkpoint)) {
    if (std::ranges::none_of(held, [&](const Files& files) { return files.contains(file.name); })) return file.name;
  }
  return "";
}

std::optional<Checkpoint> MachineMemory::bring_together(const std::function<bool(const Checkpoint&)>& wanted,
                                                        std::span<const TensorPart> needed) {
  const std::vector<Files> directories = by_machine([&] {
    Files names;
    for (const FoundCheckpoint& found : find_checkpoints(dir_, true)) {
      if (found.is_complete) {
        names.insert(found.path.filename().string());
      } else {
        log_warning("{}: has no {}, so this checkpoint in memory is not used", found.path.string(), kManifestName);
      }
    }
    return names;
  });
  std::map<int64_t, int, std::greater<>>
      owners;  // Maps each step, newest first, to a rank whose machine has the manifest.
  for (int machine = 0; machine < machines_.count(); ++machine) {
    for (const std::string& name : directories[static_cast<size_t>(machine)])
      owners.emplace(step_of_directory(name).value(), machines_.first_rank(machine));
  }
  for (const auto& [step, owner] : owners) {
    ManifestFile manifest{dir_ / step_directory_name(step), {}};
    group_.throw_file_errors_on_all_ranks("reading a manifest", [&] {
      if (group_.rank() == owner) manifest = read_manifest(manifest.checkpoint);
    });
    manifest.text = group_.broadcast(std::move(manifest.text), owner);
    std::optional<Checkpoint> checkpoint;
    group_.throw_on_all_ranks([&] { checkpoint.emplace(manifest); });
    if (!wanted(*checkpoint)) continue;
    const std::vector<Files> held = files_by_machine(*checkpoint);
    if (const std::string lacking = first_that_nobody_has(*checkpoint, held); !lacking.empty()) {
      if (group_.is_root()) {
        log_warning("{}: no machine has an undamaged copy of this file, so the checkpoint in memory is not used",
                    (checkpoint->path() / lacking).string());
      }
      continue;
    }
    Files files;
    group_.throw_file_errors_on_all_ranks("creating a directory in memory", [&] {
      files = checkpoint->shards_with(needed);
      if (group_.is_root()) {
        for (const ListedFile& file : checkpoint->files()) files.insert(file.name);
      }
      if (!manages_directory() || is_there(manifest.checkpoint / kManifestName)) return;
      fs::create_directories(manifest.checkpoint);
      write_output_file((manifest.checkpoint / kManifestName).string(), manifest.text);
    });
    fetch(held, *checkpoint, files);
    group_.throw_file_errors_on_all_ranks("comparing the checksums of a checkpoint", [&] {
      checkpoint->verify(needed);
      if (!group_.is_root()) return;
      for (const ListedFile& file : checkpoint->files()) checkpoint->read_file(file);
    });
    return checkpoint;
  }
  return std::nullopt;
}

// Every rank iterates over the same files in the same order, so that no two ranks wait for each other.
void MachineMemory::fetch(const std::vector<Files>& held, const Checkpoint& checkpoint, const Files& needed) {
  if (!transfers_) return;
  Files lacking;
  std::ranges::set_difference(needed, held[static_cast<size_t>(machines_.of(group_.rank()))],
                              std::inserter(lacking, lacking.end()));
  const std::vector<std::string> lists = group_.all_gather(nlohmann::json(lacking).dump());
  std::set<std::pair<int, std::string>> fetched;  // Pairs of machine and file that have been fetched.
  group_.throw_file_errors_on_all_ranks("fetching files from other machines", [&] {
    std::exception_ptr failure;
    const auto transfer = [&](const std::string& name, int from, int to) {
      const std::string path = path_inside(checkpoint.path().string(), name);
      try {
        if (from == group_.rank()) send_file(*transfers_, to, path);
        if (to == group_.rank()) receive_file(*transfers_, from, path);
      } catch (...) {
        failure = std::current_exception();
      }
    };
    for (int rank = 0; rank < group_.size(); ++rank) {
      for (const auto& name : nlohmann::json::parse(lists[static_cast<size_t>(rank)]).get<Files>()) {
        const auto holder = std::ranges::find_if(held, [&](const Files& files) { return files.contains(name); });
        if (holder == held.end() || !fetched.emplace(machines_.of(rank), name).second) continue;
        transfer(name, machines_.counterpart(rank, static_cast<int>(holder - held.begin())), rank);
      }
    }
    if (failure) std::rethrow_exception(failure);
  });
  if (group_.is_root() && !fetched.empty()) {
    log_info("{} files of {} were fetched from the memory of other machines", fetched.size(),
             checkpoint.path().string());
  }
}

}  // namespace octavo
