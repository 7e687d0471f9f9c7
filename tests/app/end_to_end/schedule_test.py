"""Tests of runs whose steps differ by design: growing batches, the z-loss, and stages."""

import json
import shutil

from resume_test import Resuming
from support import DONE, text_documents, write_megatron


class BatchSizeWarmupTest(Resuming):
    WARMUP = [{"batch_size": 4, "steps": 2}, {"batch_size": 8, "steps": 3}]

    def test_any_mesh_resumed_in_the_middle(self):
        config = self.ten_steps(training={"steps": 10, "global_batch_size": 16, "micro_batch_size": 2,
                                          "batch_size_warmup": self.WARMUP, "z_loss": 1e-3})
        reference = self.reference(config)
        metrics = self.metrics("whole")
        tokens = [0]
        for batch in [4] * 2 + [8] * 3 + [16] * 5:
            tokens.append(tokens[-1] + batch * 32)
        self.assertEqual([metrics[step]["tokens"] for step in range(1, 11)], tokens[1:])
        out = self.train(config, "checkpoint.every=3", "checkpoint.keep=0").out
        self.assertIn("training.batch_size_warmup: 8 sequences per step from step 3 on", out)
        for step in (6, 9, 10):
            shutil.rmtree(self.dir / f"checkpoints/step_{step:08}")
        (self.dir / "log/metrics.jsonl").unlink()
        self.train(config, "checkpoint.dir=on2", "logging.dir=on2_log", "checkpoint.resume=checkpoints", ranks=2)
        self.assert_close(self.losses("on2_log"), {step: reference[0][step] for step in range(4, 11)}, 1e-5)
        for step, entry in self.metrics("on2_log").items():
            self.assertEqual(entry["tokens"], tokens[step])
            self.assertAlmostEqual(entry["z_loss"] / metrics[step]["z_loss"], 1, delta=1e-5)
        self.train(config)
        self.assert_same_run(reference, first=4)
        self.refused("train", config, "checkpoint.resume=never", ranks=4, mentions=["batch_size_warmup is 4"])


