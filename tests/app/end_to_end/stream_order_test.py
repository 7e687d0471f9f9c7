"""Tests on GPUs that random delays change no bit of a run, because streams wait for each other.

OCTAVO_DELAY_SEEDS sets how often each run is repeated with delays, 5 times by default. Two ranks share a GPU if there is only one.
"""

import json
import os
import re
import unittest
from pathlib import Path

from guards_test import STEPS, Noisy
from support import DEVICE, DONE, checkpoint_tensors, checkpoints, number_of_gpus

DELAYS = Path(os.environ["OCTAVO"]).parent / "tests/liboctavo_stream_delays.so"
SEEDS = int(os.environ.get("OCTAVO_DELAY_SEEDS", "5"))
SHARING = ["bash", "-c", 'NCCL_HOSTID="$OMPI_COMM_WORLD_RANK" exec "$@"', "--"]
STAGES = [{"steps": 50}, {"steps": STEPS - 50, "training": {"micro_batch_size": 1}}]


@unittest.skipUnless(DEVICE == "cuda" and DELAYS.exists(), "needs a GPU and the library that delays streams")
class StreamOrderTest(Noisy):
    """Trains two stages with validation, recomputation and a rollback, on several meshes."""

    def train(self, ranks, seed, *overrides):
        """Returns what delays must not change, which is losses and norms by step and tensors by checkpoint, and the number of delays."""
        log = f"seed{seed}"
        line = [os.environ["OCTAVO"], "train", self.noisy_config(log, on_loss_spike="rollback"), f"stages={json.dumps(STAGES)}", "model.num_layers=4",
                f"data.validation=[{self.dir}/noisy]", "validation.every=7", "validation.batches=4", "checkpoint.keep=0", *overrides]
        line = ["env", f"LD_PRELOAD={DELAYS}", f"OCTAVO_DELAY_SEED={seed}", *line]
        if ranks > 1:
            line = ["mpirun", "-n", ranks, "--oversubscribe", "--bind-to", "none", *(SHARING if ranks > number_of_gpus() else []), *line]
        result = self.finish(self.start_line(list(map(str, line))))
        self.assertEqual(result.code, DONE, result.out[-600:] + result.err[-600:])
        self.assertIn("are skipped", result.out, "the run rolls back")
        metrics = {step: [entry.get(key) for key in ("loss", "grad_norm", "validation_loss")] for step, entry in self.metrics(log).items()}
        saved = self.dir / f"{log}_checkpoints"
        tensors = {name: checkpoint_tensors(saved / name) for name in checkpoints(saved)}
        return metrics, tensors, sum(map(int, re.findall(r"(\d+) delays", result.err)))

    def check(self, ranks, *overrides):
        """Compares runs that save in the background with a run that saves every step at once."""
        metrics, tensors, delays = self.train(ranks, 0, "checkpoint.every=1", "checkpoint.async=false", *overrides)
        self.assertEqual(delays, 0)
        for seed in range(1, SEEDS + 1):
            with self.subTest(seed=seed):
                delayed_metrics, delayed_tensors, delays = self.train(ranks, seed, "checkpoint.every=5", "checkpoint.async=true", *overrides)
                self.assertGreater(delays, 0)
                self.assertEqual([step for step in metrics if delayed_metrics.get(step) != metrics[step]], [], "steps that differ")
                self.assertGreater(len(delayed_tensors), 3)
                self.assertEqual([name for name, saved in delayed_tensors.items() if saved != tensors.get(name)], [],
                                 "checkpoints that differ")

    def test_one_gpu(self):
        self.check(1, "activation_checkpointing.mode=full")

    def test_history_of_amaxes(self):
        """A save copies the history in the stream of the steps."""
        self.check(1, "precision.linear=fp8_delayed")

    def test_shards(self):
        self.check(2, "activation_checkpointing.mode=selective", "parallel.reshard_after_forward=true")

    def test_tensor_parallel_ranks(self):
        # Few collectives, because each of them takes milliseconds if two ranks share a GPU.
        self.check(2, "parallel.tensor_parallel=2", "activation_checkpointing.mode=block", "training.micro_batch_size=8", "model.num_layers=2")

    def test_pipeline_stages(self):
        self.check(2, "parallel.pipeline_parallel=2", "parallel.pipeline_schedule=zero_bubble", "training.micro_batch_size=1")
