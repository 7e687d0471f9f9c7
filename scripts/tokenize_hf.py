#!/usr/bin/env python3
"""Tokenizes text with a Hugging Face tokenizer.json into the token files that Octavo trains on.

    tokenize_hf.py --tokenizer tokenizer.json --input PATH... --output PREFIX [--hold-out-every N] [--workers N]

A PATH is a text file (one document), a .jsonl file (one document a line, in its field "text"), or a directory of such files
(in the bytewise order of their paths). What a directory holds besides (binary and compressed files, such as .parquet and
.jsonl.gz, links, what cannot be read) is left out and counted by kind; where that is more than what is taken, nothing is
written, unless --allow-skipped says that it is meant. No bos or eos is added: the loader inserts them around each
document when data.bos_id and data.eos_id are set.

Writes PREFIX.bin, PREFIX.idx and PREFIX.json (the Megatron indexed dataset: unsigned 16-bit tokens for vocabularies under
65536, else 32-bit), first under temporary names, so that an interrupted run leaves nothing that looks like a dataset.
Documents are streamed through a pool of processes in order; memory grows by 4 bytes a document. Needs the Python package
`tokenizers`, nothing else.
"""

import argparse
import array
import collections
import json
import multiprocessing
import os
import re
import struct
import sys
from pathlib import Path

MAGIC = b"MMIDIDX\x00\x00"
COMPRESSIONS = {".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip"}
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")  # but not tabs, ends of lines and pages, and escape
BATCH_BYTES = 1 << 20  # text that travels to a worker at once

_tokenizer = None  # a worker process's own


class InputError(Exception):
    """What the user gave is wrong; one sentence that names the file."""


class Sources:
    """What became of the files of the inputs."""

    def __init__(self):
        self.taken = 0
        self.left_out = collections.Counter()  # by kind

    def num_left_out(self):
        return sum(self.left_out.values())

    def describe_left_out(self):
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.left_out.most_common())
        return f"left out {self.num_left_out()} files: {kinds}"


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


def kind_of(path):
    """What a file that is left out is counted as: its suffix, with the one before a compression's."""
    stem, suffix = os.path.splitext(os.path.basename(path))
    inner = os.path.splitext(stem)[1] if suffix.lower() in COMPRESSIONS else ""
    return (inner + suffix).lower() or "without a suffix"


def list_files(paths, sources):
    """(path, named): every regular file of the inputs; `named` when the user gave this very file."""
    def unreadable(_):
        sources.left_out["unreadable directory"] += 1

    for path in paths:
        if os.path.isdir(path):
            found = [os.path.join(folder, name) for folder, _, names in os.walk(path, onerror=unreadable) for name in names]
            for name in sorted(found, key=os.fsencode):
                if os.path.islink(name):
                    sources.left_out["symbolic link"] += 1
                elif os.path.isfile(name):
                    yield name, False
                else:
                    sources.left_out["special file"] += 1
        elif os.path.isfile(path):
            yield path, True
        else:
            raise InputError(f"{path}: no such file or directory")


def text_of(data):
    """The text of a file, or nothing when it is none: it has a NUL, or other control characters and is no UTF-8."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None if CONTROLS.search(data) else data.decode("utf-8", errors="replace")


def read_documents(paths, sources=None):
    sources = sources or Sources()
    for path, named in list_files(paths, sources):
        try:
            if path.endswith(".jsonl"):
                yield from read_jsonl(path)
                sources.taken += 1
                continue
            with open(path, "rb") as file:
                text = text_of(file.read())
        except OSError as error:
            if named:
                raise InputError(f"{path}: cannot be read: {error.strerror}") from error
            sources.left_out["unreadable"] += 1
            continue
        if text is not None:
            sources.taken += 1
            yield text
        elif named:
            raise InputError(f"{path}: is not text: it has a NUL byte, or control characters and is no UTF-8")
        else:
            sources.left_out[kind_of(path)] += 1


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
        sources = Sources()
        work = ((batch, writers[0].typecode) for batch in batches(read_documents(arguments.input, sources)))
        with multiprocessing.Pool(arguments.workers, start_worker, (str(arguments.tokenizer),)) as pool:
            for encoded in bounded(pool, work, 4 * arguments.workers):
                for packed in encoded:
                    count += 1
                    held_out = hold_out_every and count % hold_out_every == 0
                    writers[1 if held_out else 0].add_document(packed)
        if sources.left_out:
            print(sources.describe_left_out(), file=sys.stderr)
        if sources.num_left_out() > sources.taken and not arguments.allow_skipped:
            raise InputError(f"more files are left out ({sources.num_left_out()}) than taken ({sources.taken}); "
                             "--allow-skipped takes them nevertheless")
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
    parser.add_argument("--allow-skipped", action="store_true", help="also when more files are left out than taken")
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
