// Implements `octavo pack`: turns text, JSONL and source trees into a token file of the byte tokenizer
// (data/tokens/byte_tokenizer.h).
//
// A document is a text file, or the string in the field `text` of a line of a .jsonl file. A directory stands for the
// regular files in it and below, in bytewise order of their paths. Symbolic links in it are skipped, so that nothing is
// read twice and nothing outside the tree is read. Documents keep the order of the inputs. bos and eos are not stored;
// the loader inserts them if the config asks for it.
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
  // Every n-th document goes to hold_out_output instead. 0 disables it.
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
  // Number of files below the given directories that are not text, by suffix. They have a NUL byte, or the suffix of a
  // format that scripts/tokenize_hf.py reads (.parquet, .gz, .zst).
  std::map<std::string, int64_t> skipped_files;
  int64_t empty_documents = 0;  // Number of documents without a byte, which are skipped.

  // Returns "skipped 4 files that are not text: 3 .parquet, 1 .png (scripts/tokenize_hf.py reads .parquet, .gz and
  // .zst)", or an empty text if no file was skipped.
  std::string describe_skipped() const;
};

// Writes PREFIX.bin, .idx and .json under temporary names and renames them after everything is read and written, so
// that bad input or a full disk does not damage older datasets. Throws an InputError if an output exists and must not
// be replaced, a named input is missing, unreadable or not text, a JSONL line is malformed (with file and line), or
// there is no document. Throws an Error if the disk is full.
PackSummary pack(const PackOptions& options);

}  // namespace octavo
