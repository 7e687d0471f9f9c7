#include "data/overlap.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/files/file_identity.h"
#include "core/files/file_tree.h"
#include "core/files/input_file.h"
#include "data/tokens/token_file.h"

namespace octavo {
namespace {

constexpr int64_t kBlocks = 256;
constexpr int64_t kBlockTokens = 8192;

struct FileOnDisk {
  std::string path;  // Path of the file with the tokens.
  FilePlace place;
  size_t dataset = 0;  // Number of its dataset in the list.
};

FileOnDisk look_up(const std::string& token_file) {
  const std::string path = token_file_prefix(token_file) + ".bin";
  const std::optional<FilePlace> place = place_of(path);
  if (!place) {
    const int error = errno;
    (void)count_tokens(token_file);  // Throws a more specific error for a token file that cannot be read.
    throw UnreadableFile(fmt::format("{}: cannot be read: {}", path, std::strerror(error)));
  }
  return {.path = path, .place = *place};
}

// Returns the files of all datasets that are read.
std::vector<FileOnDisk> files_on_disk(const std::vector<DatasetSource>& sources) {
  std::vector<FileOnDisk> files;
  for (size_t dataset = 0; dataset < sources.size(); ++dataset) {
    if (sources[dataset].weight == 0) continue;
    for (const std::string& token_file : token_files_of(sources[dataset])) {
      files.push_back(look_up(token_file));
      files.back().dataset = dataset;
    }
  }
  return files;
}

// Throws an InputError if a dataset contains a file twice.
void check_each_dataset(const std::vector<FileOnDisk>& files, const char* key) {
  std::map<std::pair<size_t, FilePlace>, std::string> paths;
  for (const FileOnDisk& file : files) {
    const auto [other, is_new] = paths.try_emplace({file.dataset, file.place}, file.path);
    CHECK_INPUT(is_new,
                "a dataset of {} has the file {} twice{}; name it once and give the dataset more weight, or set "
                "data.allow_overlap: true",
                key, file.path, other->second == file.path ? "" : fmt::format(", also as {}", other->second));
  }
}

// Compares two files of `tokens` tokens each, whatever their formats and dtypes: all tokens of short files, and blocks
// from the first token to the last of longer ones.
bool same_content(const FileOnDisk& a, const FileOnDisk& b, int64_t tokens) {
  const int64_t blocks = std::min(kBlocks, (tokens + kBlockTokens - 1) / kBlockTokens);
  const int64_t count = std::min(tokens, kBlockTokens);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = blocks == 1 ? 0 : spread_block_begin(tokens, kBlockTokens, blocks, i);
    if (read_stored_tokens(a.path, begin, count) != read_stored_tokens(b.path, begin, count)) return false;
  }
  return blocks > 0;
}

}  // namespace

void check_overlap(const std::vector<DatasetSource>& train, const std::vector<DatasetSource>& validation) {
  std::map<FilePlace, const FileOnDisk*> by_place;
  std::multimap<int64_t, const FileOnDisk*> by_length;
  const std::vector<FileOnDisk> trained = files_on_disk(train), validated = files_on_disk(validation);
  check_each_dataset(trained, "data.train");
  check_each_dataset(validated, "data.validation");
  const std::vector<std::string> names = dataset_names(train);
  for (const FileOnDisk& file : trained) {
    const auto [other, is_new] = by_place.try_emplace(file.place, &file);
    CHECK_INPUT(
        is_new,
        "the datasets {} and {} of data.train share the file {}{}, which would be repeated more often than the epochs "
        "of either say; name it in one dataset and give that more weight, or set data.allow_overlap: true",
        names[other->second->dataset], names[file.dataset], file.path,
        other->second->path == file.path ? "" : fmt::format(", also named {}", other->second->path));
    by_length.emplace(count_tokens(file.path).tokens, &file);
  }
  const auto refuse = [](const FileOnDisk& file, const FileOnDisk& held_out, const char* relation) {
    throw InputError(
        fmt::format("{} of data.train and {} of data.validation {}, so the run would train on the text that it is "
                    "validated on; leave the file out of one of them, or set data.allow_overlap: true",
                    file.path, held_out.path, relation));
  };
  for (const FileOnDisk& held_out : validated) {
    if (const auto found = by_place.find(held_out.place); found != by_place.end())
      refuse(*found->second, held_out, "are the same file");
    const int64_t tokens = count_tokens(held_out.path).tokens;
    const auto [begin, end] = by_length.equal_range(tokens);
    for (auto other = begin; other != end; ++other) {
      if (same_content(*other->second, held_out, tokens)) refuse(*other->second, held_out, "have the same content");
    }
  }
}

}  // namespace octavo
