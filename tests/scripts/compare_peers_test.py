"""Tests of scripts/compare_peers.sh on the CPU: its messages, its settings, and that the PyTorch model is the same model.
Transformer Engine has no CPU, so its model is compared with PyTorch's before each measurement. Tests show what this comparison finds.

The tests need the program (OCTAVO_BINARY or build/octavo), some of them also torch. Tests that lack one are skipped.
"""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import python_packages  # noqa: E402
from comparing import settings as comparing_settings  # noqa: E402
from scratch import ScratchTest  # noqa: E402

OCTAVO = Path(os.environ.get("OCTAVO_BINARY", ROOT / "build/octavo"))
PYTHON = next((python for python in (os.environ.get("OCTAVO_PYTHON"), sys.executable)
               if python and python_packages.has_packages(python, ("torch", "safetensors"))), None)
CONFIG = {
    "model": {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32,
              "vocab_size": 272, "rope_scaling": {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                                                  "original_max_position_embeddings": 32}},
    "data": {"train": [{"path": "text"}], "seq_len": 64, "tokenizer": "byte"},
    "training": {"steps": 3, "global_batch_size": 4, "micro_batch_size": 2},
    "optimizer": {"lr": 1e-2, "schedule": "constant", "warmup_steps": 0},
    "logging": {"dir": "run", "every": 1, "tensorboard": False},
    "device": "cpu",
}
# Trains PyTorch's model from an exported model on the samples of the run, and prints its losses.
TRAIN = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from functools import partial
from comparing import compare, measuring, training
from comparing.settings import Settings, Variant
settings = Settings.load("settings.json")
rows = [json.loads(line)["tokens"] for line in Path("samples.jsonl").read_text().splitlines()]
mesh = compare.start_ranks(settings)
for variant in (Variant(2, "none"), Variant(4, "selective", "never"), Variant(2, "full", "always", "autocast")):
    make_trainer = partial(training.Trainer, mesh=mesh, compiles=False, weights=Path("exported"))
    print(json.dumps(measuring.losses(make_trainer, settings, variant, "default", rows, 3, 1e-2)))
"""
# Prints what the parity check finds for PyTorch's model and for models that differ from it in one detail.
PARITY = """
import json, sys
from functools import partial
sys.path.insert(0, sys.argv[1])
from comparing import compare, measuring, training
from comparing.settings import Settings

class BackwardRope(training.Trainer):
    def __init__(self, settings, variant, kind, **options):
        super().__init__(settings, variant, kind, **options)
        self.rope[1].neg_()

class NoStep(training.Trainer):
    def step(self, batches, num_targets):
        pass

settings = Settings.load("settings.json")
options = {"mesh": compare.start_ranks(settings), "compiles": False}
reference = partial(training.Trainer, **options)
for trainer in (training.Trainer, BackwardRope, NoStep):
    difference, loss, its_loss = measuring.parity(reference, partial(trainer, **options), settings, "default")
    print(json.dumps([difference <= compare.TOKEN_PARITY, abs(its_loss - loss) <= compare.STEP_PARITY * loss]))
