"""The bytes of a file, plain or compressed, as blocks of bounded size."""

import gzip
import os
import zlib

from python_packages import sentence
from tokenizing.errors import DamagedFile, InputError

BLOCK_BYTES = 1 << 20
MAX_WINDOW_BYTES = 1 << 31  # Largest window of earlier text that a frame may refer to. `zstd --long=31` needs it.


def plain_blocks(file, _, block_bytes):
    while block := file.read(block_bytes):
        yield block


def gzip_blocks(file, path, block_bytes):
    if not os.fstat(file.fileno()).st_size:
        raise DamagedFile(f"{path}: is not an intact gzip file: it is empty")
    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            while block := unpacked.read(block_bytes):
                yield block
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedFile(f"{path}: is not an intact gzip file: {error}") from error


def frame_blocks(name, begin, input_bytes):
    """Returns a function that reads a format frame by frame. It refuses a file that ends within a frame or has other
    bytes after a frame, which the streams of Python's modules accept. begin(path) returns a function that makes a
    decoder, and the error that the decoder raises."""

    def blocks(file, path, block_bytes):
        decoder_of, broken = begin(path)
        decoder, seen = None, False
        try:
            while data := file.read(min(block_bytes, input_bytes)):
                while data or decoder:
                    if not decoder:
                        data = data.lstrip(b"\0") if seen else data  # Padding between frames.
                        if not data:
                            break
                        decoder, seen = decoder_of(), True
                    block = decoder.decompress(data, block_bytes) if hasattr(decoder, "needs_input") else decoder.decompress(data)
                    yield from (block[i : i + block_bytes] for i in range(0, len(block), block_bytes))
                    data = decoder.unused_data if decoder.eof else b""
                    if decoder.eof:
                        decoder = None
                    elif getattr(decoder, "needs_input", True):
                        break
        except broken as error:
            raise DamagedFile(f"{path}: is not an intact {name} file: {error}") from error
        if decoder or not seen:
            raise DamagedFile(f"{path}: is not an intact {name} file: it {'ends within a frame' if decoder else 'is empty'}")

    return blocks


def begin_bzip2(_):
    import bz2

    return bz2.BZ2Decompressor, OSError


def begin_xz(_):
    import lzma

    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, MAX_WINDOW_BYTES + (1 << 20)), lzma.LZMAError


def begin_zstd(path):
    try:
        import zstandard
    except ImportError as error:
        raise InputError(f"{path}: {sentence(['zstandard'])}") from error
    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj, zstandard.ZstdError


# The decoder of Zstandard returns all text of its input at once, so it gets little input.
zstd_blocks = frame_blocks("Zstandard", begin_zstd, 1 << 12)

# The formats that are unpacked. data/text/decoder.h has the same rows, and docs/data.md names them.
COMPRESSIONS = {
    ".gz": gzip_blocks,
    ".bz2": frame_blocks("bzip2", begin_bzip2, 1 << 16),
    ".xz": frame_blocks("xz", begin_xz, 1 << 16),
    ".zst": zstd_blocks,
    ".zstd": zstd_blocks,
}


def read_blocks(source, block_bytes=BLOCK_BYTES, on_position=None):
    """Yields the unpacked blocks of a file. Calls on_position(bytes of the file that were read) before each block."""
    try:
        with open(source.path, "rb") as file:
            for block in COMPRESSIONS.get(source.compression, plain_blocks)(file, source.path, block_bytes):
                if on_position:
                    on_position(file.tell())
                yield block
    except OSError as error:
        raise InputError(f"{source.path}: cannot be read: {error.strerror or error}") from error
