#!/usr/bin/env python3
"""Tokenizes text with a Hugging Face tokenizer.json into the token files that Octavo trains on.

    tokenize_hf.py --tokenizer PATH           --input PATH... --output PREFIX [--shuffle SEED] [--hold-out-every N]
    tokenize_hf.py --train-bpe 32000          --input PATH... --output PREFIX

A PATH is a file, a pattern such as 'corpus/*.jsonl.zst', or a folder, whose files are read in the bytewise order of their paths:

    .jsonl, .jsonlines, .ndjson  JSON lines: one document per line, in its field "text" or the first of --text-field that it has
    .json                        JSON lines, or refused
    .parquet                     one document per row, in the column "text"
    any other file               one document, if it is text

All but .parquet may be compressed as .gz, .bz2, .xz, .zst or .zstd. docs/data.md has the whole rule, which `octavo pack` follows too.

Links are followed, and a file with several names is read once. Other files of a folder (binary files, unreadable files) and version control
(.git) are skipped and counted by kind. If more files would be skipped than read, nothing is written unless --allow-skipped is given. A name
such as <|end_of_text|> in a document is encoded as characters unless --parse-special-tokens is given. The documents that have such names are
counted. A line or row that is invalid UTF-8 or has half of a surrogate pair is refused by its number. --skip-bad N skips at most N of these.

The token files contain no bos or eos, because the loader inserts those that PREFIX.json names around each document. These are the tokens
that special_tokens_map.json, tokenizer_config.json, generation_config.json or config.json beside the tokenizer name, in this order. If
tokenizer_config.json has added_tokens_decoder, special_tokens_map.json is not read, as in transformers. --bos and --eos override the files,
also for finished token files.

The script writes PREFIX.bin, PREFIX.idx and PREFIX.json, the Megatron indexed dataset. Tokens are unsigned 16-bit integers for
vocabularies below 65536, and 32-bit integers otherwise. The inputs are divided into parts. One process per core tokenizes parts into
files in PREFIX.parts. At the end the parts are joined under temporary names, the results are renamed, and the parts are removed. The
same command continues after an interruption and reuses finished parts. Until the end the disk holds the tokens twice, and three times
with --shuffle. The bytes do not depend on the number of workers or on interruptions. Memory does not grow with the inputs
(scripts/tokenizing/merge.py says how they are shuffled).

--part I/N tokenizes part I of N. N runs, on any machines and without contact, have each document of the inputs exactly once. Each run must
see the same inputs and have the same other options. PREFIX is a folder then, with part-0000I-of-0000N.bin and so on, and data.train takes
this folder as the path of one dataset.

--train-bpe N first trains a byte-level BPE tokenizer with N entries on the inputs, writes it to PREFIX.tokenizer.json, and uses it.
PREFIX.tokenizer_config.json names its special tokens for transformers.

The exit code is 2 for bad input and 1 for a failed run. The script needs the Python package `tokenizers`, `pyarrow` for .parquet, and
`zstandard` for .zst and .zstd.
"""

import argparse
import os
import sys

from python_packages import TOKENIZING, find_packages
from tokenizing.errors import InputError, RunError
from tokenizing.run import tokenize


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tokenizer = parser.add_mutually_exclusive_group(required=True)
    tokenizer.add_argument("--tokenizer", metavar="PATH", help="use this Hugging Face tokenizer.json, or the one in this folder")
    tokenizer.add_argument("--train-bpe", type=int, metavar="N", help="train a byte-level BPE tokenizer with N entries")
    parser.add_argument("--input", required=True, nargs="+", metavar="PATH", help="text, JSON lines and Parquet files, patterns or folders")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="write PREFIX.bin, PREFIX.idx and PREFIX.json")
    parser.add_argument("--part", metavar="I/N", help="tokenize only part I, from 1, of N parts of the inputs, into the folder PREFIX")
    parser.add_argument("--text-field", default=["text"], nargs="+", metavar="NAME",
                        help="field or column that has the text; of several names, the first that a line or file has (default: text)")
    for kind, place in (("bos", "begins"), ("eos", "ends")):
        parser.add_argument(f"--{kind}", metavar="TOKEN",
                            help=f"text or id of the token that {place} a document, or none (default: as the files beside the tokenizer say)")
    parser.add_argument("--parse-special-tokens", action="store_true",
                        help="encode names of special tokens in documents, such as <|end_of_text|>, as these tokens (default: as text)")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="write the documents in a pseudo-random order")
    parser.add_argument("--hold-out-every", type=int, default=0, metavar="N",
                        help="write one in N documents, chosen by a hash of its tokens, to the held-out dataset (default: none)")
    parser.add_argument("--hold-out-output", metavar="PREFIX", help="prefix of the held-out dataset (default: OUTPUT_held_out)")
    parser.add_argument("--allow-skipped", action="store_true", help="continue even if more input files are skipped than read")
    parser.add_argument("--skip-bad", type=int, default=0, metavar="N",
                        help="skip, count and name at most N bad lines, rows and files (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="replace token files that other inputs or options made")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="number of processes (default: one per core)")
    parser.add_argument("--part-bytes", type=int, metavar="N", help="bytes of input per part, which do not affect the output (default: chosen by size)")
    arguments = parser.parse_args()
    if arguments.workers < 1 or min(arguments.hold_out_every, arguments.skip_bad) < 0:
        parser.error("--workers must be positive, --hold-out-every and --skip-bad not negative")
    if arguments.shuffle is not None and not 0 <= arguments.shuffle < 1 << 64:
        parser.error("--shuffle needs a seed from 0 to 2^64 - 1")
    if arguments.part_bytes is not None and arguments.part_bytes < 1:
        parser.error("--part-bytes must be positive")
    return parser, arguments


def main():
    parser, arguments = parse_arguments()
    # Missing packages that only some inputs need are reported where they are needed.
    if find_packages(*TOKENIZING):
        find_packages("tokenizers")
    if sys.byteorder != "little":
        parser.exit(1, "tokenize_hf.py: this machine is big-endian, but token files are little-endian\n")
    try:
        tokenize(arguments)
    except InputError as error:
        parser.exit(2, f"tokenize_hf.py: {error}\n")
    except (RunError, OSError) as error:
        parser.exit(1, f"tokenize_hf.py: {error}\n")
    except MemoryError:
        parser.exit(1, "tokenize_hf.py: out of memory; use fewer --workers\n")
    except KeyboardInterrupt:
        parser.exit(130, "tokenize_hf.py: interrupted; the same command continues from the finished parts\n")


if __name__ == "__main__":
    main()
