"""The bytes of a file, plain or compressed, as blocks of bounded size."""

import gzip
import zlib

from python_packages import sentence
from tokenizing.errors import InputError

BLOCK_BYTES = 1 << 20


def plain_blocks(file, _, block_bytes):
    while block := file.read(block_bytes):
        yield block


def gzip_blocks(file, path, block_bytes):
    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            while block := unpacked.read(block_bytes):
                yield block
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: is not an intact gzip file: {error}") from error


def zstd_blocks(file, path, block_bytes):
    """Reads frame by frame, because the package's own stream accepts a file that ends within a frame."""
    try:
        import zstandard
    except ImportError as error:
        raise InputError(f"{path}: {sentence(['zstandard'])}") from error
    frame = None
    try:
        while data := file.read(min(block_bytes, 1 << 16)):
            while data:
                frame = frame or zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
                block = frame.decompress(data)
                yield from (block[i : i + block_bytes] for i in range(0, len(block), block_bytes))
                data = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise InputError(f"{path}: is not an intact Zstandard file: {error}") from error
    if frame is not None:
        raise InputError(f"{path}: is not an intact Zstandard file: it ends within a frame")


COMPRESSIONS = {".gz": gzip_blocks, ".zst": zstd_blocks}


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
