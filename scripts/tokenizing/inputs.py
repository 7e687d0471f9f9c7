"""Selects the files of the inputs, their order, and the files that are left out. docs/data.md states the rules, data/text/text_file.cpp and
core/files/file_tree.cpp have the same ones for `octavo pack`, and tests/data/text/inputs.json has the cases that both must agree on."""

import collections
import dataclasses
import functools
import glob
import hashlib
import os
import stat

from tokenizing.blocks import COMPRESSIONS, read_blocks
from tokenizing.documents import first_line_fault
from tokenizing.errors import DamagedFile, InputError

# Kinds of files by suffix. All others are text.
KINDS = {".jsonl": "jsonl", ".jsonlines": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}
UNREAD_COMPRESSIONS = {".7z", ".br", ".lz4", ".lzma", ".rar", ".z", ".zip"}
VERSION_CONTROL = {".bzr", ".git", ".hg", ".jj", ".svn"}  # These hold old versions, the addresses of people, and passwords of remotes.
KERNEL_FOLDERS = ("/proc", "/sys", "/sys/fs/cgroup", "/sys/kernel/debug", "/sys/kernel/tracing")
SNIFFED_BYTES = 1 << 13


@dataclasses.dataclass(frozen=True)
class Source:
    """A file to read documents from."""

    path: str
    kind: str  # "text" is one document, "jsonl" and "json" are one per line, "parquet" is one per row.
    compression: str  # Key of COMPRESSIONS, or empty.
    label: str  # Kind, such as ".txt", under which the file is counted if it is left out.
    named: bool  # Whether the user gave this file. If such a file is not text, it is refused instead of left out.
    size_bytes: int
    mtime_ns: int


class Sources:
    """Counts the files of the inputs that are taken or left out, and their bad documents."""

    def __init__(self, skip_bad=0):
        self.taken = 0
        self.left_out = collections.Counter()  # Number of files left out, by kind.
        self.version_control = collections.Counter()  # Number of files and folders of version control left out, by name.
        self.repeated = []  # Files with the content of a file that is taken.
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

    def describe_rest(self):
        """Returns sentences on what is left out on purpose, which does not mean that the inputs are of the wrong kind."""
        if self.version_control:
            yield f"skipped version control: {', '.join(f'{count} {name}' for name, count in sorted(self.version_control.items()))}"
        if self.repeated:
            yield f"read once: {len(self.repeated)} have the content of a file that was taken already, such as {self.repeated[0]}"

    def check(self, taken, allow_skipped):
        if self.num_left_out() > taken and not allow_skipped:
            raise InputError(f"{self.describe_left_out()}, which is more than the {taken} read; --allow-skipped reads these nevertheless")


def suffixes(path):
    """Returns (".jsonl", ".gz") for "a.JSONL.gz". The second is empty if the file is not compressed."""
    stem, suffix = os.path.splitext(os.path.basename(path))
    if suffix.lower() not in COMPRESSIONS.keys() | UNREAD_COMPRESSIONS:
        return suffix.lower(), ""
    return os.path.splitext(stem)[1].lower(), suffix.lower()


def has_known_suffix(path):
    inner, compression = suffixes(path)
    return bool(compression or inner in KINDS)


def unread_fault(path):
    """Returns why a file of that name is not read, or None."""
    inner, compression = suffixes(path)
    if compression in UNREAD_COMPRESSIONS:
        return f"files of the kind {compression} are not read; decompress it"
    if compression and KINDS.get(inner) == "parquet":
        return "a compressed Parquet file is not read; decompress it"
    return None


def make_source(path, named):
    inner, compression = suffixes(path)
    status = os.stat(path)
    label = inner + compression or "without a suffix"
    return Source(path, KINDS.get(inner, "text"), compression, label, named, status.st_size, status.st_mtime_ns)


