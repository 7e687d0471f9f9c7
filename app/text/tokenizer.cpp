#include "app/text/tokenizer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "app/text/tokenizer_files.h"
#include "build_config.h"
#include "checkpoint/hf_format.h"
#include "core/error.h"
#include "core/files/mapped_file.h"
#include "core/log.h"
#include "data/tokenizer_identity.h"
#include "data/tokens/byte_tokenizer.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

constexpr std::array kTokenizerFiles{kTokenizerName,        kTokenizerConfigName, "special_tokens_map.json",
                                     "chat_template.jinja", "added_tokens.json",  "tokenizer.model",
                                     "vocab.json",          "merges.txt"};

class ByteTextTokenizer final : public TextTokenizer {
 public:
  std::vector<int32_t> encode(const std::string& text) override { return ByteTokenizer::encode(text); }
  std::string decode(const std::vector<int32_t>& ids) override { return ByteTokenizer::decode(ids); }
  bool is_byte() const override { return true; }
};

// Returns the path of a file that comes with the program, in its installation or in the checkout that it was built
// from.
std::string program_file(const std::string& name) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "share/octavo" / name;
  return fs::exists(installed, error) ? installed.string() : std::string(kSourceDir) + "/" + name;
}

// Returns the Python that runs tokenizers: OCTAVO_PYTHON, or .deps/venv of the checkout or installation, or python3.
std::string python_program() {
  const char* chosen = std::getenv("OCTAVO_PYTHON");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  const std::string venv = program_file(".deps/venv/bin/python3");
  return ::access(venv.c_str(), X_OK) == 0 ? venv : "python3";
}

// A program that reads lines from its standard input and answers on its standard output. Its standard error is
// discarded.
class ChildProcess {
 public:
  // Starts `command`: a program, which is searched for in PATH, and its arguments. A program that cannot be started
  // behaves like one that prints nothing.
  explicit ChildProcess(const std::vector<std::string>& command) {
    std::array<int, 2> sockets{};
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) == 0,
          "no socket can be created for {}: {}", command.front(), std::strerror(errno));
    socket_ = sockets[0];
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t streams;
    posix_spawn_file_actions_init(&streams);
    posix_spawn_file_actions_adddup2(&streams, sockets[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&streams, sockets[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&streams, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (::posix_spawnp(&pid_, arguments[0], &streams, nullptr, arguments.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&streams);
    ::close(sockets[1]);
  }
  // Closes the program's standard input and waits for its end.
  ~ChildProcess() {
    ::close(socket_);
    if (pid_ < 0) return;
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Writes all of `text` to the program. Does nothing if the program has ended.
  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return;
      text.remove_prefix(static_cast<size_t>(count));
    }
  }

  // Returns the program's next line without the newline, cut to `max_bytes`. Returns nothing if the program has ended.
  std::optional<std::string> read_line(int64_t max_bytes) {
    const auto limit = static_cast<size_t>(max_bytes);
    size_t searched = 0;
    while (true) {
      const size_t newline = received_.find('\n', searched);
      if (newline != std::string::npos || received_.size() >= limit) {
        const size_t bytes = std::min(newline, limit);
        std::string line = received_.substr(0, bytes);
        received_.erase(0, newline == bytes ? bytes + 1 : bytes);
        return line;
      }
      searched = received_.size();
      std::array<char, 65536> buffer;
      const ssize_t count = ::recv(socket_, buffer.data(), buffer.size(), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return std::nullopt;
      received_.append(buffer.data(), static_cast<size_t>(count));
    }
  }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;  // Socket that is the program's standard input and output.
  std::string received_;
};

class HuggingFaceTokenizer final : public TextTokenizer {
 public:
  explicit HuggingFaceTokenizer(std::string path)
      : path_(std::move(path)), child_({python_program(), program_file("scripts/hf_tokenizer.py"), path_}) {
    ends_ = answered_ends(child_.read_line(kMaxAnswerBytes).value_or(""), path_);
  }

  std::vector<int32_t> encode(const std::string& text) override { return answered_ids(ask({{"encode", text}}), path_); }
  std::string decode(const std::vector<int32_t>& ids) override { return answered_text(ask({{"decode", ids}}), path_); }
  TextEnds ends() const override { return ends_; }

 private:
  // Sends a request and returns the answer, or an empty text if the child process has ended.
  std::string ask(const nlohmann::json& request) {
    child_.write(line_of(request));
    std::optional<std::string> answer = child_.read_line(kMaxAnswerBytes);
    CHECK_INPUT(!answer || static_cast<int64_t>(answer->size()) < kMaxAnswerBytes,
                "the tokenizer {} returns more than {} bytes for one request", path_, kMaxAnswerBytes);
    return answer.value_or("");
  }

  std::string line_of(const nlohmann::json& request) const {
    try {
      return request.dump() + "\n";
    } catch (const nlohmann::json::exception&) {
      throw InputError(fmt::format("the text is not valid UTF-8, which the tokenizer {} expects", path_));
    }
  }

  std::string path_;
  ChildProcess child_;
  TextEnds ends_;
};

// Converts an id or a list of ids. Any other JSON gives an empty list.
std::vector<int32_t> token_ids(const nlohmann::json& json) {
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : json.is_array() ? json : nlohmann::json::array({json})) {
    if (id.is_number_integer() && id >= 0 && id <= std::numeric_limits<int32_t>::max()) ids.push_back(id);
  }
  return ids;
}

}  // namespace

