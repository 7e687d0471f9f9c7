"""Checks that Octavo continues checkpoints of Megatron-Core: a GPTModel that the library trains and saves on two ranks has the same losses in
Octavo after scripts/import_checkpoint.py. The check is skipped (exit code 77) without the program (OCTAVO_BINARY) or the Python packages
`megatron-core`, which needs torch, numpy, packaging and psutil, and `xxhash`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from import_checkpoint_test import CONFIG, MODEL, OPTIMIZER

try:
    warnings.simplefilter("ignore")  # This hides warnings about optional packages of Megatron.
    import xxhash  # noqa: F401
    from megatron.core.optimizer import distrib_optimizer
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
OCTAVO = os.environ.get("OCTAVO_BINARY", "")
SAVED, STEPS, BATCH = 5, 12, CONFIG["training"]["global_batch_size"]
PER_LAYER = {"singleton_local_shards": True, "non_homogeneous_layers": True}
# The format of the distributed optimizer that has tensors of the weights, and those that have not. Earlier versions have other formats.
IS_OLD = not hasattr(distrib_optimizer.DistributedOptimizer, "checkpoint_fully_reshardable_formats")
READABLE = "fully_sharded_model_space" if IS_OLD else "fully_reshardable"
REFUSED = ("dp_zero_gather_scatter",) if IS_OLD else ("dp_reshardable", "dp_zero_gather_scatter")
# Settings of the trainer, the shape of the model, and the vocabulary in Octavo. Megatron pads 272 rows to 384, and with TP 2 to 512.
CONTINUED = {
    "fp32": ({"kind": "fp32"}, {}, 272),
    "fp32 with padding that is kept": ({"kind": "fp32", "rows": 384, "scored": 384}, {}, 384),
    "fp32, TP 2, padding that is left out": ({"kind": "fp32", "tp": 2, "rows": 512, "fused_norms": False}, {}, 272),
    "fp32, TP 2, layers by name, tied, qk_norm": ({"kind": "fp32", "tp": 2, "metadata": PER_LAYER},
                                                  {"tie_word_embeddings": True, "qk_norm": True}, 272),
    "fp32, PP 2": ({"kind": "fp32", "pp": 2}, {}, 272),
    "bf16": ({"kind": "bf16"}, {}, 272),
    "bf16, TP 2, layers by name": ({"kind": "bf16", "tp": 2, "metadata": PER_LAYER}, {}, 272),
    READABLE: ({"kind": READABLE}, {"tie_word_embeddings": True}, 272),
    f"{READABLE}, PP 2": ({"kind": READABLE, "pp": 2}, {}, 272),
    f"{READABLE}, TP 2": ({"kind": READABLE, "tp": 2, "rows": 512, "fused_norms": False}, {"qk_norm": True}, 272),
}


def run(*line, cwd, rc=0):
    environment = os.environ | {"OCTAVO": OCTAVO, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(list(map(str, line)), cwd=cwd, capture_output=True, text=True, env=environment, timeout=200, check=False)
    assert result.returncode == rc, f"{line}: {result.returncode} {result.stdout[-2000:]}{result.stderr[-4000:]}"
    return result.stdout if rc == 0 else result.stderr


def train_in_megatron(scratch, settings, shape):
    defaults = {"rows": 272, "scored": 272, "tp": 1, "pp": 1, "metadata": {}, "fused_norms": True, "steps": STEPS, "batch": BATCH,
                "save_at": SAVED, "samples": "samples.jsonl", "save": "megatron", "model": MODEL | {"qk_norm": False} | shape,
                "optimizer": OPTIMIZER}
    (scratch / "settings.json").write_text(json.dumps(defaults | settings))
    line = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    return json.loads(run(*line, ROOT / "tests/scripts/megatron_trainer.py", "settings.json", cwd=scratch).splitlines()[-1])


def continue_in_octavo(scratch, shape, vocabulary):
    overrides = [f"model.{key}={json.dumps(value)}" for key, value in shape.items()] + [f"model.vocab_size={vocabulary}"]
    said = run(sys.executable, ROOT / "scripts/import_checkpoint.py", "megatron", "imported", "--config", "config.yaml", *overrides, cwd=scratch)
    run(OCTAVO, "train", "config.yaml", f"checkpoint.resume=imported/step_{SAVED:08d}", f"data.resume_from_sample={SAVED * BATCH}", *overrides,
        cwd=scratch)
    return [json.loads(line)["loss"] for line in (scratch / "run/metrics.jsonl").read_text().splitlines()], said


def main():
    with tempfile.TemporaryDirectory(prefix="octavo_megatron_") as name:
        scratch = Path(name)
        (scratch / "text.txt").write_text("octavo folds a sheet three times; what is printed on it is a book of eight leaves.\n" * 60)
        (scratch / "config.yaml").write_text(json.dumps(CONFIG))
        run(OCTAVO, "pack", "--input", "text.txt", "--output", "text", cwd=scratch)
        (scratch / "samples.jsonl").write_text(run(OCTAVO, "inspect", "config.yaml", "--samples", f"0:{STEPS * BATCH}", cwd=scratch))
        for case, (settings, shape, vocabulary) in CONTINUED.items():
            expected = train_in_megatron(scratch, settings, shape)[SAVED:]
            found, said = continue_in_octavo(scratch, shape, vocabulary)
            worst = max(abs(a / b - 1) for a, b in zip(found, expected, strict=True))
            print(f"{case}: relative differences of the losses up to {worst:.1e}")
            assert worst < 1e-5, (found, expected)
            assert "trained with" not in said, said
            assert ("rows" in said) == (settings.get("rows", 272) != vocabulary), said
            for folder in ("megatron", "imported", "run"):
                shutil.rmtree(scratch / folder)
        for kind in REFUSED:
            train_in_megatron(scratch, {"kind": kind}, {})
            line = (sys.executable, ROOT / "scripts/import_checkpoint.py", "megatron", "imported", "--config", "config.yaml")
            said = run(*line, cwd=scratch, rc=2)
            assert kind in said and "--dist-ckpt-optim-fully-reshardable" in said, said
            print(f"{kind}: refused")
            shutil.rmtree(scratch / "megatron")


if __name__ == "__main__":
    if not OCTAVO:
        print("skipped: OCTAVO_BINARY is not set")
        sys.exit(77)
    main()
