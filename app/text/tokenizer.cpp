#include "app/text/tokenizer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>

#include "app/text/child_process.h"
#include "app/text/tokenizer_answer.h"
#include "app/text/tokenizer_config.h"
#include "build_config.h"
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

}  // namespace

std::vector<CarriedFile> read_tokenizer_files(const fs::path& path) {
  std::vector<CarriedFile> files;
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

std::vector<CarriedFile> tokenizer_to_carry(const DataConfig& config, const std::optional<Checkpoint>& resumed) {
  const std::string& name = config.tokenizer;
  if (name == kByteTokenizerName || name == kUnknownTokenizer) return {};
  std::vector<CarriedFile> files = read_tokenizer_files(name);
  if (!files.empty() && tokenizer_hash(files.front().content, name) != config.tokenizer_hash) files.clear();
  if (files.empty() && resumed) {
    for (const CarriedFileInfo& file : resumed->files()) files.push_back({file.name, resumed->read_file(file)});
  }
  if (files.empty()) log_warning("data.tokenizer {} cannot be read, so checkpoints contain no tokenizer", name);
  return files;
}

bool is_tokenizer_file(std::string_view name) {
  return std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end();
}

std::unique_ptr<TextTokenizer> open_tokenizer(const std::string& name) {
  if (name == kByteTokenizerName) return std::make_unique<ByteTextTokenizer>();
  return std::make_unique<HuggingFaceTokenizer>(find_tokenizer_file(name));
}

}  // namespace octavo
