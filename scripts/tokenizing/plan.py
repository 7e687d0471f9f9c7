"""Divides the inputs into parts. The division does not depend on the number of workers.

A part is a group of small files, a byte range of a large .jsonl file, or a row range of a large .parquet file. A large compressed .jsonl
file cannot be read from the middle. The main process unpacks it, which takes little time compared with tokenizing, and passes blocks of
lines to the workers.

With --part I/N the parts are dealt to N runs in turn, so that each run has documents from all over the inputs and none needs to know what
the others do. Large compressed files are dealt whole, because a run would have to unpack all of them to have some blocks of each. If there
are fewer such files than runs, several runs unpack a file and deal its blocks.
"""

import dataclasses
import hashlib
import itertools
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
    lines: bytes = None  # Unpacked lines of a compressed file, so that the worker need not read the file.
    first_line: int = 0  # Number of lines in the file before `lines`.
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
    """Makes the parts of `sources` in order. `key` is everything else that determines the tokens of a part. `share` (i, n) selects the
    parts of run i, from 0, of n runs."""

    def __init__(self, sources, fields, part_bytes, key, share=(0, 1)):
        self.sources, self.fields, self.part_bytes, self.key, self.share = sources, fields, part_bytes, key, share
        self.texts_of_others = 0  # Number of text files in the parts of other runs.

    def part(self, pieces, input_bytes):
        identity = [self.key, self.fields, self.part_bytes]
        for piece in pieces:
            source = dataclasses.astuple(dataclasses.replace(piece.source, path=os.path.abspath(piece.source.path)))
            identity.append([source, piece.bytes, piece.rows, piece.block and piece.block[0]])
        return Part(hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32], pieces, input_bytes)

    def weight(self, source):
        return source.size_bytes * (EXPANSION if source.compression else 1)

    def is_small(self, source):
        return source.kind == "text" or self.weight(source) <= self.part_bytes

    def parts(self, is_last_block=lambda name: None):
        """Yields the parts of this run in order. is_last_block(name) says for a finished part of a compressed file whether the file ends
        with it, and returns None for other parts."""
        dealt = self.texts_of_others = 0
        index, count = self.share

        def deal(parts):
            nonlocal dealt
            for part in parts:
                if dealt % count == index:
                    yield part
                else:
                    self.texts_of_others += sum(piece.source.kind == "text" for piece in part.pieces)
                dealt += 1

        def is_packed(source):
            return source.compression and not self.is_small(source)

        packed, files = itertools.count(), len(list(filter(is_packed, self.sources)))
        for are_small, sources in itertools.groupby(self.sources, self.is_small):
            if are_small:
                yield from deal(self.grouped_parts(sources))
                continue
            for source in sources:
                if is_packed(source):
                    yield from self.compressed_parts(source, is_last_block, *self.turn(next(packed), files))
                else:
                    yield from deal(self.parquet_parts(source) if source.kind == "parquet" else self.range_parts(source))

    def turn(self, number, files):
        """Returns (t, n) if this run has every n-th block of compressed file `number` of `files`, from block t on. n is 0 if it has none."""
        index, count = self.share
        if files >= count:
            return 0, int(number % count == index)
        return index // files, len(range(number, count, files)) if index % files == number else 0

    def grouped_parts(self, sources):
        def group():
            return self.part(pieces, sum(piece.source.size_bytes for piece in pieces))

        pieces, weight = [], 0
        for source in sources:
            if pieces and weight + self.weight(source) > self.part_bytes:
                yield group()
                pieces, weight = [], 0
            pieces.append(Piece(source))
            weight += self.weight(source)
        yield group()

    def range_parts(self, source):
        count = -(-source.size_bytes // self.part_bytes)
        ends = [source.size_bytes * i // count for i in range(count + 1)]
        for first, last in zip(ends, ends[1:]):
            yield self.part([Piece(source, bytes=(first, last))], last - first)

    def parquet_parts(self, source):
        pieces, weight = [], 0
        with open_parquet(source, self.fields) as (file, field):
            metadata = file.metadata
        all_rows = max(metadata.num_rows, 1)
        share = lambda pieces: source.size_bytes * sum(piece.rows[2] - piece.rows[1] for piece in pieces) // all_rows
        for group in range(metadata.num_row_groups):
            found = metadata.row_group(group)
            columns = [found.column(i) for i in range(found.num_columns)]
            text_bytes = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] == field)
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

    def compressed_parts(self, source, is_last_block, turn, turns):
        if not turns:
            return
        finished = turn
        while (last := is_last_block(self.part([Piece(source, block=(finished, False))], 0).name)) is not None:
            if last:  # All blocks of this run are finished, so the file need not be unpacked.
                for number in range(turn, finished + 1, turns):
                    yield self.part([Piece(source, block=(number, number == finished))], source.size_bytes // (finished + 1))
                return
            finished += turns
        first_line = position_before = 0
        for number, (lines, position, last) in enumerate(blocks_of_lines(source, self.part_bytes)):
            if number % turns == turn:
                piece = Piece(source, lines=lines, first_line=first_line, block=(number, last))
                yield self.part([piece], position - position_before)
            first_line, position_before = first_line + lines.count(b"\n"), position


def blocks_of_lines(source, block_bytes):
    """Yields (bytes of whole lines, about `block_bytes`; bytes of the file read so far; whether these are the last lines)."""
    held, held_bytes, position = [], 0, 0

    def on_position(new):
        nonlocal position
        position = new

    ready = None  # Newest complete block, held back until it is known whether more lines follow.
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
