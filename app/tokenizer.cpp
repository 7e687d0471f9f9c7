#include "app/tokenizer.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "build_config.h"
#include "data/byte_tokenizer.h"
#include "kernels/core/error.h"

namespace octavo {

namespace {

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

class HuggingFaceTokenizer final : public TextTokenizer {
 public:
  explicit HuggingFaceTokenizer(std::string path) : path_(std::move(path)) {}

  std::vector<int32_t> encode(const std::string& text) override {
    return ask({{"encode", text}}).at("ids").get<std::vector<int32_t>>();
  }
  std::string decode(const std::vector<int32_t>& ids) override {
    return ask({{"decode", ids}}).at("text").get<std::string>();
  }

 private:
  // One request, one answer: the child reads a JSON line from a file; the last line it prints is the answer.
  nlohmann::json ask(const nlohmann::json& request) const {
    const auto file = std::filesystem::temp_directory_path() / fmt::format("octavo_tokenizer_{}.json", getpid());
    std::ofstream(file) << request.dump() << "\n";
    const std::string script = std::string(kSourceDir) + "/scripts/hf_tokenizer.py";
    const std::string command =
        fmt::format("python3 {} {} < {}", shell_quoted(script), shell_quoted(path_), shell_quoted(file.string()));
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
    std::string output;
    char buffer[4096];
    while (pipe && std::fgets(buffer, sizeof(buffer), pipe.get()) != nullptr) output += buffer;
    std::filesystem::remove(file);
    while (output.ends_with('\n')) output.pop_back();
    const nlohmann::json json = nlohmann::json::parse(output.substr(output.rfind('\n') + 1), nullptr, false);
    CHECK_INPUT(json.is_object() && !json.contains("error"), "the tokenizer {} could not be used: {}", path_,
                json.is_object() ? json["error"].dump() : "python3 with the tokenizers package is needed");
    return json;
  }

  std::string path_;
};

}  // namespace

std::unique_ptr<TextTokenizer> open_tokenizer(const std::string& name) {
  if (name == "byte") return std::make_unique<ByteTextTokenizer>();
  CHECK_INPUT(std::filesystem::is_regular_file(name), "the tokenizer {} is not a file, expected a tokenizer.json",
              name);
  return std::make_unique<HuggingFaceTokenizer>(name);
}

}  // namespace octavo