class StagesTest(Resuming):
    def setUp(self):
        super().setUp()
        self.other = write_megatron(self.dir / "other", text_documents(20, 300, seed=9))

    def stages(self):
        both = [{"path": self.corpus, "weight": 0.5}, {"path": self.other, "weight": 0.5}]
        stages = [{"steps": 4},
                  {"steps": 3, "data": {"train": [{"path": self.other}], "seq_len": 16},
                   "training": {"global_batch_size": 16, "micro_batch_size": 8}},
                  {"steps": 3, "data": {"train": both}, "optimizer": {"lr": 1e-3, "schedule": "linear", "min_lr_ratio": 0}}]
        return self.config(self.corpus, training={"global_batch_size": 8, "micro_batch_size": 4, "steps": 10},
                           stages=stages)

    def test_any_mesh_resumed_in_each_stage(self):
        config = self.stages()
        reference = self.reference(config)
        metrics = self.metrics("whole")
        self.assertEqual([metrics[step]["stage"] for step in range(1, 11)], [1] * 4 + [2] * 3 + [3] * 3)
        self.assertEqual(metrics[10]["tokens"], 4 * 8 * 32 + 3 * 16 * 16 + 3 * 8 * 32)
        self.assertEqual([round(metrics[step]["lr"] / 1e-3, 9) for step in (8, 9, 10)], [round(x / 3, 9) for x in (2, 1, 0)])
        self.assertEqual(json.loads((self.dir / "whole/goodput.json").read_text())["restarts"], 0)
        out = self.train(config, "checkpoint.every=3", "checkpoint.keep=0").out
        self.assertIn("stage 2 of 3: steps 5 to 7, 16 sequences of 16 tokens per step", out)
        self.assertIn("step 10/10", out)
        self.assert_same_run(reference)
        self.assertIn("nothing to do: step 10 of 10 is reached", self.run_octavo("train", config, "--dry-run").out)
        # Later checkpoints are removed.
        for step, ranks in ((9, 1), (7, 2), (6, 1), (4, 1), (3, 2)):
            for later in range(step + 1, 11):
                shutil.rmtree(self.dir / f"checkpoints/step_{later:08}", ignore_errors=True)
            self.assertIn(f"would resume checkpoints/step_{step:08}", self.run_octavo("train", config, "--dry-run").out)
            log = f"from{step}"
            out = self.train(config, "checkpoint.resume=checkpoints", f"checkpoint.dir={log}_checkpoints",
                             f"logging.dir={log}", ranks=ranks).out
            self.assertIn(f"resuming checkpoints/step_{step:08} after step {step}", out)
            if ranks == 1:
                self.assert_same_run(reference, log, f"{log}_checkpoints", first=step + 1)
            else:
                self.assert_close(self.losses(log), {s: reference[0][s] for s in range(step + 1, 11)}, 1e-5)

    def test_a_later_stage_begins_where_the_run_stopped_reading(self):
        config = self.stages()
        self.train(config, "checkpoint.every=1", "checkpoint.keep=0")
        at = lambda step: (f"checkpoint.resume=checkpoints/step_{step:08}", "checkpoint.dir=moved", "logging.dir=moved_log")
        smaller = ("training.global_batch_size=4", "checkpoint.allow_changes=[schedule]")
        for step, overrides in ((2, smaller), (2, ["data.skip=[[0, 16]]"]), (4, smaller)):
            self.assertRegex(self.refused("train", config, *at(step), *overrides), "would begin at (the wrong )?sample")
        self.assertEqual(self.train(config, *at(2)).code, DONE)

    def test_a_damaged_checkpoint_leads_to_an_earlier_stage(self):
        config = self.stages()
        overrides = (f"data.validation=[{self.held_out}]", "validation.every=2", "checkpoint.in_memory=true",
                     "checkpoint.in_memory_every=1", "checkpoint.every=3", "checkpoint.keep=0")
        for ranks in (1, 2):
            where = (*overrides, f"checkpoint.dir=on{ranks}_checkpoints", f"logging.dir=on{ranks}")
            self.train(config, *where, ranks=ranks)
            whole = self.losses(f"on{ranks}")
            directory = self.dir / f"on{ranks}_checkpoints"
            for step in (9, 10):
                shutil.rmtree(directory / f"step_{step:08}")
            shard = directory / "step_00000007/rank_00000.safetensors"
            shard.write_bytes(shard.read_bytes()[:-1])
            out = self.train(config, *where, ranks=ranks).out
            self.assertIn(f"resuming on{ranks}_checkpoints/step_00000006 after step 6", out)
            self.assertIn("stage 3 of 3: steps 8 to 10", out)
            self.assertEqual(self.losses(f"on{ranks}"), whole)

    def test_samples_of_all_stages(self):
        config = self.stages()
        lines = [json.loads(line) for line in self.run_octavo("inspect", config, "--samples", "0:104").out.splitlines()]
        self.assertEqual([line["sample"] for line in lines], list(range(104)))
        self.assertEqual([len(line["tokens"]) for line in lines], [33] * 32 + [17] * 48 + [33] * 24)
        corpus = [(line["epoch"], line["window"]) for line in lines[:32] + lines[80:] if line["dataset"] == 0]
        self.assertEqual(len(corpus), 44)
        self.assertEqual(len(set(corpus)), 44, "windows come again")
        self.assertEqual(self.run_octavo("inspect", config, "--samples", "40:90").out.splitlines(),
                         self.run_octavo("inspect", config, "--samples", "0:104").out.splitlines()[40:90])
        self.refused("train", config, "training.steps=11", mentions=["training.steps is 11", "10 steps together"])

    def test_other_commands(self):
        """Each command uses the stage that the checkpoint belongs to."""
        config = self.stages()
        self.train(config, "checkpoint.every=6", "checkpoint.keep=0")
        validation = (f"data.validation=[{self.held_out}]", "validation.batches=2")
        for step, targets in ((6, 2 * 16 * 16), (10, 2 * 8 * 32)):
            where = f"checkpoint.resume=checkpoints/step_{step:08}"
            self.assertIn(f"tokens {targets}\n", self.run_octavo("evaluate", config, where, *validation).out)
        self.assertIn(f"tokens {2 * 8 * 32}\n", self.run_octavo("evaluate", "checkpoints", *validation).out)
        plan = json.loads(self.run_octavo("plan", config, "--json", "stages=[{steps: 2}, {steps: 2, data: {seq_len: 64}}]",
                                          "training.steps=4").out)
        self.assertEqual((plan["stage"], plan["seq_len"]), (2, 64))
