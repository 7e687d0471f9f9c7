"""Divides the inputs into parts. The division does not depend on the number of workers.

A part is a group of small files, a byte range of a large .jsonl file, or a row range of a large .parquet file. A large compressed .jsonl
file cannot be read from the middle. The main process unpacks it, which takes little time compared with tokenizing, and passes blocks of
lines to the workers.
"""

import dataclasses
import hashlib
import json
import os

from tokenizing.blocks import BLOCK_BYTES, read_blocks
from tokenizing.documents import MAX_DOCUMENT_BYTES, open_parquet, too_long
from tokenizing.inputs import Source

MIN_PART_BYTES, MAX_PART_BYTES = 1 << 20, 1 << 25
EXPANSION = 4  # Approximate bytes of text per byte of a compressed file.
MAX_SPLITS = 16  # Maximum number of splits of a row group, because each split decodes the rows before it.


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a file to read: the whole file unless a field says otherwise."""

    source: Source
    bytes: tuple = None  # Byte range (first, last). The piece has the lines that begin in it.
    rows: tuple = None  # Row range: (row group, first row, last row).
    lines: bytes = None  # Unpacked lines. Other lines follow after first_line.
    first_line: int = 0
    block: tuple = None  # Block of lines of the file: (number, whether it is the last).


@dataclasses.dataclass(frozen=True)
class Part:
    """The work that a worker does at once."""

    name: str
    pieces: list
    input_bytes: int  # Bytes of the files, for the progress.


def choose_part_bytes(sources):
    """Returns the size of a part. There are about a thousand parts, each done in seconds, and fewer than a million files. The size
    is a power of two, so that it seldom changes when a file does."""
    total = sum(source.size_bytes for source in sources)
    return min(max(1 << (total >> 10).bit_length(), MIN_PART_BYTES), MAX_PART_BYTES)


class Planner:
    """Makes the parts of `sources` in order. `key` is everything else that determines the tokens of a part."""

    def __init__(self, sources, field, part_bytes, key):
        self.sources, self.field, self.part_bytes, self.key = sources, field, part_bytes, key

    def part(self, pieces, input_bytes):
        identity = [self.key, self.field, self.part_bytes]
        for piece in pieces:
            source = dataclasses.astuple(dataclasses.replace(piece.source, path=os.path.abspath(piece.source.path)))
            identity.append([source, piece.bytes, piece.rows, piece.block and piece.block[0]])
        return Part(hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32], pieces, input_bytes)

    def parts(self, is_last_block=lambda name: None):
        """Yields the parts in order. is_last_block(name) says for a finished part of a compressed file whether the file ends with
        it, and returns None for other parts."""
        small, weight = [], 0
        for source in self.sources:
            source_weight = source.size_bytes * (EXPANSION if source.compression else 1)
            if source_weight <= self.part_bytes or source.kind == "text":
                if small and weight + source_weight > self.part_bytes:
                    yield self.part(small, sum(piece.source.size_bytes for piece in small))
                    small, weight = [], 0
                small.append(Piece(source))
                weight += source_weight
                continue
            if small:
                yield self.part(small, sum(piece.source.size_bytes for piece in small))
                small, weight = [], 0
            if source.kind == "parquet":
                yield from self.parquet_parts(source)
            elif source.compression:
                yield from self.compressed_parts(source, is_last_block)
            else:
                yield from self.range_parts(source)
        if small:
            yield self.part(small, sum(piece.source.size_bytes for piece in small))

    def range_parts(self, source):
        count = -(-source.size_bytes // self.part_bytes)
        ends = [source.size_bytes * i // count for i in range(count + 1)]
        for first, last in zip(ends, ends[1:]):
            yield self.part([Piece(source, bytes=(first, last))], last - first)

    def parquet_parts(self, source):
        pieces, weight = [], 0
        with open_parquet(source, self.field) as file:
            metadata = file.metadata
        all_rows = max(metadata.num_rows, 1)
        share = lambda pieces: source.size_bytes * sum(piece.rows[2] - piece.rows[1] for piece in pieces) // all_rows
        for group in range(metadata.num_row_groups):
            found = metadata.row_group(group)
            columns = [found.column(i) for i in range(found.num_columns)]
            text_bytes = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] == self.field)
            splits = max(1, min(-(-text_bytes // self.part_bytes), MAX_SPLITS, found.num_rows))
            ends = [found.num_rows * i // splits for i in range(splits + 1)]
            for first, last in zip(ends, ends[1:]):
                if pieces and weight + text_bytes // splits > self.part_bytes:
                    yield self.part(pieces, share(pieces))
                    pieces, weight = [], 0
                pieces.append(Piece(source, rows=(group, first, last)))
                weight += text_bytes // splits
        if pieces:
            yield self.part(pieces, share(pieces))

    def compressed_parts(self, source, is_last_block):
        finished = 0
        while (last := is_last_block(self.part([Piece(source, block=(finished, False))], 0).name)) is not None:
            finished += 1
            if last:  # The file need not be unpacked.
                for number in range(finished):
                    yield self.part([Piece(source, block=(number, number == finished - 1))], source.size_bytes // finished)
                return
        number, first_line, position_before = 0, 0, 0
        for lines, position, last in blocks_of_lines(source, self.part_bytes):
            piece = Piece(source, lines=lines, first_line=first_line, block=(number, last))
            yield self.part([piece], position - position_before)
            number, first_line, position_before = number + 1, first_line + lines.count(b"\n"), position


def blocks_of_lines(source, block_bytes):
    """Yields (bytes of whole lines, about `block_bytes`; bytes of the file read so far; whether these are the last lines)."""
    held, held_bytes, position = [], 0, 0

    def on_position(new):
        nonlocal position
        position = new

    ready = None  # Held until it is known whether more follows.
    for block in read_blocks(source, min(block_bytes, BLOCK_BYTES), on_position):
        held.append(block)
        held_bytes += len(block)
        if held_bytes >= block_bytes and b"\n" in block:
            cut = block.rindex(b"\n") + 1
            held[-1] = block[:cut]
            if ready:
                yield *ready, False
            ready = b"".join(held), position
            held, held_bytes = [block[cut:]], len(block) - cut
        elif held_bytes > MAX_DOCUMENT_BYTES + block_bytes:
            raise too_long(source.path)
    if held_bytes and ready:
        yield *ready, False
        ready = None
    yield *(ready or (b"".join(held), position)), True
