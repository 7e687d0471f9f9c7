"""Tests of saves that take longer than the steps between them: they are postponed, and the final save drops them."""

import json
import os
import unittest
from pathlib import Path

from resume_test import Resuming
from support import DONE, checkpoints

INJECTOR = Path(os.environ["OCTAVO"]).parent / "tests/liboctavo_fault_injection.so"
# Each save of these runs writes a single block, which takes a second. A step takes milliseconds.
SLOW = {"LD_PRELOAD": str(INJECTOR), "OCTAVO_FAULT": "pwrite:1+:SLOW"}


@unittest.skipUnless(INJECTOR.exists(), "this build has no library that injects faults")
class SlowSavesTest(Resuming):
    def setUp(self):
        super().setUp()
        self.file = self.ten_steps(checkpoint={"every": 2, "keep": 0, "async": True}, optimizer={"schedule": "constant"})

    def train_slowly(self, *overrides, code=DONE):
        result = self.finish(self.start("train", self.file, *overrides, variables=SLOW))
        self.assertEqual(result.code, code, result.out + result.err)
        self.assertEqual([path.name for path in (self.dir / "checkpoints").iterdir() if path.name.startswith(".")], [])
        return result.out

    def steps_saved(self):
        return [int(name[5:]) for name in checkpoints(self.dir / "checkpoints")]

    def test_a_due_save_is_postponed_and_the_first_checkpoint_is_completed(self):
        out = self.train_slowly()
        self.assertEqual(out.count("the due checkpoint is postponed, because the previous one is still being written"), 1, out)
        self.assertIn("step 4: the due checkpoint is postponed", out)
        # Without the checkpoint of step 2 there would be none until that of step 10 is complete.
        self.assertEqual(self.steps_saved(), [2, 10])
        self.assert_same_run(self.reference(self.file, "checkpoint.every=0"))

    def test_a_postponed_save_is_made_when_the_previous_one_is_complete(self):
        self.train_slowly("training.steps=1000", "training.micro_batch_size=1")
        first, second, *_ = self.steps_saved()
        self.assertEqual(first, 2)
        self.assertGreater(second, 4)
        waits = [entry["wall_s"] for entry in self.metrics().values()]
        self.assertLess(max(b - a for a, b in zip(waits, waits[1:])), 0.9, "no step waits for a save, which takes a second")

    def test_the_final_save_drops_a_pending_one(self):
        self.train(self.file, "training.steps=4", "checkpoint.every=0")
        out = self.train_slowly()
        self.assertIn("the checkpoint of step 6 was still being written and is dropped", out)
        self.assertEqual(self.steps_saved(), [4, 10])
        self.assert_same_run(self.reference(self.file, "checkpoint.every=0"))

    def test_the_final_save_completes_a_checkpoint_that_is_never_removed(self):
        self.train(self.file, "training.steps=4", "checkpoint.every=0")
        out = self.train_slowly("checkpoint.keep_every=6", "checkpoint.keep=1")
        self.assertNotIn("dropped", out)
        self.assertEqual(self.steps_saved(), [6, 10])

    def test_a_kill_during_a_save_leaves_the_checkpoint_before_it(self):
        self.train(self.file, "training.steps=4", "checkpoint.every=0")
        process = self.start("train", self.file, "training.steps=100000", variables=SLOW)
        temporary = self.dir / "checkpoints/.tmp_step_00000006"
        self.wait_for(temporary.is_dir, process)
        process.kill()
        process.wait()
        self.assertEqual(self.steps_saved(), [4])
        out = self.train(self.file).out
        self.assertIn("step_00000004", out)
        self.assertFalse(temporary.exists())
        self.assert_same_run(self.reference(self.file, "checkpoint.every=0"))

    def test_goodput_names_what_took_the_time(self):
        """The final save takes most of this run."""
        self.train_slowly("checkpoint.every=0")
        goodput = json.loads((self.dir / "log/goodput.json").read_text())
        self.assertGreater(goodput["saving_s"], 0.9)
        named = sum(seconds for key, seconds in goodput.items() if key.endswith("_s") and key != "wall_s")
        self.assertGreater(named, 0.97 * goodput["wall_s"], goodput)
