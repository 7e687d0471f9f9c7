#include "data/config.h"

#include <filesystem>
#include <set>

#include "data/tokens/token_row.h"

namespace octavo {

std::vector<std::string> dataset_names(const std::vector<DatasetSource>& sources) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const DatasetSource& source : sources) taken.insert(source.name);
  for (const DatasetSource& source : sources) {
    std::string name = source.name;
    if (name.empty()) {
      std::filesystem::path path = source.paths.front();
      if (!path.has_filename()) path = path.parent_path();  // A folder with a trailing slash has no file name.
      const std::string stem = path.filename().string();
      name = stem;
      for (int n = 2; !taken.insert(name).second; ++n) name = stem + "_" + std::to_string(n);
    }
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> token_files_of(const DatasetSource& source) {
  std::vector<std::string> paths;
  for (const std::string& path : source.paths) {
    const std::vector<std::string> files = find_token_files(path);
    paths.insert(paths.end(), files.begin(), files.end());
  }
  return paths;
}

}  // namespace octavo
