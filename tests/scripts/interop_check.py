"""Follows the guide with the real packages: tokenizes text, trains a model, exports it, loads it with transformers and evaluates it with
lm-evaluation-harness and the tasks of scripts/lm_eval. Octavo, transformers and the harness must compute the same loss.

    interop_check.py OCTAVO      needs torch, transformers, lm_eval and tokenizers, which scripts/test.sh --interop installs
"""

import importlib.metadata
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OCTAVO = Path(sys.argv[1]).resolve()
OFFLINE = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OCTAVO_PYTHON": sys.executable}
PACKAGES = ("torch", "transformers", "tokenizers", "lm_eval")
TEXT = "octavo folds a sheet three times; what is printed on it, f\u00fcr alle, is a book of eight leaves.\n"
SPECIAL_TOKENS = {"byte": ("<|bos|>", "<|eos|>", "<|pad|>"), "bpe": ("<|begin_of_text|>", "<|end_of_text|>", "<|pad|>")}


def run(*line, cwd):
    result = subprocess.run(list(map(str, line)), cwd=cwd, capture_output=True, text=True, env=os.environ | OFFLINE)
    assert result.returncode == 0, f"{line}: {result.stdout[-2000:]}{result.stderr[-4000:]}"
    return result.stdout


def tokenize(scratch, kind):
    """Writes the datasets train and held_out, and returns the size of the vocabulary."""
    hold_out = ("--hold-out-every", 10, "--hold-out-output", "held_out")
    if kind == "byte":
        run(OCTAVO, "pack", "--input", "texts", "--output", "train", *hold_out, cwd=scratch)
        return 272
    run(sys.executable, ROOT / "scripts/tokenize_hf.py", "--train-bpe", 1000, "--input", "texts", "--output", "train", *hold_out, cwd=scratch)
    return 1000


def train(scratch, kind, vocab_size):
    config = {
        "model": {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32,
                  "vocab_size": vocab_size, "rope_theta": 10000.0},
        "data": {"train": [{"path": "train"}], "validation": [{"path": "held_out"}], "seq_len": 128,
                 "tokenizer": "byte" if kind == "byte" else "train.tokenizer.json"},
        "training": {"steps": 30, "global_batch_size": 8, "micro_batch_size": 8},
        "optimizer": {"lr": 5e-3, "warmup_steps": 5},
        "checkpoint": {"dir": "checkpoints", "every": 0},
        "logging": {"dir": "log", "tensorboard": False},
        "device": "cpu",
    }
    (scratch / "config.yaml").write_text(json.dumps(config))  # JSON is valid YAML.
    run(OCTAVO, "train", "config.yaml", cwd=scratch)


def octavo_loss(scratch, tokenizer_options):
    """Returns the loss of TEXT after bos as a single window of one document, and its number of tokens."""
    (scratch / "text").mkdir()
    (scratch / "text/text.txt").write_text(TEXT, encoding="utf-8")
    line = (OCTAVO, "pack") if tokenizer_options is None else (sys.executable, ROOT / "scripts/tokenize_hf.py", *tokenizer_options)
    run(*line, "--input", "text/text.txt", "--output", "text/tokens", cwd=scratch)
    tokens = json.loads((scratch / "text/tokens.json").read_text())["tokens"]
    fields = run(OCTAVO, "evaluate", "checkpoints", "data.validation=[{path: text/tokens}]", "data.eos_id=null", f"data.seq_len={tokens}",
                 "training.global_batch_size=1", "training.micro_batch_size=1", cwd=scratch).split()
    assert fields[fields.index("tokens") + 1] == str(tokens), fields
    return float(fields[fields.index("validation_loss") + 1]), tokens


def check_tokenizer(scratch, kind):
    """Loads the exported tokenizer and returns it."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(scratch / "exported"))
    for text in (TEXT, " \n\t", "\u20ac\U0001f4d6 caf\u00e9", "".join(map(chr, range(256)))):
        assert tokenizer.decode(tokenizer.encode(text)) == text, text
        assert kind != "byte" or tokenizer.encode(text) == list(text.encode()), text
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == SPECIAL_TOKENS[kind], tokenizer
    assert {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token} <= set(tokenizer.all_special_tokens)
    ids = [tokenizer.bos_token_id, *tokenizer.encode("a"), tokenizer.eos_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a"
    return tokenizer


def harness(scratch):
    """Returns the results of the harness by task."""
    shutil.copytree(ROOT / "scripts/lm_eval", scratch / "tasks")
    (scratch / "own_text.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    questions = [{"question": "octavo folds a", "choices": ["sheet", "zzzzz"], "answer": 0},
                 {"question": "a book of eight", "choices": ["qqqqqq", "leaves"], "answer": 1}]
    (scratch / "own_questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    run(sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", "pretrained=exported,dtype=float32", "--include_path", "tasks",
        "--tasks", "own_text,own_questions", "--device", "cpu", "--batch_size", "2", "--output_path", "results", cwd=scratch)
    (found,) = (scratch / "results").rglob("results_*.json")
    return json.loads(found.read_text())["results"]


def check(kind):
    with tempfile.TemporaryDirectory(prefix="octavo_interop_") as name:
        scratch = Path(name)
        texts = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "data").glob("*.h"))]
        (scratch / "texts").mkdir()
        for path in texts:
            shutil.copy(path, scratch / "texts" / (path.name + ".txt"))
        train(scratch, kind, tokenize(scratch, kind))
        run(OCTAVO, "export", "checkpoints", "exported", cwd=scratch)
        run(OCTAVO, "generate", "checkpoints", "--prompt", "The ", "--max-tokens", 4, cwd=scratch)
        tokenizer = check_tokenizer(scratch, kind)
        loss, tokens = octavo_loss(scratch, None if kind == "byte" else ("--tokenizer", "train.tokenizer.json"))
        ids = [tokenizer.bos_token_id, *tokenizer.encode(TEXT)]
        assert len(ids) == tokens + 1, (len(ids), tokens)
        (scratch / "tokens.json").write_text(json.dumps([ids]))
        print(run(sys.executable, ROOT / "scripts/check_export.py", "exported", "--tokens", "tokens.json", "--loss", loss, "--tolerance", 1e-5,
                  cwd=scratch), end="")
        results = harness(scratch)
        bits, expected = results["own_text"]["bits_per_byte,none"], loss / math.log(2) * tokens / len(TEXT.encode())
        print(f"{kind}: {expected:.6f} bits per byte by octavo evaluate, {bits:.6f} by lm_eval; questions {results['own_questions']['acc,none']}")
        assert abs(expected - bits) < 1e-4 * bits, (expected, bits)
        assert bits < 7.5, "a model that has learnt nothing has 8 bits per byte, and the comparison would mean little"
        assert results["own_questions"]["acc,none"] in (0.0, 0.5, 1.0)


def main():
    print(", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES))
    for kind in ("byte", "bpe"):
        check(kind)


if __name__ == "__main__":
    main()
