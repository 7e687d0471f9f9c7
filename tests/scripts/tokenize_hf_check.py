"""Runs tokenize_hf.py and hf_tokenizer.py with a small tokenizer made on the spot, and compares what they write with the
library's own encoding. Skipped (exit code 77) where the Python package `tokenizers` is not installed."""

import array
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import tokenizers
except ImportError:
    print("skipped: the Python package `tokenizers` is not installed")
    sys.exit(77)

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TEXTS = [f"document {i}: naïve café, {'word ' * (i % 7)} int main() {{ return {i * i}; }}\n" for i in range(250)]


def make_tokenizer(path):
    """A byte-level BPE whose post-processor adds bos, which the scripts must not let through."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    tokenizer.save(str(path))
    return tokenizer


def read_dataset(prefix):
    idx, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    version, code, sequences, entries = struct.unpack_from("<QBQQ", idx, 9)
    assert (idx[:9], version, code, entries) == (b"MMIDIDX\0\0", 1, 8, sequences + 1), (version, code, sequences, entries)
    lengths = struct.unpack_from(f"<{sequences}i", idx, 34)
    offsets = struct.unpack_from(f"<{sequences}q", idx, 34 + 4 * sequences)
    return [list(array.array("H", data[o : o + 2 * n])) for n, o in zip(lengths, offsets)]


def check_tokenize(scratch, tokenizer):
    with open(scratch / "texts.jsonl", "w", encoding="utf-8") as lines:
        for text in TEXTS:
            lines.write(json.dumps({"text": text}) + "\n")
    command = [sys.executable, SCRIPTS / "tokenize_hf.py", "--tokenizer", scratch / "tokenizer.json", "--workers", "2"]
    command += ["--input", scratch / "texts.jsonl", "--output", scratch / "out", "--hold-out-every", "10"]
    subprocess.run(command, check=True)
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert read_dataset(scratch / "out") == [ids for i, ids in enumerate(expected, 1) if i % 10]
    assert read_dataset(scratch / "out_held_out") == expected[9::10]
    sidecar = json.loads((scratch / "out.json").read_text())
    assert (sidecar["vocab_size"], sidecar["bos"], sidecar["eos"]) == (tokenizer.get_vocab_size(), 0, 1), sidecar
    assert (sidecar["documents"], sidecar["tokens"]) == (225, sum(len(e) for i, e in enumerate(expected, 1) if i % 10))
    octavo = os.environ.get("OCTAVO_BINARY")
    if octavo:
        subprocess.run([octavo, "inspect", scratch / "out"], check=True, stdout=subprocess.DEVNULL)


def check_bad_input(scratch):
    command = [sys.executable, SCRIPTS / "tokenize_hf.py", "--tokenizer", scratch / "texts.jsonl"]
    command += ["--input", scratch / "texts.jsonl", "--output", scratch / "bad"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "texts.jsonl" in result.stderr, result
    assert not list(scratch.glob("bad*"))


def check_what_is_left_out(scratch):
    """A folder of other formats is not taken for an empty corpus."""
    folder = scratch / "mixed"
    folder.mkdir()
    (folder / "readme.txt").write_text("some text")
    for name in ("a.parquet", "b.parquet", "c.jsonl.gz"):
        (folder / name).write_bytes(b"PAR1\0")
    command = [sys.executable, SCRIPTS / "tokenize_hf.py", "--tokenizer", scratch / "tokenizer.json"]
    command += ["--input", folder, "--output", scratch / "mixed_out"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "--allow-skipped" in result.stderr, result
    assert "left out 3 files: 2 .parquet, 1 .jsonl.gz" in result.stderr, result
    assert not list(scratch.glob("mixed_out*"))
    result = subprocess.run([*command, "--allow-skipped"], capture_output=True, text=True, check=True)
    assert "1 documents" in result.stdout and "left out 3 files" in result.stderr, result


def check_child_process(scratch, tokenizer):
    requests = [{"encode": TEXTS[3]}, {"decode": tokenizer.encode(TEXTS[3]).ids}, {"decode": [5000, -1]}, {"encode": "é"}]
    result = subprocess.run(
        [sys.executable, SCRIPTS / "hf_tokenizer.py", scratch / "tokenizer.json"],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        check=True,
    )
    hello, ids, text, error, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert hello == {"vocab_size": tokenizer.get_vocab_size()}, hello
    assert ids["ids"] == tokenizer.encode(TEXTS[3], add_special_tokens=False).ids
    assert text["text"] == TEXTS[3], text
    assert "error" in error and last["ids"], (error, last)


def main():
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        tokenizer = make_tokenizer(scratch / "tokenizer.json")
        check_tokenize(scratch, tokenizer)
        check_bad_input(scratch)
        check_what_is_left_out(scratch)
        check_child_process(scratch, tokenizer)


if __name__ == "__main__":
    main()
