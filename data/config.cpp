#include "data/config.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "core/error.h"
#include "data/sidecar.h"
#include "data/tokens/token_stream.h"

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

std::vector<std::string> token_files_of(const DatasetSource& source, std::vector<std::string>* repeated) {
  std::vector<std::string> paths;
  for (const std::string& path : source.paths) {
    const std::vector<std::string> files = find_token_files(path, repeated);
    // A single file may be a part, so that a run can try it alone.
    if (files != std::vector{path}) check_parts(files);
    paths.insert(paths.end(), files.begin(), files.end());
  }
  return paths;
}

std::vector<SampleRange> merged_ranges(std::vector<SampleRange> ranges) {
  std::ranges::sort(ranges, {}, &SampleRange::begin);
  std::vector<SampleRange> merged;
  for (const SampleRange& range : ranges) {
    CHECK_INPUT(range.begin >= 0 && range.begin < range.end,
                "data.skip has the range {} to {}, expected [A, B] with 0 <= A < B", range.begin, range.end);
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

int64_t end_of_samples(const std::vector<SampleRange>& skip, int64_t begin, int64_t count) {
  int64_t end = begin + count;
  for (const SampleRange& range : merged_ranges(skip)) {
    if (range.begin < end && range.end > begin) end += range.end - std::max(range.begin, begin);
  }
  return end;
}

BatchSchedule::BatchSchedule(int64_t batch_size, std::vector<BatchPhase> warmup)
    : batch_size_(batch_size), warmup_(std::move(warmup)) {}

int64_t BatchSchedule::batch_size(int64_t step) const {
  for (const BatchPhase& phase : warmup_) {
    if (step <= phase.steps) return phase.batch_size;
    step -= phase.steps;
  }
  return batch_size_;
}

int64_t BatchSchedule::samples(int64_t steps) const {
  int64_t samples = 0;
  for (const BatchPhase& phase : warmup_) {
    const int64_t taken = std::min(steps, phase.steps);
    samples += taken * phase.batch_size;
    steps -= taken;
  }
  return samples + steps * batch_size_;
}

}  // namespace octavo
