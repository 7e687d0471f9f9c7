"""Writes PREFIX.bin, PREFIX.idx and PREFIX.json, the Megatron indexed dataset; docs/data.md describes the format."""

import array
import itertools
import json
import os
import struct
from pathlib import Path

from tokenizing.part_files import fsync_folder

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<QBQQ")
SUFFIXES = (".bin", ".json", ".idx")  # The index is last, because without it there is no dataset.
BLOCK_DOCUMENTS = 1 << 16


class TokenFileWriter:
    """Writes PREFIX.bin and the lengths as documents arrive, then the other files, under temporary names until publish(). Memory
    does not grow with the documents."""

    def __init__(self, prefix, vocab_size):
        self.prefix = prefix
        self.code, self.typecode = (8, "H") if vocab_size < 65536 else (4, "i")
        self.token_bytes = array.array(self.typecode).itemsize
        self.documents = self.tokens = 0
        self.lengths = array.array("i")  # Lengths of the newest documents, which are not yet in the file.
        Path(prefix).parent.mkdir(parents=True, exist_ok=True)
        self.bin = open(f"{prefix}.bin.tmp", "wb", buffering=1 << 20)
        self.idx = open(f"{prefix}.idx.tmp", "w+b", buffering=1 << 20)
        self.idx.write(bytes(len(MAGIC) + HEADER.size))

    def add_document(self, packed):
        """Adds a document. `packed` has its tokens as bytes of self.typecode."""
        self.bin.write(packed)
        length = len(packed) // self.token_bytes
        self.lengths.append(length)
        self.documents += 1
        self.tokens += length
        if len(self.lengths) >= BLOCK_DOCUMENTS:
            self.flush_lengths()

    def add_lengths(self, lengths):
        """Adds the lengths of documents whose tokens were written to self.bin."""
        self.lengths.extend(lengths)
        self.documents += len(lengths)
        self.tokens += sum(lengths)
        if len(self.lengths) >= BLOCK_DOCUMENTS:
            self.flush_lengths()

    def flush_lengths(self):
        self.lengths.tofile(self.idx)
        self.lengths = array.array("i")

    def read_lengths(self):
        """Yields the lengths of all documents, in blocks, from PREFIX.idx.tmp."""
        self.idx.flush()
        with open(self.idx.name, "rb") as file:
            file.seek(len(MAGIC) + HEADER.size)
            for begin in range(0, self.documents, BLOCK_DOCUMENTS):
                lengths = array.array("i")
                lengths.fromfile(file, min(BLOCK_DOCUMENTS, self.documents - begin))
                yield lengths

    def write_index(self):
        self.flush_lengths()
        position = 0
        for lengths in self.read_lengths():
            offsets = array.array("q", itertools.accumulate((n * self.token_bytes for n in lengths), initial=position))
            position = offsets.pop()
            offsets.tofile(self.idx)
        for begin in range(0, self.documents + 1, BLOCK_DOCUMENTS):
            array.array("q", range(begin, min(begin + BLOCK_DOCUMENTS, self.documents + 1))).tofile(self.idx)
        self.idx.seek(0)
        self.idx.write(MAGIC + HEADER.pack(1, self.code, self.documents, self.documents + 1))

    def close(self, description):
        """Writes everything to disk, under temporary names."""
        self.write_index()
        sidecar = open(f"{self.prefix}.json.tmp", "w", encoding="utf-8")
        json.dump(description | {"documents": self.documents, "tokens": self.tokens}, sidecar, indent=2)
        sidecar.write("\n")
        for file in (self.bin, self.idx, sidecar):
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def discard(self):
        for file in (self.bin, self.idx):
            try:
                file.close()
            except OSError:
                pass  # close() fails on a full disk. The error that led here is reported instead.
        for suffix in SUFFIXES:
            Path(self.prefix + suffix + ".tmp").unlink(missing_ok=True)


def publish(writers):
    """Renames the temporary files of all writers to their final names. If that fails, restores all older files."""
    paths = [writer.prefix + suffix for writer in writers for suffix in SUFFIXES]
    set_aside, named = [], []
    try:
        for path in reversed(paths):  # The old index is moved first, so that it never stands next to the new tokens.
            if os.path.exists(path):
                os.replace(path, f"{path}.old.tmp")
                set_aside.append(path)
        for path in paths:
            os.replace(f"{path}.tmp", path)
            named.append(path)
    except OSError:
        for path in named:
            os.unlink(path)
        for path in set_aside:
            os.replace(f"{path}.old.tmp", path)
        raise
    for path in set_aside:
        os.unlink(f"{path}.old.tmp")
    for writer in writers:
        fsync_folder(os.path.dirname(writer.prefix))


def dataset_files(prefix):
    """Returns the existing files of PREFIX."""
    return [prefix + suffix for suffix in SUFFIXES if os.path.exists(prefix + suffix)]


def read_sidecar(prefix):
    """Returns PREFIX.json of a dataset whose files have the sizes that it states, or None."""
    try:
        with open(f"{prefix}.json", encoding="utf-8") as file:
            sidecar = json.load(file)
        with open(f"{prefix}.idx", "rb") as file:
            header = file.read(len(MAGIC) + HEADER.size)
        _, code, documents, entries = HEADER.unpack(header[len(MAGIC) :])
        idx_bytes = len(header) + 12 * documents + 8 * entries
        bin_bytes = sidecar["tokens"] * {8: 2, 4: 4}[code]
        whole = (os.path.getsize(f"{prefix}.idx"), os.path.getsize(f"{prefix}.bin")) == (idx_bytes, bin_bytes)
        return sidecar if whole and sidecar["documents"] == documents else None
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None
