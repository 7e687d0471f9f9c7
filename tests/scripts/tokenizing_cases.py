"""Helpers of the tests of tokenizing: texts, a small tokenizer, and an independent reader of token files."""

import array
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TEXTS = [f"document {i}: naïve café, {'word ' * (i % 7)} int main() {{ return {i * i}; }}\n" for i in range(250)]


def random_texts(count, seed):
    """Returns texts of very different lengths, with line ends and with characters of up to 4 bytes."""
    draw = random.Random(seed)
    words = ["int", "return", " ", "\n", "\r\n", "naïve", "日本", "🙂", "word", "\t", "0x1f", "end", "{}", '"', "\\"]
    return [f"{i} " + " ".join(draw.choices(words, k=int(draw.expovariate(1 / 40)))) for i in range(count)]


def make_tokenizer(path):
    """Writes a byte-level BPE whose post-processor adds bos. The scripts must not use the post-processor."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    tokenizer.save(str(path))
    return tokenizer


def write_jsonl(path, texts, field="text"):
    with open(path, "w", encoding="utf-8") as lines:
        for i, text in enumerate(texts):
            lines.write(json.dumps({"id": i, field: text}, ensure_ascii=i % 2 == 0) + "\n")
    return path


def compress_zstd(data, frames=1):
    import zstandard

    step = -(-len(data) // frames)
    return b"".join(zstandard.ZstdCompressor().compress(data[i : i + step]) for i in range(0, len(data), step))


def write_parquet(path, texts, field="text", row_group_size=60, **types):
    import pyarrow
    import pyarrow.parquet

    column = pyarrow.array(texts, types.get("type", pyarrow.string()))
    table = pyarrow.table({"id": list(range(len(texts))), field: column})
    pyarrow.parquet.write_table(table, path, row_group_size=row_group_size)
    return str(path)


def read_dataset(prefix):
    idx, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    version, code, sequences, entries = struct.unpack_from("<QBQQ", idx, 9)
    assert (idx[:9], version, code, entries) == (b"MMIDIDX\0\0", 1, 8, sequences + 1), (version, code, sequences, entries)
    lengths = struct.unpack_from(f"<{sequences}i", idx, 34)
    offsets = struct.unpack_from(f"<{sequences}q", idx, 34 + 4 * sequences)
    assert struct.unpack_from(f"<{entries}q", idx, 34 + 12 * sequences) == tuple(range(entries))
    return [list(array.array("H", data[o : o + 2 * n])) for n, o in zip(lengths, offsets)]


def command(*arguments):
    return [sys.executable, str(SCRIPTS / "tokenize_hf.py"), *map(str, arguments)]


def run(*arguments, code=0, **options):
    result = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, **options)
    assert result.returncode == code, (arguments, result)
    return result


def refuse(message, *arguments, code=2, **options):
    """Expects that the script fails with one sentence that contains `message`. On a slow machine, progress is shown before it."""
    lines = run(*arguments, code=code, **options).stderr.splitlines()
    assert message in lines[-1] and lines[-1].startswith("tokenize_hf.py: "), (message, lines)
    assert not any(line.startswith(("Traceback", "Exception", " ")) for line in lines), lines


def inspect(prefix):
    """Returns the output of `octavo inspect`, which must find the dataset intact, or None if the program is not built."""
    octavo = os.environ.get("OCTAVO_BINARY")
    if octavo:
        result = subprocess.run([octavo, "inspect", str(prefix)], check=True, capture_output=True, text=True)
        return json.loads(result.stdout)
    return None
