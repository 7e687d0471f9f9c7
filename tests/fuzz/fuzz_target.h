// Helpers of the fuzz targets. A target is a .cpp file with LLVMFuzzerTestOneInput, which writes the input to files and
// reads them. It returns if they are accepted, or refused by an Error. Any other exception, a report of a sanitizer, a
// hang or high memory use is a finding. In the preset `fuzz` libFuzzer calls the target. In every other build
// replay_main.cpp runs the corpus.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace octavo::fuzz {

// Reports a broken guarantee of the code under test. Unlike a refusal, this is a finding.
inline void require(bool condition, const char* promise) {
  if (!condition) throw std::logic_error(promise);
}

// Runs `action`. Returns false if it throws an Error, which means that it refused the input.
template <typename Action>
bool accepts(const Action& action) {
  try {
    action();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A temporary directory of this process, in memory if possible.
class ScratchDir {
 public:
  ScratchDir() {
    const char* memory = "/dev/shm";
    std::string pattern = ::access(memory, W_OK) == 0 ? memory : std::filesystem::temp_directory_path().string();
    pattern += "/octavo_fuzz_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

// A file that is written for every input. It stays open, because creating a file costs more than reading it.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR)) {
    if (descriptor_ < 0) throw std::runtime_error(path + ": cannot be created");
  }
  ~ScratchFile() { ::close(descriptor_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Replaces the content. The file must not be mapped.
  void set(std::string_view content) {
    if (::ftruncate(descriptor_, static_cast<off_t>(content.size())) != 0) throw std::runtime_error("ftruncate failed");
    overwrite(0, content);
  }
  void overwrite(size_t offset, std::string_view bytes) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count != static_cast<ssize_t>(bytes.size())) throw std::runtime_error("pwrite failed");
  }

 private:
  int descriptor_;
};

// The input, consumed from its beginning. At its end it yields zeros and empty strings.
class Input {
 public:
  Input(const uint8_t* bytes, size_t size) : rest_(reinterpret_cast<const char*>(bytes), size) {}

  template <typename T>
  T take() {
    T value{};
    const std::string bytes = take_bytes(sizeof(T));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::string take_bytes(size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return std::string(taken);
  }
  std::string take_rest() { return take_bytes(rest_.size()); }

 private:
  std::string_view rest_;
};

// Returns the value that starts at byte `offset` of `text`, which must contain it.
template <typename T>
T load_at(const std::string& text, size_t offset) {
  T value;
  std::memcpy(&value, text.data() + offset, sizeof(T));
  return value;
}
template <typename T>
void store_at(std::string& text, size_t offset, T value) {
  std::memcpy(text.data() + offset, &value, sizeof(T));
}

}  // namespace octavo::fuzz