def place_of(path):
    """Returns the identity of a file on disk, whatever its names are."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


@functools.cache
def kernel_devices():
    """Returns the devices of file systems in which the kernel shows its state as files, which have no end or no text."""
    found = {os.stat(folder).st_dev for folder in KERNEL_FOLDERS if os.path.isdir(folder)}
    return found - {os.stat("/").st_dev}


class Walk:
    """Lists the regular files of a folder. Links are followed. Each folder is listed once, under its own path rather than that of a link,
    so that cycles of links end."""

    def __init__(self, sources):
        self.sources = sources
        self.files, self.folders, self.links, self.listed = [], [], [], set()

    def list(self, folder):
        self.folders.append(folder)
        self.list_folders()
        while self.links:
            links, self.links = sorted(self.links, key=os.fsencode), []
            for link in links:  # Their order decides under which of them a folder is listed.
                self.add(link)
                self.list_folders()
        return sorted(self.files, key=os.fsencode)

    def list_folders(self):
        while self.folders:
            folder = self.folders.pop()
            try:
                place = place_of(folder)
                if place[0] in kernel_devices():
                    self.sources.left_out["folder of the kernel"] += 1
                elif place not in self.listed:
                    self.listed.add(place)
                    self.list_folder(folder)
            except OSError:
                self.sources.left_out["unreadable directory"] += 1

    def list_folder(self, folder):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in VERSION_CONTROL:
                    self.sources.version_control[entry.name] += 1
                elif entry.is_symlink():
                    self.links.append(entry.path)
                else:
                    self.add(entry.path)

    def add(self, path):
        """Adds what is at the path, or what a link there leads to."""
        try:
            status = os.stat(path)
        except OSError:
            self.sources.left_out["broken link"] += 1
            return
        if stat.S_ISDIR(status.st_mode):
            self.folders.append(path)
        elif stat.S_ISREG(status.st_mode) and status.st_dev not in kernel_devices():
            self.files.append(path)
        else:
            self.sources.left_out["special file"] += 1


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
            if os.path.exists(path) and place_of(path)[0] in kernel_devices():
                raise InputError(f"{path}: shows the state of the kernel, expected a file or folder of text")
            if os.path.isdir(path):
                yield from ((name, False) for name in Walk(sources).list(path) if not is_ours(name))
            elif os.path.isfile(path):
                yield path, True
            else:
                raise InputError(f"{path}: no such file or directory")


def one_name_each(files, sources):
    """Returns the (path, named) of `files`, one for each file on disk. Of several names of a file the first with a known suffix is taken,
    because in a cache of the Hugging Face hub only the links have suffixes."""
    chosen, was_named = {}, set()
    places = [place_of(path) for path, _ in files]
    for number, (place, (path, named)) in enumerate(zip(places, files)):
        if named:
            was_named.add(place)
        if place not in chosen or (has_known_suffix(path) and not has_known_suffix(files[chosen[place]][0])):
            chosen[place] = number
    sources.repeated += [path for number, (path, _) in enumerate(files) if chosen[places[number]] != number]
    return [(files[number][0], places[number] in was_named) for number in sorted(chosen.values())]


def content_of(source):
    """Returns a value that is equal for sources with equal bytes after unpacking."""
    digest = hashlib.sha256()
    try:
        for block in read_blocks(source):
            digest.update(block)
    except InputError:  # The error is reported when the documents are read.
        return source.path
    return digest.digest()


def without_repeated_contents(taken, sources):
    """Returns `taken` with only the first of the versions of a file (plain, .gz, ...) that have equal contents."""
    versions = collections.defaultdict(list)
    for source in taken:
        folder, name = os.path.split(source.path)
        versions[os.path.realpath(folder), name[: len(name) - len(source.compression)]].append(source)
    repeated = set()
    for found in versions.values():
        contents = set()
        for source in found if len(found) > 1 else ():
            content = content_of(source)
            if content in contents:
                repeated.add(source.path)
            contents.add(content)
    sources.repeated += sorted(repeated)
    return [source for source in taken if source.path not in repeated]


def left_out_as(source, fields):
    """Returns the kind under which a file of text or JSON is left out, or None if it is read. Raises an InputError if the user gave it."""
    if source.kind == "json" and (fault := first_line_fault(source, fields)):
        if source.named:
            raise InputError(f"{fault}; a .json file must be JSON lines, which have one object with the text per line")
        return f"{source.label} that is not JSON lines"
    if source.kind != "text" or source.named:
        return None
    try:
        return source.label if b"\0" in next(read_blocks(source, SNIFFED_BYTES), b"") else None
    except DamagedFile:
        return f"damaged {source.label}"


def find_sources(paths, sources, is_ours=lambda path: False, fields=("text",)):
    """Returns the files to read, in order. Reads the beginning of each file in a folder, so that a folder of pictures is
    recognized before anything is tokenized. If later bytes of a file turn out not to be text, the reader leaves the file out."""
    taken = []
    for path, named in one_name_each(list(list_files(paths, sources, is_ours)), sources):
        try:
            source = make_source(path, named)
            with open(path, "rb") as file:
                file.read(1)
        except OSError as error:
            if named:
                raise InputError(f"{path}: cannot be read: {error.strerror}") from error
            sources.left_out["unreadable"] += 1
            continue
        if fault := unread_fault(path):
            if named:
                raise InputError(f"{path}: {fault}")
            sources.left_out[source.label] += 1
        elif label := left_out_as(source, fields):
            sources.left_out[label] += 1
        else:
            taken.append(source)
    taken = without_repeated_contents(taken, sources)
    sources.taken += sum(source.kind != "text" for source in taken)  # A text file is counted when it is read, because it may turn out to be binary.
    return taken
