"""The path of docs/evaluation.md: a model that Octavo trained and exported, byte tokenizer included, through
lm-evaluation-harness with the tasks of scripts/lm_eval; a text's log-likelihood there is the loss of `octavo evaluate`.
Skipped (exit code 77) without `lm_eval`, torch and transformers, or without the program in OCTAVO_BINARY."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import lm_eval  # noqa: F401
    import torch  # noqa: F401
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
if not os.environ.get("OCTAVO_BINARY"):
    print("skipped: OCTAVO_BINARY is not set")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
TEXT = "octavo folds a sheet three times; what is printed on it, f\u00fcr alle, is a book of eight leaves.\n"
OFFLINE = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def run(line, scratch, **more):
    result = subprocess.run(line, cwd=scratch, capture_output=True, text=True, env=os.environ | OFFLINE, **more)
    assert result.returncode == 0, f"{line}: {result.stdout[-2000:]}{result.stderr[-4000:]}"
    return result.stdout


def octavo(scratch, *arguments):
    return run([os.environ["OCTAVO_BINARY"], *map(str, arguments)], scratch)


def train(scratch):
    (scratch / "corpus.txt").write_text(TEXT * 200, encoding="utf-8")
    octavo(scratch, "pack", "--input", "corpus.txt", "--output", "corpus")
    config = {
        "model": {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1,
                  "head_dim": 32, "vocab_size": 272, "rope_theta": 10000.0},
        "data": {"train": [{"path": "corpus"}], "seq_len": 128, "bos_id": 256, "eos_id": 257},
        "training": {"steps": 30, "global_batch_size": 8, "micro_batch_size": 8},
        "optimizer": {"lr": 5e-3, "warmup_steps": 5},
        "checkpoint": {"dir": "checkpoints", "every": 0},
        "logging": {"dir": "log", "tensorboard": False},
        "device": "cpu",
    }
    (scratch / "config.yaml").write_text(json.dumps(config))  # is YAML too
    octavo(scratch, "train", "config.yaml")


def check_tokenizer(scratch):
    """Transformers reads the tokenizer that was exported: bytes, and back."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(scratch / "exported"))
    for text in (TEXT, " \n\t", "\u20ac\U0001f4d6 caf\u00e9", "".join(map(chr, range(256)))):
        assert tokenizer.encode(text) == list(text.encode()), text
        assert tokenizer.decode(list(text.encode())) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (256, 257, 258)
    assert tokenizer.decode([256, 97, 257], skip_special_tokens=True) == "a"


def evaluate(scratch):
    """Octavo's loss of the text behind bos: one window of one document."""
    (scratch / "text.txt").write_text(TEXT, encoding="utf-8")
    octavo(scratch, "pack", "--input", "text.txt", "--output", "text")
    out = octavo(scratch, "evaluate", "checkpoints", "data.validation=[{path: text}]", "data.eos_id=null",
                 f"data.seq_len={len(TEXT.encode())}", "training.global_batch_size=1", "training.micro_batch_size=1")
    fields = out.split()
    assert fields[fields.index("tokens") + 1] == str(len(TEXT.encode())), out
    return float(fields[fields.index("validation_loss") + 1])


def harness(scratch):
    """The results by task."""
    shutil.copytree(ROOT / "scripts/lm_eval", scratch / "tasks")
    (scratch / "own_text.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    questions = [{"question": "octavo folds a", "choices": ["sheet", "zzzzz"], "answer": 0},
                 {"question": "a book of eight", "choices": ["qqqqqq", "leaves"], "answer": 1}]
    (scratch / "own_questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    run([sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", "pretrained=exported,dtype=float32",
         "--include_path", "tasks", "--tasks", "own_text,own_questions", "--device", "cpu", "--batch_size", "1",
         "--output_path", "results"], scratch)
    (found,) = (scratch / "results").rglob("results_*.json")
    return json.loads(found.read_text())["results"]


def main():
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        train(scratch)
        octavo(scratch, "export", "checkpoints", "exported")
        check_tokenizer(scratch)
        results = harness(scratch)
        bits = results["own_text"]["bits_per_byte,none"]
        loss = evaluate(scratch)
        print(f"octavo evaluate {loss / math.log(2):.6f} bits per byte, lm_eval {bits:.6f}; questions {results['own_questions']}")
        assert abs(loss / math.log(2) - bits) < 1e-4 * bits, (loss, bits)
        assert bits < 6, "a model that learnt nothing has 8 and the comparison would mean little"
        assert results["own_questions"]["acc,none"] in (0.0, 0.5, 1.0)


if __name__ == "__main__":
    main()
