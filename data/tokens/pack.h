// `octavo pack`: text, JSONL and source trees become a token file of the byte tokenizer (see
// data/tokens/byte_tokenizer.h).
//
// A document is a text file, or the string in the field `text` of a line of a .jsonl file. A directory stands for the
// regular files in it and below, in the bytewise order of their paths; symbolic links in it are left alone, so that
// nothing is read twice and nothing outside the tree. Documents keep the order of the inputs. bos and eos are not
// stored: the loader inserts them when the config asks for it.
#pragma once

#include <cstdint>
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
};

struct PackSummary {
  int64_t documents = 0, tokens = 0;                    // written to output
  int64_t held_out_documents = 0, held_out_tokens = 0;  // written to hold_out_output
  int64_t files = 0;                                    // read for documents
  // Left out, of what a directory holds: files and directories that cannot be read (to their end), each with the
  // reason, and files with a NUL byte (not text).
  std::vector<std::string> unreadable;
  int64_t binary_files = 0;
  int64_t empty_documents = 0;  // left out: no byte to learn from
};

// Writes PREFIX.bin, .idx and .json under temporary names and renames them once everything is read and written, so that
// bad input and a full disk leave older datasets of their names whole. InputError when a named input is missing,
// unreadable or not text, a JSONL line is malformed (naming file and line), or there is no document at all; Error when
// the disk is full.
PackSummary pack(const PackOptions& options);

}  // namespace octavo
