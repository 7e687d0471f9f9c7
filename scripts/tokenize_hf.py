#!/usr/bin/env python3
"""Tokenizes text with a Hugging Face tokenizer.json into the token files that Octavo trains on.

    tokenize_hf.py --tokenizer tokenizer.json --input PATH... --output PREFIX [--shuffle SEED] [--hold-out-every N]
    tokenize_hf.py --train-bpe 32000          --input PATH... --output PREFIX

A PATH is a .jsonl file (one document a line, in its field "text"), a .parquet file (one document a row, in that column), any
other text file (one document), each but .parquet also as .gz or .zst, a pattern such as 'corpus/*.jsonl.zst', or a folder of
such files (in the bytewise order of their paths). What a folder holds besides (binary files, links, what cannot be read) is
left out and counted by kind; where that is more than what is taken, nothing is written, unless --allow-skipped says that it
is meant. No bos or eos is added: the loader inserts around each document those that PREFIX.json names. A document
is text: where <|end_of_text|> stands in it, its characters are encoded, unless --parse-special-tokens is given; the documents
that have such names in them are counted. A line or row that is not UTF-8, or has half of a surrogate pair, is refused by its number;
--skip-bad N skips at most N of these.

Writes PREFIX.bin, PREFIX.idx and PREFIX.json (the Megatron indexed dataset: unsigned 16-bit tokens for vocabularies under
65536, else 32-bit). The inputs are divided into parts, which a process a core tokenizes into files in PREFIX.parts; at the
end these are joined under temporary names, which are then renamed, and removed. A run that was ended in whatever way, given
again, goes on with the parts that it finds; meanwhile the disk holds the tokens twice, and a third time with --shuffle. The
bytes are the same whatever the number of workers, with or without an interruption. Memory does not grow with the inputs
(scripts/tokenizing/merge.py says how they are shuffled).

--train-bpe N first makes a byte-level BPE tokenizer of N entries on the inputs, PREFIX.tokenizer.json, and uses that. PREFIX.tokenizer_config.json names its special tokens for transformers.

Exit code 2: what was given is wrong; 1: something failed on the way. Needs the Python package `tokenizers`, for .parquet
`pyarrow`, for .zst `zstandard`.
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
    tokenizer.add_argument("--tokenizer", metavar="FILE", help="a Hugging Face tokenizer.json")
    tokenizer.add_argument("--train-bpe", type=int, metavar="N", help="make PREFIX.tokenizer.json, a byte-level BPE of N entries")
    parser.add_argument("--input", required=True, nargs="+", metavar="PATH", help="text, .jsonl, .parquet, patterns or folders")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="writes PREFIX.bin, .idx and .json")
    parser.add_argument("--text-field", default="text", metavar="NAME", help="the field or column of the text; text by default")
    parser.add_argument("--parse-special-tokens", action="store_true",
                        help="make special tokens of their names in the text, as of <|end_of_text|>; otherwise they are text")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="the documents in a random order")
    parser.add_argument("--hold-out-every", type=int, default=0, metavar="N", help="every N-th document to the held-out file")
    parser.add_argument("--hold-out-output", metavar="PREFIX", help="the held-out file; OUTPUT_held_out by default")
    parser.add_argument("--allow-skipped", action="store_true", help="also when more files are left out than taken")
    parser.add_argument("--skip-bad", type=int, default=0, metavar="N",
                        help="skip at most N bad documents (lines, rows, named files), which are counted and named; 0 by default")
    parser.add_argument("--overwrite", action="store_true", help="also when PREFIX holds what other inputs or options made")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes; by default one a core")
    parser.add_argument("--part-bytes", type=int, metavar="N", help="input that a worker does at once; no matter for the output")
    arguments = parser.parse_args()
    if arguments.workers < 1 or min(arguments.hold_out_every, arguments.skip_bad) < 0:
        parser.error("--workers must be positive, --hold-out-every and --skip-bad not negative")
    if arguments.shuffle is not None and not 0 <= arguments.shuffle < 1 << 64:
        parser.error("--shuffle takes a seed of 0 to 2^64 - 1")
    if arguments.part_bytes is not None and arguments.part_bytes < 1:
        parser.error("--part-bytes must be positive")
    return parser, arguments


def main():
    parser, arguments = parse_arguments()
    # Missing packages that only some inputs need are reported where they are needed.
    if find_packages(*TOKENIZING):
        find_packages("tokenizers")
    if sys.byteorder != "little":
        parser.exit(1, "tokenize_hf.py: token files are little-endian, and so must be the machine\n")
    try:
        tokenize(arguments)
    except InputError as error:
        parser.exit(2, f"tokenize_hf.py: {error}\n")
    except (RunError, OSError) as error:
        parser.exit(1, f"tokenize_hf.py: {error}\n")
    except MemoryError:
        parser.exit(1, "tokenize_hf.py: out of memory; fewer --workers take less\n")
    except KeyboardInterrupt:
        parser.exit(130, "tokenize_hf.py: interrupted; the same command goes on from the finished parts\n")


if __name__ == "__main__":
    main()
