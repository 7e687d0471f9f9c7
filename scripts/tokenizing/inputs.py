"""Selects the files of the inputs, their order, and the files of folders that are left out."""

import collections
import dataclasses
import glob
import os

from tokenizing.blocks import COMPRESSIONS, read_blocks
from tokenizing.errors import InputError

OTHER_COMPRESSIONS = {".bz2", ".xz", ".lz4", ".zip"}  # Compressions that are not read, but are part of the name of a kind.
SNIFFED_BYTES = 1 << 13


@dataclasses.dataclass(frozen=True)
class Source:
    """A file to read documents from."""

    path: str
    kind: str  # "text" is one document, "jsonl" one per line, "parquet" one per row.
    compression: str  # Key of COMPRESSIONS, or empty.
    named: bool  # Whether the user gave this file. If such a file is not text, it is refused instead of left out.
    size_bytes: int
    mtime_ns: int


class Sources:
    """Counts the files of the inputs that are taken or left out, and their bad documents."""

    def __init__(self, skip_bad=0):
        self.taken = 0
        self.left_out = collections.Counter()  # Number of files left out, by kind.
        self.skip_bad = skip_bad
        self.skipped = []  # One sentence for each bad document.

    def skip(self, *sentences):
        """Adds skipped bad documents. Raises an InputError with the first one above the limit."""
        for sentence in sentences:
            if len(self.skipped) >= self.skip_bad:
                raise InputError(f"{sentence}; --skip-bad {self.skip_bad} does not skip more" if self.skip_bad else sentence)
            self.skipped.append(sentence)

    def num_left_out(self):
        return sum(self.left_out.values())

    def add(self, taken, left_out):
        self.taken += taken
        self.left_out.update(left_out)

    def describe_left_out(self):
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.left_out.most_common())
        return f"skipped {self.num_left_out()} files: {kinds}"

    def check(self, taken, allow_skipped):
        if self.num_left_out() > taken and not allow_skipped:
            raise InputError(f"{self.describe_left_out()}, which is more than the {taken} read; --allow-skipped reads these nevertheless")


def suffixes(path):
    """Returns (".jsonl", ".gz") for "a.JSONL.gz". The second is empty if the file is not compressed."""
    stem, suffix = os.path.splitext(os.path.basename(path))
    if suffix.lower() not in COMPRESSIONS.keys() | OTHER_COMPRESSIONS:
        return suffix.lower(), ""
    return os.path.splitext(stem)[1].lower(), suffix.lower()


def kind_of(path):
    """Returns the kind, such as ".png", under which a file that is left out is counted."""
    return "".join(suffixes(path)) or "without a suffix"


def make_source(path, named):
    inner, compression = suffixes(path)
    kind = {".jsonl": "jsonl", ".parquet": "parquet"}.get(inner, "text")
    if compression and (compression not in COMPRESSIONS or kind == "parquet"):
        if named and kind == "parquet":
            raise InputError(f"{path}: a compressed Parquet file is not read; decompress it")
        kind, compression = "text", ""
    status = os.stat(path)
    return Source(path, kind, compression, named, status.st_size, status.st_mtime_ns)


def walk(folder, sources, is_ours):
    def unreadable(_):
        sources.left_out["unreadable directory"] += 1

    found = [os.path.join(root, name) for root, _, names in os.walk(folder, onerror=unreadable) for name in names]
    for path in sorted(found, key=os.fsencode):
        if is_ours(path):
            continue
        if os.path.islink(path):
            sources.left_out["symbolic link"] += 1
        elif os.path.isfile(path):
            yield path
        else:
            sources.left_out["special file"] += 1


def list_files(paths, sources, is_ours=lambda path: False):
    """Yields (path, named) of every regular file of the inputs. `is_ours` recognizes the output of this run, which a folder may
    contain."""
    for given in paths:
        found = [given]
        if not os.path.exists(given) and glob.has_magic(given):
            found = sorted(glob.glob(given, recursive=True), key=os.fsencode)
            if not found:
                raise InputError(f"{given}: no file matches the pattern")
        for path in found:
            if os.path.isdir(path):
                yield from ((name, False) for name in walk(path, sources, is_ours))
            elif os.path.isfile(path):
                yield path, True
            else:
                raise InputError(f"{path}: no such file or directory")


def find_sources(paths, sources, is_ours=lambda path: False):
    """Returns the files to read, in order. Reads the beginning of each file in a folder, so that a folder of pictures is
    recognized before anything is tokenized. If later bytes of a file turn out not to be text, the reader leaves the file out."""
    taken = []
    for path, named in list_files(paths, sources, is_ours):
        try:
            source = make_source(path, named)
            with open(path, "rb") as file:
                file.read(1)
        except OSError as error:
            if named:
                raise InputError(f"{path}: cannot be read: {error.strerror}") from error
            sources.left_out["unreadable"] += 1
            continue
        if source.kind == "text" and not named and b"\0" in next(read_blocks(source, SNIFFED_BYTES), b""):
            sources.left_out[kind_of(path)] += 1
        else:
            taken.append(source)
            sources.taken += source.kind != "text"  # A text file is counted when it is read, because it may turn out to be binary.
    return taken
