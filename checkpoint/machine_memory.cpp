#include "checkpoint/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/memory_directory.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/files/mapped_file.h"
#include "core/files/output_file.h"
#include "core/log.h"

namespace octavo {

namespace fs = std::filesystem;

// What a machine has: of each step its files and their bytes.
struct MachineMemory::Held {
  std::map<int64_t, std::map<std::string, int64_t>> files;

  bool has(int64_t step, const std::string& name, int64_t bytes) const {
    const auto of_step = files.find(step);
    if (of_step == files.end()) return false;
    const auto file = of_step->second.find(name);
    return file != of_step->second.end() && file->second == bytes;
  }
};

namespace {

// [step, files] each.
nlohmann::json list_files(const fs::path& dir) {
  nlohmann::json list = nlohmann::json::array();
  for (const FoundCheckpoint& found : find_checkpoints(dir)) {
    std::map<std::string, int64_t> files;
    for (const auto& entry : fs::directory_iterator(found.path)) {
      if (entry.is_regular_file()) files[entry.path().filename().string()] = static_cast<int64_t>(entry.file_size());
    }
    list.push_back({found.step, files});
  }
  return list;
}

// A file on its way from a rank of a machine that has it to one of a machine that needs it.
struct Transfer {
  std::string file;
  int from;
  int to;
};

// A file of what `from` sends.
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

MachineMemory::MachineMemory(fs::path dir, ProcessGroup& group)
    : dir_(std::move(dir)), group_(group), machines_(group) {
  if (machines_.count() > 1) transfers_.emplace(group);
  group_.agree_on_files("making a directory in memory", [&] {
    if (keeps_house()) make_private_directory(dir_);
  });
}

MachineMemory::~MachineMemory() {
  if (keeps_house()) ::rmdir(dir_.c_str());
}

bool MachineMemory::has_shard_of(int rank) const {
  const int here = machines_.of(group_.rank());
  return machines_.of(rank) == here || machines_.of(machines_.keeper(rank)) == here;
}

void MachineMemory::keep_copies(const fs::path& directory, const std::span<const std::span<const std::byte>>* parts) {
  if (!transfers_) return;
  // Alongside the receiving: the rank that this one sends to may be sending to it, too.
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

std::vector<MachineMemory::Held> MachineMemory::held_by_machine() {
  nlohmann::json list = nlohmann::json::array();
  group_.agree_on_files("looking into the memory of machines", [&] {
    if (keeps_house()) list = list_files(dir_);
  });
  const std::vector<std::string> lists = group_.all_gather(list.dump());
  std::vector<Held> held(static_cast<size_t>(machines_.count()));
  for (int machine = 0; machine < machines_.count(); ++machine) {
    const std::string& text = lists[static_cast<size_t>(machines_.first_rank(machine))];
    for (const auto& [step, files] :
         nlohmann::json::parse(text).get<std::vector<std::pair<int64_t, nlohmann::json>>>()) {
      held[static_cast<size_t>(machine)].files[step] = files.get<std::map<std::string, int64_t>>();
    }
  }
  return held;
}

// As the first machine that has the step has it.
ManifestFile MachineMemory::manifest_of(const std::vector<Held>& held, int64_t step) {
  const auto has = std::find_if(held.begin(), held.end(), [&](const Held& one) { return one.files.contains(step); });
  const int from = machines_.first_rank(static_cast<int>(has - held.begin()));
  ManifestFile manifest{dir_ / step_directory_name(step), {}};
  group_.agree_on_files("reading a manifest", [&] {
    if (group_.rank() == from) manifest = read_manifest(manifest.checkpoint);
  });
  manifest.text = group_.broadcast(std::move(manifest.text), from);
  return manifest;
}

std::optional<Checkpoint> MachineMemory::bring_together(const std::function<bool(const Checkpoint&)>& wanted,
                                                        std::span<const TensorPart> needed) {
  const std::vector<Held> held = held_by_machine();
  std::set<int64_t, std::greater<>> steps;
  for (const Held& one : held) {
    for (const auto& [step, files] : one.files) steps.insert(step);
  }
  for (const int64_t step : steps) {
    const ManifestFile manifest = manifest_of(held, step);
    const fs::path& directory = manifest.checkpoint;
    std::optional<Checkpoint> checkpoint;
    bool taken = false;
    group_.agree([&] {
      checkpoint.emplace(manifest);
      const auto there = [&](const CheckpointShard& shard) {
        return std::any_of(held.begin(), held.end(),
                           [&](const Held& one) { return one.has(step, shard.file, shard.bytes); });
      };
      const std::vector<CheckpointShard>& shards = checkpoint->shards();
      taken = wanted(*checkpoint) && std::all_of(shards.begin(), shards.end(), there);
    });
    if (!taken) continue;
    group_.agree_on_files("making a directory in memory", [&] {
      if (!keeps_house() || is_there(directory / kManifestName)) return;
      fs::create_directories(directory);
      write_output_file((directory / kManifestName).string(), manifest.text);
    });
    std::set<std::string> files;
    group_.agree([&] {
      files = checkpoint->shards_with(needed);
      if (!group_.is_root()) return;
      for (const CarriedFileInfo& file : checkpoint->files()) files.insert(file.name);
    });
    fetch(held, *checkpoint, files);
    group_.agree_on_files("comparing the checksums of a checkpoint", [&] { checkpoint->verify(needed); });
    return checkpoint;
  }
  return std::nullopt;
}

// Every rank makes the same list of what is to be sent and goes through it in the same order, so that no two wait for
// each other.
void MachineMemory::fetch(const std::vector<Held>& held, const Checkpoint& checkpoint,
                          const std::set<std::string>& needed) {
  if (!transfers_) return;
  std::map<std::string, int64_t> bytes;
  for (const CheckpointShard& shard : checkpoint.shards()) bytes[shard.file] = shard.bytes;
  for (const CarriedFileInfo& file : checkpoint.files()) bytes[file.name] = file.bytes;
  const auto machine_has = [&](int machine, const std::string& name) {
    return held[static_cast<size_t>(machine)].has(checkpoint.step(), name, bytes[name]);
  };
  std::set<std::string> lacking;
  for (const std::string& name : needed) {
    if (!machine_has(machines_.of(group_.rank()), name)) lacking.insert(name);
  }
  if (group_.all_reduce_max(std::ssize(lacking)) == 0) return;
  const std::vector<std::string> lists = group_.all_gather(nlohmann::json(lacking).dump());
  std::vector<Transfer> list;
  std::set<std::pair<int, std::string>> coming;  // machine and file
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int here = machines_.of(rank);
    for (const auto& name : nlohmann::json::parse(lists[static_cast<size_t>(rank)]).get<std::set<std::string>>()) {
      if (!coming.emplace(here, name).second) continue;
      int holder = 0;
      while (holder < machines_.count() && !machine_has(holder, name)) ++holder;
      if (holder == machines_.count()) continue;  // reading will say what is missing
      list.push_back({name, machines_.counterpart(rank, holder), rank});
    }
  }
  const auto path_of = [&](const Transfer& transfer) { return path_inside(checkpoint.path().string(), transfer.file); };
  group_.agree_on_files("fetching files from other machines", [&] {
    std::exception_ptr failure;
    for (const Transfer& transfer : list) {
      try {
        if (transfer.from == group_.rank()) send_file(*transfers_, transfer.to, path_of(transfer));
        if (transfer.to == group_.rank()) receive_file(*transfers_, transfer.from, path_of(transfer));
      } catch (...) {
        failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  });
  if (group_.is_root() && !list.empty()) {
    log_info("{} files of {} were fetched from the memory of other machines", list.size(), checkpoint.path().string());
  }
}

void MachineMemory::remove() const {
  if (keeps_house()) remove_directory(dir_);
}

}  // namespace octavo
