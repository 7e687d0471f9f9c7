// `octavo pack`: text, JSONL and source trees become a token file of the byte tokenizer (see
// data/tokens/byte_tokenizer.h).
//
// A document is a text file, or the string in the field `text` of a line of a .jsonl file. A directory stands for the
// regular files in it and below, in the bytewise order of their paths; symbolic links in it are left alone, so that
// nothing is read twice and nothing outside the tree. Documents keep the order of the inputs. bos and eos are not
// stored: the loader inserts them when the config asks for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace octavo {

struct PackOptions {
  // Files and directories.
  std::vector<std::string> inputs = {};
  // A file with one more input a line, after `inputs`; none when empty.
  std::string input_list = {};
  // PREFIX of the token file; its folder is created when missing.
  std::string output = {};
  // Every n-th document goes to hold_out_output instead; 0: none.
  int64_t hold_out_every = 0;
  // PREFIX of the held-out token file; OUTPUT_held_out when empty.
  std::string hold_out_output = {};
  // Whether files of the outputs' names that exist are replaced.
  bool overwrite = false;
};

struct PackSummary {
  int64_t documents = 0, tokens = 0;                    // written to output
  int64_t held_out_documents = 0, held_out_tokens = 0;  // written to hold_out_output
  int64_t files = 0;                                    // read for documents
  // Files and directories below the given directories that cannot be read (to their end), each with the reason.
  std::vector<std::string> unreadable;
  // Files below the given directories that are not text, by suffix: they have a NUL byte, or the suffix of a format
  // that scripts/tokenize_hf.py reads (.parquet, .gz, .zst).
  std::map<std::string, int64_t> skipped_files;
  int64_t empty_documents = 0;  // skipped as well: no byte to learn from

  // "skipped 4 files that are not text: 3 .parquet, 1 .png (scripts/tokenize_hf.py reads .parquet, .gz and .zst)";
  // empty where none was skipped.
  std::string describe_skipped() const;
};

// Writes PREFIX.bin, .idx and .json under temporary names and renames them once everything is read and written, so that
// bad input and a full disk leave older datasets of their names whole. InputError when a file of an output's name
// exists and is not to be replaced, a named input is missing, unreadable or not text, a JSONL line is malformed (naming
// file and line), or there is no document at all; Error when the disk is full.
PackSummary pack(const PackOptions& options);

}  // namespace octavo
