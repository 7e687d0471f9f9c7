#include "data/pack.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "data/byte_tokenizer.h"
#include "data/token_writer.h"
#include "kernels/core/error.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

struct InputFile {
  std::string path;
  bool named;  // by the user, as opposed to found in a directory
};

// The whole content, or nothing when the file cannot be read.
std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return std::nullopt;
  return text;
}

std::unique_ptr<TokenFileWriter> open_writer(const std::string& prefix) {
  std::error_code error;
  const fs::path folder = fs::path(prefix).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  CHECK_INPUT(!error, "{}: cannot be created: {}", folder.string(), error.message());
  return std::make_unique<TokenFileWriter>(prefix, TokenDtype::kU16,
                                           TokenFileInfo{.tokenizer = "byte",
                                                         .vocab_size = ByteTokenizer::kVocabSize,
                                                         .bos = ByteTokenizer::kBos,
                                                         .eos = ByteTokenizer::kEos});
}

class Packer {
 public:
  explicit Packer(const PackOptions& options) : options_(options) {
    CHECK_INPUT(!options.output.empty(), "pack: no output prefix is given");
    CHECK_INPUT(options.hold_out_every == 0 || options.hold_out_every >= 2,
                "pack: hold_out_every is {}, expected 0 (off) or at least 2", options.hold_out_every);
    if (options_.hold_out_output.empty()) options_.hold_out_output = options_.output + "_held_out";
    CHECK_INPUT(options_.hold_out_every == 0 || options_.hold_out_output != options_.output,
                "pack: {} is both the output and the held-out output", options_.output);
  }

  PackSummary run() {
    // Everything is found before anything is written, so that the output can lie inside an input directory.
    const std::vector<InputFile> files = find_files();
    writer_ = open_writer(options_.output);
    if (options_.hold_out_every > 0) held_out_writer_ = open_writer(options_.hold_out_output);
    for (const InputFile& file : files) {
      if (file.path.ends_with(".jsonl")) {
        add_jsonl(file);
      } else {
        add_text(file);
      }
    }
    finish();
    return summary_;
  }

 private:
  std::vector<InputFile> find_files() {
    std::vector<std::string> inputs = options_.inputs;
    if (!options_.input_list.empty()) append_list(inputs);
    CHECK_INPUT(!inputs.empty(), "pack: no input is given");
    std::vector<InputFile> files;
    for (const std::string& input : inputs) {
      std::error_code error;
      const fs::file_status status = fs::status(input, error);
      CHECK_INPUT(fs::exists(status), "{}: no such file or directory to pack", input);
      if (fs::is_directory(status)) {
        append_directory(input, files);
      } else {
        CHECK_INPUT(fs::is_regular_file(status), "{}: is neither a file nor a directory", input);
        files.push_back({input, true});
      }
    }
    return files;
  }

  void append_list(std::vector<std::string>& inputs) const {
    std::ifstream list(options_.input_list);
    CHECK_INPUT(list.good(), "{}: cannot be opened for reading: {}", options_.input_list, std::strerror(errno));
    for (std::string line; std::getline(list, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) inputs.push_back(line);
    }
  }

  void append_directory(const std::string& directory, std::vector<InputFile>& files) {
    std::vector<InputFile> found;
    std::vector<fs::path> pending{directory};
    while (!pending.empty()) {
      const fs::path folder = std::move(pending.back());
      pending.pop_back();
      std::error_code error;
      auto entry = fs::directory_iterator(folder, error);
      if (error) ++summary_.unreadable_files;
      for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
        std::error_code unknown_type;
        const fs::file_status status = entry->symlink_status(unknown_type);
        if (fs::is_directory(status)) pending.push_back(entry->path());
        if (fs::is_regular_file(status) && !is_own_output(entry->path()))
          found.push_back({entry->path().string(), false});
      }
    }
    std::sort(found.begin(), found.end(), [](const InputFile& a, const InputFile& b) { return a.path < b.path; });
    files.insert(files.end(), found.begin(), found.end());
  }

  // What an earlier run of the same command left is no source.
  bool is_own_output(const fs::path& path) const {
    for (const std::string& prefix : {options_.output, options_.hold_out_output}) {
      for (const char* suffix : {".bin", ".idx", ".json", ".bin.tmp", ".idx.tmp", ".json.tmp"}) {
        const fs::path output = prefix + suffix;
        std::error_code ignored;
        if (output.filename() == path.filename() && fs::equivalent(output, path, ignored)) return true;
      }
    }
    return false;
  }

  void add_text(const InputFile& file) {
    const std::optional<std::string> text = read_file(file.path);
    CHECK_INPUT(text || !file.named, "{}: cannot be read: {}", file.path, std::strerror(errno));
    if (!text) {
      ++summary_.unreadable_files;
      return;
    }
    const size_t nul = text->find('\0');
    CHECK_INPUT(nul == std::string::npos || !file.named, "{}: has a NUL byte at offset {}, expected text", file.path,
                nul);
    if (nul != std::string::npos) {
      ++summary_.binary_files;
      return;
    }
    ++summary_.files;
    add_document(*text);
  }

  void add_jsonl(const InputFile& file) {
    std::ifstream lines(file.path, std::ios::binary);
    CHECK_INPUT(lines.good() || !file.named, "{}: cannot be read: {}", file.path, std::strerror(errno));
    if (!lines.good()) {
      ++summary_.unreadable_files;
      return;
    }
    ++summary_.files;
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      add_document(parse_line(line, file.path, number));
    }
    CHECK_INPUT(!lines.bad(), "{}: cannot be read beyond line {}", file.path, number);
  }

  static std::string parse_line(const std::string& line, const std::string& path, int64_t number) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    CHECK_INPUT(!json.is_discarded(), "{}:{}: is not valid JSON, expected an object with a field 'text'", path, number);
    CHECK_INPUT(json.is_object() && json.contains("text"), "{}:{}: has no field 'text', expected an object with one",
                path, number);
    CHECK_INPUT(json["text"].is_string(), "{}:{}: the field 'text' is a {}, expected a string", path, number,
                json["text"].type_name());
    return json["text"].get<std::string>();
  }

  void add_document(std::string_view text) {
    if (text.empty()) {
      ++summary_.empty_documents;
      return;
    }
    ++documents_;
    const bool hold_out = options_.hold_out_every > 0 && documents_ % options_.hold_out_every == 0;
    (hold_out ? held_out_writer_ : writer_)->add_document(ByteTokenizer::encode(text));
  }

  void finish() {
    CHECK_INPUT(documents_ > 0,
                "pack: the inputs hold no document ({} files read, {} unreadable, {} binary, {} empty documents)",
                summary_.files, summary_.unreadable_files, summary_.binary_files, summary_.empty_documents);
    CHECK_INPUT(documents_ >= options_.hold_out_every, "pack: there are {} documents, too few to hold out one in {}",
                documents_, options_.hold_out_every);
    summary_.documents = writer_->num_documents();
    summary_.tokens = writer_->num_tokens();
    writer_->finish();
    if (!held_out_writer_) return;
    summary_.held_out_documents = held_out_writer_->num_documents();
    summary_.held_out_tokens = held_out_writer_->num_tokens();
    held_out_writer_->finish();
  }

  PackOptions options_;
  PackSummary summary_;
  std::unique_ptr<TokenFileWriter> writer_, held_out_writer_;
  int64_t documents_ = 0;  // so far, in both outputs
};

}  // namespace

PackSummary pack(const PackOptions& options) { return Packer(options).run(); }

}  // namespace octavo
