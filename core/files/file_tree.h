// Lists the files of a folder. docs/data.md states the rule, and scripts/tokenizing/inputs.py has the same one.
#pragma once

#include <sys/types.h>

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace octavo {

// Identity of a file on disk, whatever its names are.
struct FilePlace {
  dev_t device = 0;
  ino_t inode = 0;
  auto operator<=>(const FilePlace&) const = default;
};

// Returns the place of the file or folder to which `path` leads, or nothing if it leads nowhere.
std::optional<FilePlace> place_of(const std::string& path);

// Returns whether the place lies in a file system whose files show the state of the kernel (/proc, /sys). Such files
// may have no end or no text.
bool is_of_kernel(const FilePlace& place);

struct FileInTree {
  std::string path;
  FilePlace place;
};

struct FileTree {
  std::vector<FileInTree> files;        // Regular files, in bytewise order of their paths.
  std::vector<std::string> unreadable;  // Folders that cannot be listed, with the reason.
  // Paths of the entries that were left out, by kind: ".git", kBrokenLink, "special file", "folder of the kernel".
  std::map<std::string, std::vector<std::string>> left_out;

  static constexpr const char* kBrokenLink = "broken link";
};

// Lists the regular files in `folder` and below. Symbolic links are followed. Each folder is listed once, under its own
// path rather than that of a link, so that cycles of links end. Folders and files of version control (.git) are left
// out. Folders that cannot be listed are reported in `unreadable` and cause no exception.
FileTree list_tree(const std::string& folder);

}  // namespace octavo
