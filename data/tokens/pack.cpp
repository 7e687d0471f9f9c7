#include "data/tokens/pack.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_set>

#include "core/error.h"
#include "core/files/checksum.h"
#include "core/files/file_tree.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/printable.h"
#include "data/text/text_file.h"
#include "data/tokens/byte_tokenizer.h"
#include "data/tokens/token_writer.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr const char* kParquet = ".parquet";

using TakeDocument = std::function<void(std::string_view text)>;

// A file to read.
struct Source {
  std::string path;
  FileKind kind;
  FilePlace place;
  bool named = false;  // Whether the user named the file, as opposed to a file found in a directory.
};

// Returns a text that is equal for sources with equal bytes after unpacking.
std::string content_of(const Source& source) {
  try {
    TextFile file(source.path, source.kind.compression);
    Checksum checksum;
    for (std::string block; file.read_block(block);) checksum.add(block.data(), static_cast<int64_t>(block.size()));
    return checksum.hex();
  } catch (const InputError&) {  // The error is reported when the documents are read.
    return source.path;
  }
}

// Returns the indices of the sources to read, in order, one for each file on disk. Of several names of a file the first
// with a known suffix is taken, because in a cache of the Hugging Face hub only the links have suffixes.
std::vector<size_t> one_name_each(std::vector<Source>& sources) {
  std::map<FilePlace, size_t> chosen;
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto [found, is_new] = chosen.try_emplace(sources[i].place, i);
    if (is_new) continue;
    Source& before = sources[found->second];
    const bool named = before.named || sources[i].named;
    if (!before.kind.is_known && sources[i].kind.is_known) found->second = i;
    sources[found->second].named = named;
  }
  std::vector<size_t> order;
  for (const auto& [place, i] : chosen) order.push_back(i);
  std::ranges::sort(order);
  return order;
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
    CHECK_INPUT(options.hold_out_every > 0 || options.hold_out_output.empty(),
                "pack: --hold-out-output is {}, but nothing is held out; expected --hold-out-every as well",
                options.hold_out_output);
    if (options_.hold_out_output.empty()) options_.hold_out_output = options_.output + "_held_out";
    CHECK_INPUT(
        options.hold_out_every > 0 || !path_exists(options_.hold_out_output + ".idx"),
        "pack: {}.idx holds documents that an earlier pack held out of this output, and this pack would put them "
        "into it; remove that file, or hold out documents again with --hold-out-every",
        options_.hold_out_output);
    CHECK_INPUT(
        options_.hold_out_every == 0 || absolute_path(options_.hold_out_output) != absolute_path(options_.output),
        "pack: {} is both the output and the held-out output", options_.output);
  }

  PackSummary run() {
    if (!options_.overwrite) refuse_existing_output();
    // All sources are found before anything is written, so that the output may lie inside an input directory.
    const std::vector<Source> files = find_files();
    const PackSummary found = summary_;
    if (options_.hold_out_every > 0) {
      read_documents(files, [this](std::string_view text) {
        if (is_nth()) held_out_.insert(checksum_of(text));
      });
      check_documents();
      summary_ = found;
      documents_ = 0;
      held_out_writer_ = open_writer(options_.hold_out_output);
    }
    writer_ = open_writer(options_.output);
    read_documents(files, [this](std::string_view text) { write(text); });
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
      const bool is_directory = is_directory_at(input);
      const auto place = place_of(input);
      CHECK_INPUT(place, "{}: no such file or directory to pack", input);
      CHECK_INPUT(!is_of_kernel(*place), "{}: shows the state of the kernel, expected a file or directory of text",
                  input);
      if (is_directory) {
        append_directory(input, files);
      } else {
        files.push_back({input, kind_of_file(input), *place, true});
      }
    }
    return each_once(std::move(files));
  }

  // Returns the sources with each file and each content once, and records the others as repeated.
  std::vector<Source> each_once(std::vector<Source> sources) {
    const std::vector<size_t> order = one_name_each(sources);
    std::map<std::string, std::vector<size_t>> versions;  // Plain and compressed versions of a file.
    for (const size_t i : order)
      versions[without_compression(fs::absolute(sources[i].path).lexically_normal().string())].push_back(i);
    std::set<size_t> taken;
    for (const auto& [path, numbers] : versions) {
      std::set<std::string> contents;
      for (const size_t i : numbers) {
        if (numbers.size() == 1 || contents.insert(content_of(sources[i])).second) taken.insert(i);
      }
    }
    std::vector<Source> once;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (taken.contains(i)) {
        once.push_back(std::move(sources[i]));
      } else {
        summary_.repeated_files.push_back(sources[i].path);
      }
    }
    return once;
  }

  void append_list(std::vector<std::string>& inputs) const {
    InputFile list(options_.input_list);
    for (std::string line; list.read_line(line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) inputs.push_back(line);
    }
  }

  void append_directory(const std::string& directory, std::vector<Source>& files) {
    const FileTree tree = list_tree(directory);
    for (const FileInTree& file : tree.files) {
      if (!is_own_output(file.path)) files.push_back({file.path, kind_of_file(file.path), file.place});
    }
    summary_.unreadable.insert(summary_.unreadable.end(), tree.unreadable.begin(), tree.unreadable.end());
    for (const auto& [kind, paths] : tree.left_out) summary_.skipped_files[kind] += static_cast<int64_t>(paths.size());
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
  void read_documents(const std::vector<Source>& files, const TakeDocument& take) {
    const TakeDocument take_counted = [&](std::string_view text) {
      if (text.empty()) {
        ++summary_.empty_documents;
        return;
      }
      ++documents_;
      take(text);
    };
    for (const Source& source : files) {
      try {
        read_file(source, take_counted);
      } catch (const UnreadableFile& error) {
        if (source.named) throw;
        summary_.unreadable.emplace_back(error.what());
      }
    }
  }

  void read_file(const Source& source, const TakeDocument& take) {
    const FileKind& kind = source.kind;
    if (kind.content == Content::kParquet || kind.is_unread_compression) {
      CHECK_INPUT(!source.named, "{}: octavo pack does not read {} files, expected text or JSON lines{}", source.path,
                  kind.suffix, kind.suffix == kParquet ? "; scripts/tokenize_hf.py reads them" : "");
      ++summary_.skipped_files[kind.suffix];
      return;
    }
    TextFile file(source.path, kind.compression);
    if (kind.content == Content::kText) {
      try {
        return read_text(file, source, take);
      } catch (const DamagedFile& error) {  // JSON lines before the damage would already be written.
        if (source.named) throw;
        summary_.unreadable.emplace_back(error.what());
        return;
      }
    }
    if (kind.content == Content::kJson && !begins_with_json_line(source)) {
      ++summary_.skipped_files[kind.suffix + " that is not JSON lines"];
      return;
    }
    read_json_lines(file, take);
  }

  void read_text(TextFile& file, const Source& source, const TakeDocument& take) {
    std::string text;
    for (std::string block; file.read_block(block);) {
      const size_t nul = block.find('\0');
      CHECK_INPUT(nul == std::string::npos || !source.named, "{}: has a NUL byte at offset {}, expected text",
                  source.path, text.size() + nul);
      if (nul != std::string::npos) {
        ++summary_.skipped_files[source.kind.suffix];
        return;
      }
      text += block;
      if (static_cast<int64_t>(text.size()) > kMaxDocumentBytes) throw too_long(source.path);
    }
    ++summary_.files;
    take(text);
  }

  void read_json_lines(TextFile& file, const TakeDocument& take) {
    ++summary_.files;
    int64_t number = 0;
    for (std::string line; file.read_line(line);) {
      ++number;
      if (!is_blank(line)) take(parse_line(line, file.path(), number));
    }
  }

  // Returns whether the first line of a .json file is a document, or is missing. A file that the user named must be
  // JSON lines.
  bool begins_with_json_line(const Source& source) const {
    TextFile file(source.path, source.kind.compression);
    int64_t number = 0;
    try {
      for (std::string line; file.read_line(line);) {
        ++number;
        if (is_blank(line)) continue;
        parse_line(line, source.path, number);
        return true;
      }
    } catch (const DamagedFile&) {
      throw;
    } catch (const InputError& error) {
      CHECK_INPUT(!source.named, "{}; a .json file must be JSON lines, which have one object with the text per line",
                  error.what());
      return false;
    }
    return true;
  }

  static bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

  std::string parse_line(const std::string& line, const std::string& path, int64_t number) const {
    const std::string& field = options_.text_field;
    CHECK_INPUT(!line.starts_with("\xEF\xBB\xBF"),
                "{}:{}: begins with a byte order mark (the bytes ef bb bf), expected a file without one", path, number);
    const nlohmann::json json = parse_json(line, fmt::format("{}:{}", path, number));
    CHECK_INPUT(json.is_object() && json.contains(field),
                "{}:{}: has no field '{}', expected an object with one; --text-field names another", path, number,
                field);
    CHECK_INPUT(json[field].is_string(), "{}:{}: the field '{}' is a {}, expected a string", path, number, field,
                json[field].type_name());
    return json[field].get<std::string>();
  }

  bool is_nth() const { return documents_ % options_.hold_out_every == 0; }

  static uint64_t checksum_of(std::string_view text) {
    return checksum(text.data(), static_cast<int64_t>(text.size()));
  }

  void write(std::string_view text) {
    const bool hold_out = !held_out_.empty() && held_out_.contains(checksum_of(text));
    if (hold_out && !is_nth()) ++summary_.held_out_as_equals;
    (hold_out ? held_out_writer_ : writer_)->add_document(ByteTokenizer::encode(text));
  }

  void check_documents() const {
    CHECK_INPUT(documents_ > 0,
                "pack: the inputs hold no document ({} files read, {} unreadable, {} empty documents{}{})",
                summary_.files, summary_.unreadable.size(), summary_.empty_documents,
                summary_.skipped_files.empty() ? "" : ", ", summary_.describe_skipped());
    CHECK_INPUT(documents_ >= options_.hold_out_every, "pack: there are {} documents, too few to hold out one in {}",
                documents_, options_.hold_out_every);
  }

  void finish() {
    check_documents();
    CHECK_INPUT(writer_->num_documents() > 0,
                "pack: each of the {} documents is held out, because its text is that of every {}th document",
                documents_, options_.hold_out_every);
    summary_.documents = writer_->num_documents();
    summary_.tokens = writer_->num_tokens();
    std::vector<TokenFileWriter*> writers{writer_.get()};
    if (held_out_writer_) {
      summary_.held_out_documents = held_out_writer_->num_documents();
      summary_.held_out_tokens = held_out_writer_->num_tokens();
      writers.push_back(held_out_writer_.get());
    }
    TokenFileWriter::finish_together(writers);
  }

  PackOptions options_;
  PackSummary summary_;
  std::unique_ptr<TokenFileWriter> writer_, held_out_writer_;
  std::unordered_set<uint64_t> held_out_;  // Checksums of the texts that are held out.
  int64_t documents_ = 0;                  // Number of documents so far, in both outputs.
};

}  // namespace

std::string PackSummary::describe_skipped() const {
  std::string kinds;
  int64_t total = 0;
  for (const auto& [suffix, count] : skipped_files) {
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", count,
                         suffix.empty() ? "without a suffix" : printable(suffix));
    total += count;
  }
  if (total == 0) return "";
  return fmt::format("skipped {} files and folders: {}{}", total, kinds,
                     skipped_files.contains(kParquet) ? " (scripts/tokenize_hf.py reads .parquet)" : "");
}

std::string PackSummary::describe_repeated() const {
  if (repeated_files.empty()) return "";
  return fmt::format("read once: {} have the content of a file that was taken already, such as {}",
                     repeated_files.size(), printable(repeated_files.front()));
}

PackSummary pack(const PackOptions& options) { return Packer(options).run(); }

}  // namespace octavo
