#include "app/run/same_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "core/error.h"
#include "core/log.h"
#include "data/token_file.h"
#include "data/token_row.h"
#include "parallel/start_checks.h"

namespace octavo {

namespace {

// What `look` finds, or what is in its way.
std::string found_by(const std::function<std::string()>& look) {
  try {
    return look();
  } catch (const InputError& error) {
    return error.what();
  }
}

// Of all token files that `path` names.
std::string identities(const std::string& path) {
  std::string lines;
  for (const std::string& file : find_token_files(path)) lines += token_file_identity(file) + "; ";
  return lines;
}

// What a rank may choose and all open.
struct Choice {
  std::string what;                                     // for messages
  std::function<std::string()> choose;                  // a path, of those this rank sees; empty: none
  std::function<std::string(const std::string&)> open;  // opens that path and tells what identifies it
};

// Opens rank 0's choice on every rank; where it is none, it is none on all.
void open_choice(const Choice& choice, ProcessGroup& group) {
  std::string path, found;
  group.agree_on_files("opening what rank 0 chose", [&] {
    if (!group.is_root()) return;
    path = choice.choose();
    if (!path.empty()) found = choice.open(path);
  });
  path = group.broadcast(path);
  group.agree_on_files("opening what rank 0 chose", [&] {
    if (group.is_root()) return;
    found = found_by([&] { return path.empty() ? choice.choose() : choice.open(path); });
  });
  check_same_settings(group, fmt::format("{} {}\n", choice.what, found.empty() ? "none" : found));
}

std::optional<Checkpoint> open_checkpoint(const std::function<std::string()>& choose, ProcessGroup& group) {
  std::optional<Checkpoint> checkpoint;
  const auto open = [&](const std::string& path) {
    checkpoint.emplace(path, ReaderRank{group.rank(), group.size()});
    return checkpoint->identity();
  };
  open_choice({"the checkpoint", choose, open}, group);
  return checkpoint;
}

// What `look` meets of damage on any rank, that of the lowest; empty where there is none.
std::string damage_found(const std::function<void()>& look, ProcessGroup& group) {
  std::string damage;
  group.agree_on_files("comparing the checksums of a checkpoint", [&] {
    try {
      look();
    } catch (const DamagedCheckpoint& error) {
      damage = error.what();
    }
  });
  for (const std::string& found : group.all_gather(damage)) {
    if (!found.empty()) return found;
  }
  return {};
}

// The paths of those in `dir` on rank 0, the newest first.
std::vector<std::string> list_checkpoints(const std::string& dir, ProcessGroup& group) {
  nlohmann::json paths = nlohmann::json::array();
  group.agree_on_files("looking for checkpoints", [&] {
    if (!group.is_root()) return;
    for (const FoundCheckpoint& found : find_checkpoints(dir)) paths.insert(paths.begin(), found.path.string());
  });
  return nlohmann::json::parse(group.broadcast(paths.dump())).get<std::vector<std::string>>();
}

struct DamagedPath {
  std::string path;
  std::string damage;
};

// Not under a name that another checkpoint needs; never removed.
void set_aside(const std::vector<DamagedPath>& damaged, const Checkpoint& instead) {
  for (const auto& [path, damage] : damaged) {
    const std::filesystem::path aside = set_aside_directory(path, kDamagedPrefix);
    log_warning("{} is passed over for {}, and is {} from now on: {}", path, instead.path().string(), aside.string(),
                damage);
  }
}

// The newest checkpoint that every rank sees undamaged; none where there are none at all.
std::optional<Checkpoint> open_newest_undamaged(const std::string& dir, ProcessGroup& group) {
  std::vector<DamagedPath> damaged;
  for (const std::string& path : list_checkpoints(dir, group)) {
    std::optional<Checkpoint> found;
    std::string damage = damage_found(
        [&] {
          if (group.is_root()) const Checkpoint manifest(path);
        },
        group);
    if (damage.empty()) {
      found = open_checkpoint([&] { return path; }, group);
      damage = damage_found([&] { found->verify(); }, group);
    }
    if (!damage.empty()) {
      damaged.push_back({path, damage});
      continue;
    }
    group.agree_on_files("setting damaged checkpoints aside", [&] {
      if (group.is_root()) set_aside(damaged, *found);
    });
    return found;
  }
  group.agree([&] {
    CHECK_INPUT(damaged.empty(), "checkpoint.dir {}: all of its {} checkpoints are damaged, the newest so: {}", dir,
                damaged.size(), damaged.front().damage);
  });
  // That other ranks see none either.
  return open_checkpoint([&] { return Checkpoint::newest(dir).value_or("").string(); }, group);
}

// A file of a name of its own, as long as the object lives.
class ProbeFile {
 public:
  ProbeFile(const char* key, const std::string& dir)
      : path_(std::filesystem::path(dir) / (std::string(kProbePrefix) + "XXXXXX")) {
    const int file = ::mkstemp(path_.data());
    CHECK_INPUT(file >= 0, "{} {}: no file can be made in it: {}", key, dir, std::strerror(errno));
    ::close(file);
  }
  ~ProbeFile() { ::unlink(path_.c_str()); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

std::optional<Checkpoint> open_run_checkpoint(const CheckpointConfig& config, ProcessGroup& group) {
  const auto choose = [&]() -> std::string {
    if (config.resume == "never") return "";
    if (config.resume != "auto") return Checkpoint::resolve(config.resume).string();
    return Checkpoint::newest(config.dir).value_or("").string();
  };
  return open_checkpoint(choose, group);
}

std::optional<Checkpoint> open_checkpoint_to_resume(const CheckpointConfig& config, ProcessGroup& group) {
  if (config.resume == "auto") return open_newest_undamaged(config.dir, group);
  std::optional<Checkpoint> found = open_run_checkpoint(config, group);
  group.agree_on_files("comparing the checksums of a checkpoint", [&] {
    if (found) found->verify();
  });
  return found;
}

Checkpoint open_same_checkpoint(const std::string& path, ProcessGroup& group) {
  return *open_checkpoint([&] { return Checkpoint::resolve(path).string(); }, group);
}

std::unique_ptr<WeightSource> open_same_weights(const std::string& path, ProcessGroup& group) {
  std::unique_ptr<WeightSource> source;
  const auto choose = [&] { return path.empty() ? "" : open_weights(path)->path().string(); };
  const auto open = [&](const std::string& chosen) {
    source = open_weights(chosen, {group.rank(), group.size()});
    return source->identity();
  };
  open_choice({"model.init_from", choose, open}, group);
  return source;
}

void check_shared_directory(const char* key, const std::string& dir, ProcessGroup& group) {
  if (group.size() == 1) return;
  std::optional<ProbeFile> probe;
  group.agree_on_files("making a file in a directory", [&] {
    if (group.is_root()) probe.emplace(key, dir);
  });
  const std::string path = group.broadcast(probe ? probe->path() : "");
  group.agree_on_files("looking for a file in a directory", [&] {
    CHECK_INPUT(is_there(path),
                "{} {} of rank {} is not that of rank 0, whose file {} is not in it; expected a directory on a file "
                "system that all ranks share",
                key, dir, group.rank(), path);
  });
}

void check_same_data(const char* key, const std::vector<DatasetSource>& sources, ProcessGroup& group) {
  std::string lines;
  group.agree_on_files("looking at the data", [&] {
    for (const DatasetSource& source : sources) {
      for (const std::string& path : source.paths)
        lines += fmt::format("{} {}\n", key, found_by([&] { return identities(path); }));
    }
  });
  check_same_settings(group, lines);
}

}  // namespace octavo