std::vector<AttachedFile> read_tokenizer_files(const fs::path& path) {
  std::vector<AttachedFile> files;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return files;
  // The other files of train.tokenizer.json are train.tokenizer_config.json and so on.
  std::string prefix = path.filename().string();
  prefix.resize(prefix.ends_with(kTokenizerName) ? prefix.size() - std::string_view(kTokenizerName).size() : 0);
  for (const char* name : kTokenizerFiles) {
    const fs::path source = files.empty() ? path : path.parent_path() / (prefix + name);
    if (!fs::is_regular_file(source, error)) continue;
    const MappedFile file(source.string());
    files.push_back({name, {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size_bytes())}});
  }
  return files;
}

std::vector<AttachedFile> tokenizer_to_attach(const DataConfig& config, const Checkpoint* resumed) {
  const std::string& name = config.tokenizer;
  if (name == kByteTokenizerName || name == kUnknownTokenizer) return {};
  std::vector<AttachedFile> files = read_tokenizer_files(name);
  if (!files.empty() && tokenizer_hash(files.front().content, name) != config.tokenizer_hash) files.clear();
  if (files.empty() && resumed != nullptr) {
    for (const ListedFile& file : resumed->files()) files.push_back({file.name, resumed->read_file(file)});
  }
  if (files.empty()) log_warning("data.tokenizer {} cannot be read, so checkpoints contain no tokenizer", name);
  return files;
}

bool is_tokenizer_file(std::string_view name) {
  return std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end();
}

std::unique_ptr<TextTokenizer> open_tokenizer(const std::string& name) {
  if (name == kByteTokenizerName) return std::make_unique<ByteTextTokenizer>();
  return std::make_unique<HuggingFaceTokenizer>(find_tokenizer_file(name));
}

TextEnds text_ends(const nlohmann::json& meta, const DataConfig& data, const TextTokenizer& tokenizer) {
  TextEnds ends = tokenizer.ends();
  const auto add = [&](const std::vector<int32_t>& ids) { ends.eos.insert(ends.eos.end(), ids.begin(), ids.end()); };
  const nlohmann::json::json_pointer bos_id("/config/data/bos_id");
  const bool is_trained = meta.contains(bos_id) && meta.at(bos_id) != "auto";
  if (is_trained) ends.bos = data.bos_id;
  if (data.eos_id) add({*data.eos_id});
  if (meta.contains(kHfMetaKey)) {
    const HfMetadata metadata = parse_hf_metadata(meta.at(kHfMetaKey));
    add(token_ids(metadata.eos_token_id));
    const std::vector<int32_t> bos = token_ids(metadata.bos_token_id);
    // The byte tokenizer has no files that name a bos, so the bos is the one of the model's metadata.
    if (!is_trained && tokenizer.is_byte() && !bos.empty()) ends.bos = bos.front();
  }
  return ends;
}

}  // namespace octavo
