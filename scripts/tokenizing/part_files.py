"""Files in PREFIX.parts: the tokens of each finished part, and a journal of the inputs and options that made them.

The file of a part contains its tokens, the lengths of its documents in tokens (int32), its summary (JSON) and the length of the summary (8
bytes). The file gets its final name when it is complete and on disk. The name is a hash of everything that determines its bytes. So a
file with that name is finished and correct, whatever happened before.
"""

import array
import contextlib
import fcntl
import json
import os
import shutil
import struct

from tokenizing.errors import InputError, RunError

TRAILER = struct.Struct("<Q")
JOURNAL, LOCK, TOKENIZER = "journal.json", "lock", "tokenizer.json"


def fsync_folder(folder):
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path, text):
    """Writes a file under a temporary name and renames it when it has all of `text`."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


class PartWriter:
    """A context that removes the file unless it is finished."""

    def __init__(self, folder, name, typecode):
        self.path = os.path.join(folder, name)
        self.temporary = f"{self.path}.{os.getpid()}.tmp"
        self.lengths = array.array("i")
        self.tokens = 0
        self.typecode = typecode
        self.file = open(self.temporary, "wb")

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        if self.temporary:
            try:
                self.file.close()
            except OSError:
                pass  # close() fails on a full disk. The error that led here is reported instead.
            os.unlink(self.temporary)
        if isinstance(error, OSError):
            raise RunError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def add_document(self, tokens):
        tokens.tofile(self.file)
        self.lengths.append(len(tokens))
        self.tokens += len(tokens)

    def finish(self, summary):
        summary = summary | {"documents": len(self.lengths), "tokens": self.tokens, "typecode": self.typecode}
        packed = json.dumps(summary).encode()
        self.lengths.tofile(self.file)
        self.file.write(packed + TRAILER.pack(len(packed)))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.temporary, self.path)
        self.temporary = None
        return summary


class PartFile:
    """A finished part."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - TRAILER.size, 0))
            trailer = file.read()
            length = TRAILER.unpack(trailer)[0] if len(trailer) == TRAILER.size else size
            if length > size - TRAILER.size:
                raise self.broken()
            file.seek(size - TRAILER.size - length)
            try:
                self.summary = json.loads(file.read(length))
            except ValueError:
                raise self.broken() from None
        self.token_bytes = self.summary["tokens"] * array.array(self.summary["typecode"]).itemsize
        if size != self.token_bytes + 4 * self.summary["documents"] + length + TRAILER.size:
            raise self.broken()

    def broken(self):
        return RunError(f"{self.path}: is not a complete part; delete it and start again")

    def lengths(self):
        lengths = array.array("i")
        with open(self.path, "rb") as file:
            file.seek(self.token_bytes)
            lengths.fromfile(file, self.summary["documents"])
        return lengths

    def documents(self):
        """Yields the tokens of each document as bytes."""
        size = array.array(self.summary["typecode"]).itemsize
        lengths = self.lengths()
        with open(self.path, "rb", buffering=1 << 20) as file:
            for length in lengths:
                yield file.read(length * size)


def difference(old, new):
    """Returns a few words on how the journal of an earlier run differs from that of this run."""
    for name in new:
        if name != "inputs" and old.get(name) != new[name]:
            return f"another {name.replace('_', ' ')} ({old.get(name)}, now {new[name]})"
    before, now = {entry[0]: entry for entry in old.get("inputs", [])}, {entry[0]: entry for entry in new["inputs"]}
    for path in now.keys() | before.keys():
        if before.get(path) != now.get(path):
            return f"other inputs ({path} {'is new' if path not in before else 'is gone' if path not in now else 'has changed'})"
    return "inputs in another order"


class PartsFolder:
    """The folder PREFIX.parts, locked by this process."""

    def __init__(self, path):
        self.path = path
        self.lock = None

    def file(self, name):
        return os.path.join(self.path, name)

    def open(self, journal, overwrite):
        """Locks the folder. Returns whether an earlier run with an equal `journal` (inputs and options) can be resumed. If the earlier
        run had another journal, raises an InputError, or with `overwrite` starts again and reuses the parts that match."""
        os.makedirs(self.path, exist_ok=True)
        self.lock = open(self.file(LOCK), "w", encoding="utf-8")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{self.path}: another process is writing there") from None
        except OSError:
            pass  # A file system without locks is accepted.
        old = self.read_journal()
        if old is not None and old != journal and not overwrite:
            raise InputError(f"{self.path}: was started with {difference(old, journal)}; --overwrite starts again with this command")
        for name in os.listdir(self.path):
            if name.endswith(".tmp") or (name == TOKENIZER and old != journal):  # Files of parts stay, because their names say which inputs and options they belong to.
                os.unlink(self.file(name))
        if old != journal:
            write_whole(self.file(JOURNAL), json.dumps(journal) + "\n")
        return old == journal

    def read_journal(self):
        try:
            with open(self.file(JOURNAL), encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InputError(f"{self.file(JOURNAL)}: is not a journal; delete the folder to start again") from error

    def forget_journal(self):
        """Lets a run with any inputs and options continue here. It reuses the parts whose names say that they are valid."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file(JOURNAL))

    def finished(self, name):
        """Returns the part of that name, or None."""
        try:
            return PartFile(self.file(name))
        except FileNotFoundError:
            return None

    def keep_finished(self):
        """Called after a failure. Keeps the folder if it has finished parts. Returns whether it does."""
        if any(name == TOKENIZER or ("." not in name and name != LOCK) for name in os.listdir(self.path)):
            return True
        self.remove()
        return False

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)
