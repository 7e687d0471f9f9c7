"""The documents of a file, of a range of its bytes or rows, or of a block of its lines. Memory does not grow with the file,
except for a text file, which is one document."""

import codecs
import contextlib
import json
import math

from python_packages import sentence
from tokenizing.blocks import BLOCK_BYTES, read_blocks
from tokenizing.errors import DamagedFile, InputError

MAX_DOCUMENT_BYTES = 1 << 30
PARQUET_ROWS = 256  # Rows that are decoded at once.


class NoText(ValueError):
    """Reports why a text, or a line that contains one, cannot be encoded."""


def decode(data):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NoText(f"is invalid UTF-8: it has the byte 0x{data[error.start]:02x} at position {error.start}") from error


def too_long(where):
    return InputError(f"{where}: a document of more than {MAX_DOCUMENT_BYTES >> 30} GiB, which is too large for a tokenizer; "
                      "divide it (a text file is one document, and JSON lines have one per line)")


def read_text(source, sources):
    data = bytearray()
    try:
        for block in read_blocks(source):
            data += block
            if b"\0" in block:
                break
            if len(data) > MAX_DOCUMENT_BYTES:
                raise too_long(source.path)
    except DamagedFile:
        if source.named:
            raise
        sources.left_out[f"damaged {source.label}"] += 1
        return
    kind = source.label
    try:
        if b"\0" in data:
            raise NoText("is not text: it has a NUL byte")
        kind = f"{kind} not in UTF-8"
        text = decode(bytes(data))
    except NoText as error:
        if source.named:
            sources.skip(f"{source.path}: {error}")
        else:
            sources.left_out[kind] += 1
        return
    sources.taken += 1
    yield text


def split_lines(blocks, where):
    """Yields the lines of a file without their line ends. A block may end in the middle of a line."""
    held = []  # Beginning of an incomplete line.
    held_bytes = 0
    for block in blocks:
        *lines, rest = block.split(b"\n")
        for line in lines:
            yield b"".join([*held, line]) if held else line
            held, held_bytes = [], 0
        if rest:
            held.append(rest)
            held_bytes += len(rest)
            if held_bytes > MAX_DOCUMENT_BYTES:
                raise too_long(where)
    if held:
        yield b"".join(held)


def range_blocks(source, first, last):
    """Yields the lines of a plain file that begin in the bytes [first, last), as blocks."""
    try:
        with open(source.path, "rb") as file:
            if first:
                file.seek(first - 1)
                while (piece := file.readline(BLOCK_BYTES)) and not piece.endswith(b"\n"):
                    pass  # The end of a line that began earlier.
            left, block = last - file.tell(), b"\n"
            while left > 0 and (block := file.read(min(BLOCK_BYTES, left))):
                left -= len(block)
                yield block
            while left == 0 and not block.endswith(b"\n") and (block := file.readline(BLOCK_BYTES)):
                yield block
    except OSError as error:
        raise InputError(f"{source.path}: cannot be read: {error.strerror or error}") from error


def count_lines(source, last):
    """Returns the number of lines that begin before byte `last` of a plain file."""
    return sum(block.count(b"\n") for block in range_blocks(source, 0, last))


def parse_number(text):
    number = float(text)
    if not math.isfinite(number):  # NaN, Infinity, or too large.
        raise NoText(f"has {text:.20}, which is not a finite 64-bit floating-point number")
    return number


# Refuses the numbers that `octavo pack` refuses. Only strings of a line are used, so an integer may become a floating-point number.
DECODER = json.JSONDecoder(parse_float=parse_number, parse_int=parse_number, parse_constant=parse_number)


