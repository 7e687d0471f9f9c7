// Implements `octavo pack`: turns text, JSON lines and source trees into a token file of the byte tokenizer
// (data/tokens/byte_tokenizer.h).
//
// The name of a file says what it is (data/text/text_file.h). A directory stands for the files in it and below
// (core/files/file_tree.h). A file is taken once, however many names lead to it. Documents keep the order of the
// inputs. bos and eos are not stored; the loader inserts them if the config asks for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace octavo {

struct PackOptions {
  // Input files and directories.
  std::vector<std::string> inputs = {};
  // File with one more input per line, after `inputs`. Empty means none.
  std::string input_list = {};
  // PREFIX of the token file. Its folder is created if necessary.
  std::string output = {};
  // Field of JSON lines that has the text.
  std::string text_field = "text";
  // Every n-th document, and every document with the same text as one of these, goes to hold_out_output instead. 0
  // holds out nothing.
  int64_t hold_out_every = 0;
  // PREFIX of the held-out token file. Empty means OUTPUT_held_out.
  std::string hold_out_output = {};
  // Whether existing files with the outputs' names are replaced.
  bool overwrite = false;
};

struct PackSummary {
  int64_t documents = 0, tokens = 0;                    // Documents and tokens written to output.
  int64_t held_out_documents = 0, held_out_tokens = 0;  // Documents and tokens written to hold_out_output.
  int64_t files = 0;                                    // Number of files read.
  // Files and directories below the given directories that could not be read completely, each with the reason.
  std::vector<std::string> unreadable;
  // Number of skipped entries below the given directories: files that are not text, by suffix, and the entries of
  // FileTree::left_out, by kind.
  std::map<std::string, int64_t> skipped_files;
  // Files with the content of a file that was taken already: the same file under another name, or the compressed
  // version next to it.
  std::vector<std::string> repeated_files;
  int64_t empty_documents = 0;     // Number of documents without a byte, which are skipped.
  int64_t held_out_as_equals = 0;  // Number of documents that are held out because an equal one is.

  // Return "skipped 5 files and folders: 1 .git, 3 .parquet, 1 .png (scripts/tokenize_hf.py reads .parquet)" and "read
  // once: 2 files have the content of a file that was taken, such as a.jsonl.gz", or an empty text if there is none.
  std::string describe_skipped() const;
  std::string describe_repeated() const;
};

// Writes PREFIX.bin, .idx and .json under temporary names and renames them after everything is read and written, so
// that bad input or a full disk does not damage older datasets. Throws an InputError if an output exists and must not
// be replaced, a named input is missing, unreadable or not text, a JSON line is malformed (with file and line), a
// compressed file is damaged, or there is no document. Throws an Error if the disk is full.
PackSummary pack(const PackOptions& options);

}  // namespace octavo
