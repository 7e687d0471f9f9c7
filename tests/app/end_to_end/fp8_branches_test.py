"""Tests what FP8 costs in loss, with the protocol of scripts/fp8_loss_parity.py and a model for the CPU."""

import json
import subprocess
import sys

from support import ROOT, Scratch

# Largest difference to bfloat16 in percent. Two bfloat16 branches differ by 0.002%, and the recipes by 0.01% to 0.07%.
LIMIT = 0.2


class Fp8BranchesTest(Scratch):
    def test_no_recipe_costs_more_than_today(self):
        folders = [ROOT / name for name in ("app", "core", "data", "kernels", "model")]
        self.run_octavo("pack", "--input", *folders, "--output", "train", "--hold-out-every", 10, "--hold-out-output", "held_out")
        recipes = ("tensorwise", "delayed", "rowwise", "blockwise")
        shrunk = ["data.train=[{path: train}]", "data.validation=[{path: held_out}]", "model.num_layers=2", "model.intermediate_size=256",
                  "training.steps=240", "training.global_batch_size=8", "training.micro_batch_size=8", "optimizer.warmup_steps=20",
                  "optimizer.decay_steps=80", "validation.batches=30"]
        command = [sys.executable, ROOT / "scripts/fp8_loss_parity.py", ROOT / "configs/fp8_loss_parity_cpu.yaml", "--output", "out",
                   "--seeds", "1", "--branches", "bfloat16", *recipes, "--", *shrunk]
        result = subprocess.run(command, cwd=self.dir, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        losses = {}
        for line in (self.dir / "out/results.jsonl").read_text().splitlines():
            row = json.loads(line)
            losses[row["branch"]] = row["loss_bfloat16"]
        self.assertEqual(sorted(losses), sorted(("bfloat16", *recipes)))
        self.assertLess(losses["bfloat16"], 2.6, "the trunk must have learned, or the branches would say little")
        for recipe in recipes:
            percent = 100 * (losses[recipe] / losses["bfloat16"] - 1)
            self.assertNotEqual(percent, 0, recipe)
            self.assertLess(abs(percent), LIMIT, recipe)
