#include "data/tokens/pack.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/printable.h"
#include "data/tokens/byte_tokenizer.h"
#include "data/tokens/token_writer.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr std::array kReadByTokenizeHf = {".parquet", ".gz", ".zst"};

struct Source {
  std::string path;
  bool named;  // Whether the user named the file, as opposed to a file found in a directory.
};

// Returns ".txt" for "a.TXT".
std::string suffix_of(const std::string& path) {
  std::string suffix = fs::path(path).extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::tolower(c); });
  return suffix;
}

bool is_read_by_tokenize_hf(const std::string& suffix) {
  return std::find(kReadByTokenizeHf.begin(), kReadByTokenizeHf.end(), suffix) != kReadByTokenizeHf.end();
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

// Returns whether both names lead to the same files, however the names are written.
bool is_same_place(const std::string& prefix, const std::string& other) {
  std::error_code error;
  const fs::path place = fs::weakly_canonical(fs::absolute(prefix), error);
  return !error && place == fs::weakly_canonical(fs::absolute(other), error);
}

class Packer {
 public:
  explicit Packer(const PackOptions& options) : options_(options) {
    CHECK_INPUT(!options.output.empty(), "pack: no output prefix is given");
    CHECK_INPUT(options.hold_out_every == 0 || options.hold_out_every >= 2,
                "pack: hold_out_every is {}, expected 0 (off) or at least 2", options.hold_out_every);
    CHECK_INPUT(options.hold_out_every > 0 || options.hold_out_output.empty(),
                "pack: --hold-out-output is {}, but nothing is held out; expected --hold-out-every as well",
                options.hold_out_output);
    if (options_.hold_out_output.empty()) options_.hold_out_output = options_.output + "_held_out";
    CHECK_INPUT(
        options.hold_out_every > 0 || !path_exists(options_.hold_out_output + ".idx"),
        "pack: {}.idx holds documents that an earlier pack held out of this output, and this pack would put them "
        "into it; remove that file, or hold out documents again with --hold-out-every",
        options_.hold_out_output);
    CHECK_INPUT(options_.hold_out_every == 0 || !is_same_place(options_.hold_out_output, options_.output),
                "pack: {} is both the output and the held-out output", options_.output);
  }

  PackSummary run() {
    if (!options_.overwrite) refuse_existing_output();
    // All sources are found before anything is written, so that the output may lie inside an input directory.
    const std::vector<Source> files = find_files();
    writer_ = open_writer(options_.output);
    if (options_.hold_out_every > 0) held_out_writer_ = open_writer(options_.hold_out_output);
    for (const Source& file : files) add_file(file);
    finish();
    return summary_;
  }

 private:
  std::vector<std::string> outputs() const {
    std::vector<std::string> prefixes{options_.output};
    if (options_.hold_out_every > 0) prefixes.push_back(options_.hold_out_output);
    return prefixes;
  }

  void refuse_existing_output() const {
    for (const std::string& prefix : outputs()) {
      for (const char* suffix : {".bin", ".idx", ".json"}) {
        CHECK_INPUT(!path_exists(prefix + suffix),
                    "{}{}: exists already; give another output, or --overwrite to replace it", prefix, suffix);
      }
    }
  }

  std::vector<Source> find_files() {
    std::vector<std::string> inputs = options_.inputs;
    if (!options_.input_list.empty()) append_list(inputs);
    CHECK_INPUT(!inputs.empty(), "pack: no input is given");
    std::vector<Source> files;
    for (const std::string& input : inputs) {
      CHECK_INPUT(path_exists(input), "{}: no such file or directory to pack", input);
      if (is_directory_at(input)) {
        append_directory(input, files);
      } else {
        files.push_back({input, true});
      }
    }
    return files;
  }

  void append_list(std::vector<std::string>& inputs) const {
    InputFile list(options_.input_list);
    for (std::string line; list.read_line(line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) inputs.push_back(line);
    }
  }

  void append_directory(const std::string& directory, std::vector<Source>& files) {
    std::vector<Source> found;
    std::vector<fs::path> pending{directory};
    while (!pending.empty()) {
      const fs::path folder = std::move(pending.back());
      pending.pop_back();
      std::error_code error;
      for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
           entry.increment(error)) {
        std::error_code unknown_type;
        const fs::file_status status = entry->symlink_status(unknown_type);
        if (fs::is_directory(status)) pending.push_back(entry->path());
        if (fs::is_regular_file(status) && !is_own_output(entry->path()))
          found.push_back({entry->path().string(), false});
      }
      if (error) summary_.unreadable.push_back(fmt::format("{}: {}", folder.string(), error.message()));
    }
    std::sort(found.begin(), found.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
    files.insert(files.end(), found.begin(), found.end());
  }

  // Returns whether the file is output of an earlier run of the same command, which is not a source.
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

  // A file that the user named must be readable. An unreadable file in a directory is skipped.
  void add_file(const Source& source) {
    std::optional<InputFile> file;
    try {
      const std::string suffix = suffix_of(source.path);
      if (is_read_by_tokenize_hf(suffix)) return skip(source, suffix);
      file.emplace(source.path);
      source.path.ends_with(".jsonl") ? add_jsonl(*file) : add_text(*file, source.named);
    } catch (const UnreadableFile& error) {
      if (source.named) throw;
      summary_.unreadable.emplace_back(error.what());
    }
  }

  void skip(const Source& source, const std::string& suffix) {
    CHECK_INPUT(!source.named,
                "{}: octavo pack does not read {} files, expected text or .jsonl; scripts/tokenize_hf.py "
                "reads them",
                source.path, suffix);
    ++summary_.skipped_files[suffix];
  }

  void add_text(InputFile& file, bool named) {
    const std::string text = file.read_all();
    const size_t nul = text.find('\0');
    CHECK_INPUT(nul == std::string::npos || !named, "{}: has a NUL byte at offset {}, expected text", file.path(), nul);
    if (nul != std::string::npos) {
      ++summary_.skipped_files[suffix_of(file.path())];
      return;
    }
    ++summary_.files;
    add_document(text);
  }

  void add_jsonl(InputFile& file) {
    ++summary_.files;
    int64_t number = 0;
    for (std::string line; file.read_line(line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      add_document(parse_line(line, file.path(), number));
    }
  }

  static std::string parse_line(const std::string& line, const std::string& path, int64_t number) {
    CHECK_INPUT(!line.starts_with("\xEF\xBB\xBF"),
                "{}:{}: begins with a byte order mark (the bytes ef bb bf), expected a file without one", path, number);
    const nlohmann::json json = parse_json(line, fmt::format("{}:{}", path, number));
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
                "pack: the inputs hold no document ({} files read, {} unreadable, {} empty documents{}{})",
                summary_.files, summary_.unreadable.size(), summary_.empty_documents,
                summary_.skipped_files.empty() ? "" : ", ", summary_.describe_skipped());
    CHECK_INPUT(documents_ >= options_.hold_out_every, "pack: there are {} documents, too few to hold out one in {}",
                documents_, options_.hold_out_every);
    summary_.documents = writer_->num_documents();
    summary_.tokens = writer_->num_tokens();
    std::vector<TokenFileWriter*> writers{writer_.get()};
    if (held_out_writer_) {
      summary_.held_out_documents = held_out_writer_->num_documents();
      summary_.held_out_tokens = held_out_writer_->num_tokens();
      writers.push_back(held_out_writer_.get());
    }
    for (TokenFileWriter* writer : writers) writer->close();
    TokenFileWriter::publish(writers);
  }

  PackOptions options_;
  PackSummary summary_;
  std::unique_ptr<TokenFileWriter> writer_, held_out_writer_;
  int64_t documents_ = 0;  // Number of documents so far, in both outputs.
};

}  // namespace

std::string PackSummary::describe_skipped() const {
  std::string kinds;
  int64_t total = 0;
  bool has_hint = false;
  for (const auto& [suffix, count] : skipped_files) {
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", count,
                         suffix.empty() ? "without a suffix" : printable(suffix));
    total += count;
    has_hint = has_hint || is_read_by_tokenize_hf(suffix);
  }
  if (total == 0) return "";
  return fmt::format("skipped {} files that are not text: {}{}", total, kinds,
                     has_hint ? " (scripts/tokenize_hf.py reads .parquet, .gz and .zst)" : "");
}

PackSummary pack(const PackOptions& options) { return Packer(options).run(); }

}  // namespace octavo
