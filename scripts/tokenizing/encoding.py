"""A tokenizer.json, and a process of the pool that encodes parts with it."""

import array
import hashlib
import os
import re
import signal
import threading

from python_packages import sentence
from tokenizing.documents import one_line, read_piece
from tokenizing.errors import InputError
from tokenizing.inputs import Sources
from tokenizing.part_files import PartWriter
from tokenizing.tokenizer_files import FilesBeside, SpecialTokens, identify, parse_tokenizer

BATCH_BYTES = 1 << 20  # Bytes of text that are encoded at once.

_worker = None  # Worker of the current process.


def import_tokenizers():
    try:
        import tokenizers
    except ImportError as error:
        raise InputError(sentence(["tokenizers"])) from error
    return tokenizers


def load_tokenizer(path):
    """Returns the tokenizer, and the bytes of its file."""
    tokenizers = import_tokenizers()
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # The package raises Exception itself, not a subclass.
        raise InputError(f"{path}: is not a Hugging Face tokenizer.json: {one_line(error)}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, content


def file_hash(content):
    return hashlib.sha256(content).hexdigest()


def describe(tokenizer, content, path, special):
    """Returns the tokenizer's part of PREFIX.json. Added tokens may leave gaps in the ids, so the largest id determines the
    vocabulary."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    return {
        "tokenizer": str(path),
        "tokenizer_hash": identify(parse_tokenizer(content, path), path),
        "vocab_size": max(max(tokenizer.get_vocab().values(), default=0) + 1, size),
        "bos": special["bos"].id,
        "eos": special["eos"].id,
    }


def find_special_tokens(content, path, given):
    """Returns the Token of bos and of eos. `given` has the values of --bos and --eos, or None."""
    tokens = SpecialTokens(parse_tokenizer(content, path), FilesBeside(path))
    return {kind: tokens.find(kind) if given[kind] is None else tokens.given(kind, given[kind]) for kind in ("bos", "eos")}


def batches(documents):
    """Yields lists of non-empty documents of about BATCH_BYTES together."""
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


def special_texts(tokenizer):
    """Returns a pattern that finds the tokenizer's special tokens in text, or None if it has none."""
    names = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special and token.content]
    return re.compile("|".join(map(re.escape, sorted(names, reverse=True)))) if names else None


class Encoder:
    """Encodes documents. Names of special tokens in them are text, unless `parse_special_tokens` is set."""

    def __init__(self, tokenizer_path, parse_special_tokens):
        self.path = tokenizer_path
        self.tokenizer, _ = load_tokenizer(tokenizer_path)
        self.special_texts = special_texts(self.tokenizer)
        self.documents_with_special_text = 0
        if not parse_special_tokens:
            if not hasattr(self.tokenizer, "encode_special_tokens"):
                raise InputError("this version of the Python package `tokenizers` cannot encode <|end_of_text|> as text: run "
                                 "python3 -m pip install --upgrade tokenizers, or give --parse-special-tokens")
            self.tokenizer.encode_special_tokens = True
        # encode_batch_fast omits the offsets of tokens in the text, which nobody needs.
        self.encode_batch = getattr(self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch)

    def encode(self, texts):
        if self.special_texts:
            self.documents_with_special_text += sum(self.special_texts.search(text) is not None for text in texts)
        try:
            return self.encode_batch(texts, add_special_tokens=False)
        except Exception as error:
            raise InputError(f"{self.path}: cannot encode the text: {one_line(error)}") from error


def start_worker(folder, tokenizer_path, parse_special_tokens, typecode, fields, skip_bad):
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # One process per core runs already, so the package must not start threads.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # On Ctrl-C the main process ends the workers.
    threading.Thread(target=end_with_parent, daemon=True).start()
    _worker = (folder, Encoder(tokenizer_path, parse_special_tokens), typecode, fields, skip_bad)


def end_with_parent():
    """Waits for the end of the main process and ends this worker, because a main process that is killed cannot."""
    import multiprocessing

    multiprocessing.parent_process().join()
    os._exit(1)


def encode_part(part):
    """Writes the part's file and returns its summary (part_files.py)."""
    folder, encoder, typecode, fields, skip_bad = _worker
    sources = Sources(skip_bad)
    encoder.documents_with_special_text = 0
    with PartWriter(folder, part.name, typecode) as writer:
        for piece in part.pieces:
            for batch in batches(read_piece(piece, fields, sources)):
                for encoding in encoder.encode(batch):
                    writer.add_document(array.array(typecode, encoding.ids))
        last_block = part.pieces[0].block and part.pieces[0].block[1]
        return writer.finish({
            "taken": sources.taken,
            "left_out": dict(sources.left_out),
            "skipped": sources.skipped,
            "documents_with_special_text": encoder.documents_with_special_text,
            "last_block": last_block,
        })