"""


@unittest.skipUnless(OCTAVO.is_file(), f"{OCTAVO} is missing")
class ComparePeersTest(ScratchTest):
    def run_here(self, *line, rc=0):
        environment = os.environ | {"OCTAVO": str(OCTAVO), "OMP_NUM_THREADS": "1"} | ({"OCTAVO_PYTHON": PYTHON} if PYTHON else {})
        result = subprocess.run(list(map(str, line)), cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, rc, result.stdout + result.stderr)
        return result.stdout if rc == 0 else result.stderr

    def compare(self, *line, rc=0):
        self.write("config.yaml", json.dumps(CONFIG))
        return self.run_here(ROOT / "scripts/compare_peers.sh", *line, rc=rc)

    def test_settings_of_a_dry_run(self):
        settings = json.loads(self.compare("--dry-run", "--ranks", 4, "config.yaml", "parallel.tensor_parallel=2", "precision.linear=fp8_delayed",
                                           "model.num_kv_heads=2"))
        self.assertEqual((settings["tensor"], settings["replicate"] * settings["shard"], settings["linear"]), (2, 2, "fp8_delayed"))
        self.assertEqual(settings["shape"]["rope_scaling"]["factor"], 8)
        self.assertIn("fp8_tensorwise", settings["notes"][0])

    def test_the_linears_are_in_the_format_that_runs(self):
        for overrides, linears in (([], "float32"), (["precision.compute=bfloat16"], "bfloat16"), (["precision.linear=fp8_delayed"], "fp8_delayed")):
            self.write("settings.json", self.compare("--dry-run", "config.yaml", *overrides))
            self.assertEqual(comparing_settings.Settings.load(self.root / "settings.json").linear_format, linears)

    def test_what_cannot_be_compared_is_refused(self):
        for overrides, words in ((["nope=1"], "unknown key"), (["model.qk_norm=true"], "model.qk_norm is True, expected False"),
                                 (["optimizer.type=muon"], "optimizer.type is muon"), (["training.global_batch_size=3"], "global_batch_size"),
                                 (["activation_checkpointing.mode=block"], "activation_checkpointing.mode is block")):
            with self.subTest(overrides):
                self.assertIn(words, self.compare("--dry-run", "config.yaml", *overrides, rc=2))
        with self.assertRaisesRegex(comparing_settings.Refused, "model.new is 3, expected 0"):
            comparing_settings.refuse_what_differs({"model.new": 3}, "torch")
        self.assertIn("there is no option --foo", self.compare("--foo", "config.yaml", rc=2))
        if not Path("/dev/nvidiactl").exists():
            self.assertIn("no GPU", self.compare("config.yaml", "device=cuda", rc=2))

    @unittest.skipUnless(PYTHON, "torch and safetensors are not installed")
    def test_both_compute_the_same_losses(self):
        self.write("text.txt", "octavo folds a sheet three times; what is printed on it is a book of eight leaves.\n" * 40)
        self.write("config.yaml", json.dumps(CONFIG))
        self.run_here(OCTAVO, "pack", "--input", "text.txt", "--output", "text")
        # A step with a learning rate of nearly zero saves the initial weights.
        self.run_here(OCTAVO, "train", "config.yaml", "training.steps=1", "optimizer.lr=1e-30", "logging.dir=initial")
        self.run_here(OCTAVO, "export", "initial/checkpoints", "exported")
        self.run_here(OCTAVO, "train", "config.yaml", "model.init_from=exported")
        expected = [json.loads(line)["loss"] for line in (self.root / "run/metrics.jsonl").read_text().splitlines()]
        self.write("samples.jsonl", self.run_here(OCTAVO, "inspect", "config.yaml", "--samples", "0:12"))
        self.write("settings.json", self.compare("--dry-run", "config.yaml"))
        found = [json.loads(line) for line in self.run_here(PYTHON, "-c", TRAIN, ROOT / "scripts").splitlines()]
        self.assertEqual(len(found), 3)
        self.assertGreater(expected[0] - expected[2], 0.01)
        for losses in found:
            for ours, theirs in zip(expected, losses, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=2e-5 * ours)

    def test_settings_of_each_peer(self):
        line = ("--dry-run", "--ranks", 1, "config.yaml", "device=cuda")
        for peer, linear, found in (("torch", "fp8_delayed", "fp8_tensorwise"), ("torch", "fp8_rowwise", "fp8_rowwise"),
                                    ("te", "fp8_delayed", "fp8_delayed"), ("te", "fp8_rowwise", "fp8_tensorwise")):
            with self.subTest(peer=peer, linear=linear):
                self.write("settings.json", self.compare("--peer", peer, *line, f"precision.linear={linear}"))
                settings = comparing_settings.Settings.load(self.root / "settings.json")
                self.assertEqual((settings.peer_linear, bool(settings.notes)), (found, found != linear))
        for overrides, words in ((["device=cpu"], "device cpu"), (["precision.compute=float32"], "float32"),
                                 (["activation_checkpointing.mode=full"], "activation_checkpointing.mode is full, expected auto or none"),
                                 (["data.document_mask=true"], "data.document_mask is True, expected False")):
            with self.subTest(overrides):
                self.assertIn(words, self.compare("--peer", "te", *line, *overrides, rc=2))
        self.assertIn("--peer is 'jax', expected torch or te", self.compare("--peer", "jax", "config.yaml", rc=2))

    @unittest.skipUnless(PYTHON, "torch and safetensors are not installed")
    def test_parity_finds_another_model_and_another_step(self):
        self.write("settings.json", self.compare("--dry-run", "config.yaml", "model.hidden_size=256", "model.num_layers=4", "data.seq_len=256"))
        self.assertEqual([json.loads(line) for line in self.run_here(PYTHON, "-c", PARITY, ROOT / "scripts").splitlines()],
                         [[True, True], [False, True], [True, False]])

    @unittest.skipUnless(PYTHON, "torch and safetensors are not installed")
    def test_comparison_on_the_cpu(self):
        out = self.compare("--rounds", 1, "--steps", 2, "--warmup", 1, "--no-compile", "--json", "result.json", "config.yaml")
        report = json.loads((self.root / "result.json").read_text())
        for title in ("equal settings", "each one's best"):
            row = report["rows"][title]
            self.assertAlmostEqual(row["ratio"], row["octavo"]["wps"] / row["torch"]["wps"])
            self.assertIn(f"Octavo / PyTorch = {row['ratio']:.3f}", out)

    def test_values_of_a_config(self):
        values = comparing_settings.parse_config('{"model": {"rope_scaling": {"factor": 8.0}, "x": null}, "device": "cpu"}')
        self.assertEqual(values, {"model.rope_scaling": {"factor": 8.0}, "model.x": None, "device": "cpu"})


if __name__ == "__main__":
    unittest.main()
