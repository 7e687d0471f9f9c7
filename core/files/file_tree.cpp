#include "core/files/file_tree.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "core/error.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

// Folders and files of version control. They hold old versions, addresses of people and passwords of remotes.
constexpr std::array<std::string_view, 5> kVersionControl = {".bzr", ".git", ".hg", ".jj", ".svn"};

constexpr std::array kKernelFolders = {"/proc", "/sys", "/sys/fs/cgroup", "/sys/kernel/debug", "/sys/kernel/tracing"};

struct Found {
  mode_t mode;
  FilePlace place;
};

std::optional<Found> look_up(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return Found{status.st_mode, {status.st_dev, status.st_ino}};
}

class TreeLister {
 public:
  FileTree list(const std::string& folder) {
    folders_.emplace_back(folder);
    list_folders();
    while (!links_.empty()) follow_links();
    std::ranges::sort(tree_.files, {}, &FileInTree::path);
    return std::move(tree_);
  }

 private:
  void list_folders() {
    while (!folders_.empty()) {
      const fs::path folder = std::move(folders_.back());
      folders_.pop_back();
      const auto found = look_up(folder.string());
      if (found && is_of_kernel(found->place)) {
        tree_.left_out["folder of the kernel"].push_back(folder.string());
      } else if (!found || listed_.insert(found->place).second) {
        list_folder(folder);
      }
    }
  }

  void list_folder(const fs::path& folder) {
    std::error_code error;
    for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      const std::string path = entry->path().string(), name = entry->path().filename().string();
      std::error_code unknown_type;
      const fs::file_type type = entry->symlink_status(unknown_type).type();
      if (std::ranges::find(kVersionControl, name) != kVersionControl.end()) {
        tree_.left_out[name].push_back(path);
      } else if (type == fs::file_type::symlink) {
        links_.push_back(path);
      } else {
        add(path);
      }
    }
    if (error) tree_.unreadable.push_back(fmt::format("{}: {}", folder.string(), error.message()));
  }

  // Adds what is at the path, or what a link there leads to.
  void add(const std::string& path) {
    const auto found = look_up(path);
    if (!found) {
      tree_.left_out[FileTree::kBrokenLink].push_back(path);
    } else if (S_ISDIR(found->mode)) {
      folders_.emplace_back(path);
    } else if (S_ISREG(found->mode) && !is_of_kernel(found->place)) {
      tree_.files.push_back({path, found->place});
    } else {
      tree_.left_out["special file"].push_back(path);
    }
  }

  // Follows the links found so far. The order of the links decides under which of them a folder is listed.
  void follow_links() {
    std::vector<std::string> links = std::move(links_);
    links_.clear();
    std::ranges::sort(links);
    for (const std::string& link : links) {
      add(link);
      list_folders();
    }
  }

  FileTree tree_;
  std::vector<fs::path> folders_;   // Folders to list.
  std::vector<std::string> links_;  // Links to follow after all folders were listed.
  std::set<FilePlace> listed_;
};

}  // namespace

std::optional<FilePlace> place_of(const std::string& path) {
  const auto found = look_up(path);
  return found ? std::optional(found->place) : std::nullopt;
}

bool is_of_kernel(const FilePlace& place) {
  static const std::set<dev_t> devices = [] {
    std::set<dev_t> found;
    for (const char* folder : kKernelFolders) {
      if (const auto place_of_folder = place_of(folder)) found.insert(place_of_folder->device);
    }
    if (const auto root = place_of("/"))
      found.erase(root->device);  // A folder of that name without a file system of its own.
    return found;
  }();
  return devices.contains(place.device);
}

FileTree list_tree(const std::string& folder) { return TreeLister().list(folder); }

}  // namespace octavo
