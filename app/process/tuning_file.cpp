#include "app/process/tuning_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"
#include "core/log.h"
#include "kernels/matmul/tuned_algorithms.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxBytes = int64_t{8} << 20;

// Returns the folder that an environment variable names. Empty if the variable is not set or not an absolute path.
fs::path folder_of(const char* variable) {
  const char* value = std::getenv(variable);
  const fs::path folder = value != nullptr ? value : "";
  return folder.is_absolute() ? folder : fs::path();
}

}  // namespace

std::string tuning_path(const std::string& on) {
  fs::path folder = folder_of("XDG_CACHE_HOME");
  if (const fs::path home = folder_of("HOME"); folder.empty() && !home.empty()) folder = home / ".cache";
  if (folder.empty()) return "";
  std::string name = on;
  std::ranges::replace_if(
      name, [](char c) { return (std::isalnum(static_cast<unsigned char>(c)) == 0) && c != '.'; }, '_');
  return folder / "octavo" / ("algorithms_" + name + ".json");
}

TuningFile::TuningFile(Stream& stream, ProcessGroup& group, std::string on, std::string path)
    : stream_(stream), group_(group), on_(std::move(on)), path_(std::move(path)) {
  std::string text;
  if (group.is_root() && !path_.empty()) {
    try {
      if (fs::exists(path_)) text = InputFile(path_).read_all(kMaxBytes);
      if (!text.empty()) TunedAlgorithms().add(text, on_);
    } catch (const std::exception& error) {
      log_warning("{} is not used: {}", path_, error.what());
      text.clear();
    }
  }
  text = group.broadcast(text);
  if (!text.empty()) stream_.state<TunedAlgorithms>().add(text, on_);
}

TuningFile::~TuningFile() { keep(); }

void TuningFile::tune(const std::function<void()>& work) {
  auto& tuned = stream_.state<TunedAlgorithms>();
  tuned.set_deferring(true);
  try {
    work();
  } catch (...) {
    tuned.set_deferring(false);
    tuned.clear_deferred();
    throw;
  }
  tuned.set_deferring(false);
  stream_.synchronize();
  if (group_.all_reduce_max(tuned.num_deferred()) == 0) return;
  group_.throw_on_all_ranks([&] { tuned.choose_deferred(); });
  const std::string chosen = group_.broadcast(tuned.text(on_));
  group_.throw_on_all_ranks([&] {
    tuned.add(chosen, on_);
    tuned.choose_deferred();
    tuned.clear_deferred();
  });
  keep();
  work();
}

void TuningFile::keep() noexcept {
  if (!group_.is_root()) return;
  try {
    const auto& tuned = stream_.state<TunedAlgorithms>();
    if (const std::vector<std::string>& untimed = tuned.untimed(); untimed.size() > said_untimed_) {
      log_warning("there was too little memory to time the algorithms of {}, so the library's first choice is used",
                  fmt::join(untimed.begin() + static_cast<std::ptrdiff_t>(said_untimed_), untimed.end(), ", of "));
      said_untimed_ = untimed.size();
    }
    if (tuned.num_timed() == kept_) return;
    const int64_t timed = tuned.num_timed() - kept_;
    kept_ = tuned.num_timed();
    if (path_.empty()) return;
    fs::create_directories(fs::path(path_).parent_path());
    write_output_file(path_, tuned.text(on_));
    log_info("timed {} kinds of matmuls; {} has the algorithms of {}", timed, path_, tuned.size());
  } catch (const std::exception& error) {
    log_warning("the algorithms that were timed are not stored: {}", error.what());
  }
}

}  // namespace octavo
