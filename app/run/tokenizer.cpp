#include "app/run/tokenizer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>

#include "app/run/tokenizer_answer.h"
#include "build_config.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "data/byte_tokenizer.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 4> kTokenizerFiles{kTokenizerName, "tokenizer_config.json", "special_tokens_map.json",
                                                     "chat_template.jinja"};

class ByteTextTokenizer final : public TextTokenizer {
 public:
  std::vector<int32_t> encode(const std::string& text) override { return ByteTokenizer::encode(text); }
  std::string decode(const std::vector<int32_t>& ids) override { return ByteTokenizer::decode(ids); }
};

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// Memory that a child process inherits and opens as a file, and that has no name for others to plant a link under.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& content) : fd_(::memfd_create("octavo", 0)) {
    CHECK(fd_ >= 0, "memory for the tokenizer cannot be had: {}", std::strerror(errno));
    for (size_t done = 0; done < content.size();) {
      const ssize_t count = ::write(fd_, content.data() + done, content.size() - done);
      CHECK(count > 0 || errno == EINTR, "memory for the tokenizer cannot be written: {}", std::strerror(errno));
      done += static_cast<size_t>(std::max<ssize_t>(count, 0));
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  int fd_;
};

class HuggingFaceTokenizer final : public TextTokenizer {
 public:
  explicit HuggingFaceTokenizer(std::string path) : path_(std::move(path)) {}

  std::vector<int32_t> encode(const std::string& text) override { return answered_ids(ask({{"encode", text}}), path_); }
  std::string decode(const std::vector<int32_t>& ids) override { return answered_text(ask({{"decode", ids}}), path_); }

 private:
  // One request, one answer: the child reads a JSON line; the last line it prints is the answer. Returns all it prints.
  std::string ask(const nlohmann::json& request) const {
    const MemoryFile input(line_of(request));
    const std::string script = std::string(kSourceDir) + "/scripts/hf_tokenizer.py";
    const std::string command = fmt::format("python3 {} {} < {} 2> /dev/null", shell_quoted(script),
                                            shell_quoted(path_), shell_quoted(input.path()));
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
    std::string output;
    char buffer[4096];
    while (pipe && std::fgets(buffer, sizeof(buffer), pipe.get()) != nullptr) {
      output += buffer;
      CHECK_INPUT(static_cast<int64_t>(output.size()) <= kMaxAnswerBytes,
                  "the tokenizer {} gives more than {} bytes for one request", path_, kMaxAnswerBytes);
    }
    return output;
  }

  std::string line_of(const nlohmann::json& request) const {
    try {
      return request.dump() + "\n";
    } catch (const nlohmann::json::exception&) {
      throw InputError(fmt::format("the text is not valid UTF-8, which the tokenizer {} expects", path_));
    }
  }

  std::string path_;
};

}  // namespace

std::vector<CarriedFile> read_tokenizer_files(const fs::path& path) {
  std::vector<CarriedFile> files;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return files;
  for (const char* name : kTokenizerFiles) {
    const fs::path source = files.empty() ? path : path.parent_path() / name;
    if (!fs::is_regular_file(source, error)) continue;
    const MappedFile file(source.string());
    files.push_back({name, {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size_bytes())}});
  }
  return files;
}

bool is_tokenizer_file(std::string_view name) {
  return std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end();
}

std::unique_ptr<TextTokenizer> open_tokenizer(const std::string& name) {
  if (name == "byte") return std::make_unique<ByteTextTokenizer>();
  std::error_code error;
  CHECK_INPUT(fs::is_regular_file(name, error), "the tokenizer {} is not a file, expected a tokenizer.json", name);
  return std::make_unique<HuggingFaceTokenizer>(name);
}

}  // namespace octavo
