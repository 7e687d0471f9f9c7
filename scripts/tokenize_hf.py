#!/usr/bin/env python3
"""Tokenizes text with a Hugging Face tokenizer.json into the token files that Octavo trains on.

    tokenize_hf.py --tokenizer tokenizer.json --input PATH... --output PREFIX [--hold-out-every N] [--workers N]

A PATH is a text file (one document), a .jsonl file (one document a line, in its field "text"), or a directory of such files
(one document a file, in the bytewise order of their paths). No bos or eos is added: the loader inserts them around each
document when data.bos_id and data.eos_id are set.

Writes PREFIX.bin, PREFIX.idx and PREFIX.json (the Megatron indexed dataset: unsigned 16-bit tokens for vocabularies under
65536, else 32-bit), first under temporary names, so that an interrupted run leaves nothing that looks like a dataset.
Documents are streamed through a pool of processes in order; memory grows by 4 bytes a document. Needs the Python package
`tokenizers`, nothing else.
"""

import argparse
import array
import json
import multiprocessing
import os
import struct
import sys
from pathlib import Path

MAGIC = b"MMIDIDX\x00\x00"
BATCH_BYTES = 1 << 20  # text that travels to a worker at once

_tokenizer = None  # a worker process's own


class InputError(Exception):
    """What the user gave is wrong; one sentence that names the file."""


class TokenFileWriter:
    """PREFIX.bin as documents come, then PREFIX.idx and PREFIX.json; docs/data.md describes the format."""

    def __init__(self, prefix, vocab_size):
        self.prefix = prefix
        self.code, self.typecode = (8, "H") if vocab_size < 65536 else (4, "i")
        self.lengths = array.array("i")
        self.tokens = 0
        Path(prefix).parent.mkdir(parents=True, exist_ok=True)
        self.bin = open(f"{prefix}.bin.tmp", "wb")

    def add_document(self, packed):
        """`packed`: the document's tokens as bytes of self.typecode."""
        length = len(packed) // array.array(self.typecode).itemsize
        self.bin.write(packed)
        self.lengths.append(length)
        self.tokens += length

    def finish(self, description):
        size = array.array(self.typecode).itemsize
        offsets = array.array("q")
        position = 0
        for length in self.lengths:
            offsets.append(position)
            position += length * size
        with open(f"{self.prefix}.idx.tmp", "wb") as idx:
            idx.write(MAGIC + struct.pack("<QBQQ", 1, self.code, len(self.lengths), len(self.lengths) + 1))
            self.lengths.tofile(idx)
            offsets.tofile(idx)
            array.array("q", range(len(self.lengths) + 1)).tofile(idx)
        with open(f"{self.prefix}.json.tmp", "w", encoding="utf-8") as sidecar:
            json.dump(description | {"documents": len(self.lengths), "tokens": self.tokens}, sidecar, indent=2)
            sidecar.write("\n")
        self.bin.close()
        # The index last: without it there is no dataset.
        Path(f"{self.prefix}.idx").unlink(missing_ok=True)
        for suffix in (".bin", ".json", ".idx"):
            os.replace(self.prefix + suffix + ".tmp", self.prefix + suffix)

    def discard(self):
        self.bin.close()
        for suffix in (".bin", ".idx", ".json"):
            Path(self.prefix + suffix + ".tmp").unlink(missing_ok=True)


def list_files(paths):
    """(path, named): every regular file of the inputs; `named` when the user gave this very file."""
    for path in paths:
        if os.path.isdir(path):
            found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
            regular = [name for name in found if os.path.isfile(name) and not os.path.islink(name)]
            for name in sorted(regular, key=os.fsencode):
                yield name, False
        elif os.path.isfile(path):
            yield path, True
        else:
            raise InputError(f"{path}: no such file or directory")


def read_documents(paths):
    for path, named in list_files(paths):
        if path.endswith(".jsonl"):
            yield from read_jsonl(path)
            continue
        with open(path, "rb") as file:
            data = file.read()
        if b"\0" not in data:
            yield data.decode("utf-8", errors="replace")
        elif named:
            raise InputError(f"{path}: has a NUL byte at offset {data.index(0)}, expected text")


def read_jsonl(path):
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except (json.JSONDecodeError, KeyError, TypeError):
                text = None
            if not isinstance(text, str):
                raise InputError(f'{path}:{number}: expected a JSON object with a string in the field "text"')
            yield text