def parse_json(line):
    if line.startswith(codecs.BOM_UTF8):
        raise NoText("begins with a byte order mark (the bytes ef bb bf)")
    try:
        return DECODER.decode(decode(line))
    except json.JSONDecodeError as error:
        raise NoText(f"is not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise NoText("has lists or objects that are nested too deep to be read") from error


def named(fields):
    return " or ".join(f'"{field}"' for field in fields)


def parse_line(line, fields):
    """Returns the document of a JSON line: the text in the first of `fields` that the line has. Returns None for a
    blank line (spaces and tabs only). Raises NoText if there is no text."""
    if not line.strip(b" \t\r"):
        return None
    found = parse_json(line)
    text = next((found[field] for field in fields if found.get(field) is not None), None) if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise NoText("has none")
    try:
        if not text.isascii():
            text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise NoText(f"has half of a surrogate pair, \\u{ord(text[error.start]):04x}, which is not a character") from error
    return text


def read_lines(blocks, source, fields, sources, lines_before):
    """Yields documents. lines_before() returns the number of lines of the file before these blocks. The function calls
    lines_before() only to name a bad line."""
    for number, line in enumerate(split_lines(blocks, source.path), 1):
        try:
            text = parse_line(line, fields)
        except NoText as error:
            sources.skip(f'{source.path}:{lines_before() + number}: expected a JSON object with a string in the field '
                         f'{named(fields)}, but the line {error}')
            continue
        if text is not None:
            yield text


def first_line_fault(source, fields):
    """Returns why the first line that is not blank is no document. Returns None if it is one, or if there is none."""
    for number, line in enumerate(split_lines(read_blocks(source), source.path), 1):
        try:
            if parse_line(line, fields) is not None:
                return None
        except NoText as error:
            return f'{source.path}:{number}: expected a JSON object with a string in the field {named(fields)}, but the line {error}'
    return None


@contextlib.contextmanager
def open_parquet(source, fields):
    """Opens a file in a `with` block, and gives the file and its text column: the first of `fields` that it has."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{source.path}: {sentence(['pyarrow'])}") from error
    try:
        file = pyarrow.parquet.ParquetFile(source.path, buffer_size=BLOCK_BYTES, pre_buffer=False)
        columns = {column.name: column.type for column in file.schema_arrow}
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{source.path}: is not an intact Parquet file: {one_line(error)}") from error
    field = next((field for field in fields if field in columns), None)
    if field is None:
        raise InputError(f'{source.path}: has no column {named(fields)}, only {", ".join(sorted(columns))}; --text-field names another')
    found = columns[field]
    if pyarrow.types.is_dictionary(found):
        found = found.value_type
    if not (pyarrow.types.is_string(found) or pyarrow.types.is_large_string(found)):
        raise InputError(f'{source.path}: the column "{field}" holds {found}, expected strings')
    with file:
        yield file, field


def one_line(error):
    return " ".join(str(error).split())


def column_texts(column):
    """Returns the strings of a column, as bytes if one of them is not UTF-8."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        import pyarrow

        plain = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
        return plain.cast(pyarrow.large_binary()).to_pylist()


def checked_row(value, field, sources, where):
    """Returns the text of a row, or None for a bad one that is skipped."""
    if value is None:
        sources.skip(f'{where()} has null in the column "{field}"')
    try:
        return decode(value) if isinstance(value, bytes) else value
    except NoText as error:
        sources.skip(f'{where()}, column "{field}", {error}')
        return None


def read_row_group(file, source, field, sources, row_group, first, last):
    """Yields the rows [first, last) of a row group. Earlier rows are decoded too, which costs little compared with tokenizing."""
    import pyarrow

    def before():
        return sum(file.metadata.row_group(i).num_rows for i in range(row_group))

    begin = 0
    try:
        for batch in file.iter_batches(PARQUET_ROWS, row_groups=[row_group], columns=[field], use_threads=False):
            end = begin + batch.num_rows
            if end > first:
                for row, value in enumerate(column_texts(batch.column(0)), begin):
                    if first <= row < last:
                        text = checked_row(value, field, sources, lambda row=row: f"{source.path}: row {before() + row + 1}")
                        if text is not None:
                            yield text
            begin = end
            if begin >= last:
                return
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{source.path}: is not an intact Parquet file: {one_line(error)}") from error


def read_parquet(source, fields, sources):
    with open_parquet(source, fields) as (file, field):
        for row_group in range(file.num_row_groups):
            yield from read_row_group(file, source, field, sources, row_group, 0, file.metadata.row_group(row_group).num_rows)


def read_piece(piece, fields, sources):
    """Yields the documents of a plan.Piece, in order."""
    source = piece.source
    if source.kind == "text":
        yield from read_text(source, sources)
    elif source.kind == "parquet" and piece.rows:
        with open_parquet(source, fields) as (file, field):
            yield from read_row_group(file, source, field, sources, *piece.rows)
    elif source.kind == "parquet":
        yield from read_parquet(source, fields, sources)
    elif piece.lines is not None:
        yield from read_lines([piece.lines], source, fields, sources, lambda: piece.first_line)
    elif piece.bytes:
        yield from read_lines(range_blocks(source, *piece.bytes), source, fields, sources, lambda: count_lines(source, piece.bytes[0]))
    else:
        yield from read_lines(read_blocks(source), source, fields, sources, lambda: 0)