def batches(documents):
    """Lists of non-empty documents of about BATCH_BYTES together."""
    batch, size = [], 0
    for text in documents:
        if not text:
            continue
        batch.append(text)
        size += len(text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def start_worker(tokenizer_path):
    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    import tokenizers

    _tokenizer = tokenizers.Tokenizer.from_file(tokenizer_path)
    _tokenizer.no_truncation()
    _tokenizer.no_padding()


def encode_batch(work):
    texts, typecode = work
    encodings = _tokenizer.encode_batch(texts, add_special_tokens=False)
    return [array.array(typecode, encoding.ids).tobytes() for encoding in encodings]


def bounded(pool, work, limit):
    """pool.imap in order, with at most `limit` batches under way: imap alone would read the whole corpus into memory."""
    pending = []
    for item in work:
        pending.append(pool.apply_async(encode_batch, (item,)))
        if len(pending) >= limit:
            yield pending.pop(0).get()
    for result in pending:
        yield result.get()


def first_id(tokenizer, names):
    ids = [tokenizer.token_to_id(name) for name in names]
    return next((token for token in ids if token is not None), None)


def describe(tokenizer, path):
    return {
        "tokenizer": str(path),
        "vocab_size": tokenizer.get_vocab_size(with_added_tokens=True),
        "bos": first_id(tokenizer, ["<|begin_of_text|>", "<s>", "<|startoftext|>", "<bos>"]),
        "eos": first_id(tokenizer, ["<|end_of_text|>", "</s>", "<|endoftext|>", "<eos>"]),
    }


def load_tokenizer(path):
    try:
        import tokenizers
    except ImportError as error:
        raise InputError("the Python package `tokenizers` is missing: python3 -m pip install tokenizers") from error
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises a bare Exception
        raise InputError(f"{path}: is not a Hugging Face tokenizer.json: {error}") from error


def tokenize(arguments):
    tokenizer = load_tokenizer(arguments.tokenizer)
    description = describe(tokenizer, arguments.tokenizer)
    # Added tokens may leave gaps in the ids, so the largest id decides on the width.
    vocab_size = max(max(tokenizer.get_vocab().values()) + 1, description["vocab_size"])
    description["vocab_size"] = vocab_size
    hold_out_every = arguments.hold_out_every
    prefixes = [arguments.output] + ([arguments.hold_out_output or arguments.output + "_held_out"] if hold_out_every else [])
    writers = [TokenFileWriter(prefix, vocab_size) for prefix in prefixes]
    try:
        count = 0
        work = ((batch, writers[0].typecode) for batch in batches(read_documents(arguments.input)))
        with multiprocessing.Pool(arguments.workers, start_worker, (str(arguments.tokenizer),)) as pool:
            for encoded in bounded(pool, work, 4 * arguments.workers):
                for packed in encoded:
                    count += 1
                    held_out = hold_out_every and count % hold_out_every == 0
                    writers[1 if held_out else 0].add_document(packed)
        if any(not writer.lengths for writer in writers):
            raise InputError(f"the inputs hold {count} documents, too few")
        for writer in writers:
            writer.finish(description)
            print(f"{writer.prefix}: {len(writer.lengths)} documents, {writer.tokens} tokens")
    except BaseException:
        for writer in writers:
            writer.discard()
        raise


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, type=Path, help="a Hugging Face tokenizer.json")
    parser.add_argument("--input", required=True, nargs="+", metavar="PATH", help="text, .jsonl or directories")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="writes PREFIX.bin, .idx and .json")
    parser.add_argument("--hold-out-every", type=int, default=0, metavar="N", help="every N-th document goes to the held-out file")
    parser.add_argument("--hold-out-output", metavar="PREFIX", help="the held-out file; OUTPUT_held_out by default")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; the number of cores by default")
    arguments = parser.parse_args()
    if arguments.workers < 1 or arguments.hold_out_every < 0:
        parser.error("--workers must be positive and --hold-out-every not negative")
    if sys.byteorder != "little":
        parser.exit(1, "tokenize_hf.py: token files are little-endian, and so must be the machine\n")
    try:
        tokenize(arguments)
    except InputError as error:
        parser.exit(2, f"tokenize_hf.py: {error}\n")
    except OSError as error:
        parser.exit(1, f"tokenize_hf.py: {error}\n")


if __name__ == "__main__":
    main()
