"""Tests of checkpoints in host memory: a run that died resumes from there and not from disk."""

import os
import shutil
import signal
from pathlib import Path

from resume_test import Resuming, parent
from support import BAD_INPUT, DONE, checkpoints, metrics_lines


def memory_directory(directory):
    """Returns the directory in memory that belongs to a checkpoint directory, or None if the file memory_id does not exist."""
    file = directory / "memory_id"
    return Path(f"/dev/shm/octavo_{file.read_text()}_{file.stat().st_ino}") if file.exists() else None


class InMemoryTest(Resuming):
    def kept_in_memory(self, directory="checkpoints"):
        """Returns the directory of the checkpoints in memory, which is removed at the end of the test."""
        path = memory_directory(self.dir / directory)
        self.assertTrue(path.is_dir() and any(path.glob("step_*")))
        self.addCleanup(shutil.rmtree, path, ignore_errors=True)
        return path

    def endless(self, **checkpoint):
        return self.ten_steps(training={"steps": 1_000_000, "micro_batch_size": 1}, optimizer={"schedule": "constant"},
                              checkpoint={"every": 25, "async": True, "in_memory": True, "in_memory_every": 2} | checkpoint)

    def kill_behind(self, config, lines, ranks):
        process = self.start("train", config, ranks=ranks)
        metrics = self.dir / "log/metrics.jsonl"
        self.wait_for(lambda: metrics_lines(metrics) >= lines, process)
        if lines > 25:  # A step takes a few milliseconds, so the checkpoint on disk may be complete only many steps later.
            self.wait_for((self.dir / "checkpoints/step_00000025").is_dir, process)
            last = metrics_lines(metrics) + 10
            self.wait_for(lambda: metrics_lines(metrics) >= last, process)
        for name in os.listdir("/proc"):
            if ranks > 1 and name.isdigit() and parent(int(name)) == process.pid:
                os.kill(int(name), signal.SIGKILL)
                break
        else:
            process.kill()
        self.assertNotEqual(self.finish(process).code, DONE)

    def test_a_killed_run_resumes_from_memory(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.remove_runs()
                config = self.endless()
                self.kill_behind(config, 35, ranks)
                kept = self.kept_in_memory()
                step = int(checkpoints(kept)[-1][5:])
                self.assertGreater(step, 25)
                result = self.train(config, f"training.steps={step + 5}", ranks=ranks)
                self.assertIn(f"resuming {kept}/step_{step:08} after step {step}", result.out)
                self.assertFalse(kept.exists(), "a run that ends frees it")
                self.assertIsNone(memory_directory(self.dir / "checkpoints"))
                self.assertEqual(checkpoints(self.dir / "checkpoints")[-1], f"step_{step + 5:08}")
                self.train(config, f"training.steps={step + 5}", "checkpoint.dir=whole", "logging.dir=whole_log", ranks=ranks)
                # The first run may have reached a later step.
                losses = {at: numbers for at, numbers in self.losses().items() if at <= step + 5}
                self.assertEqual(losses, self.losses("whole_log"))

    def test_a_run_that_keeps_nothing_frees_what_was_left(self):
        config = self.endless()
        self.kill_behind(config, 35, 1)
        kept = self.kept_in_memory()
        result = self.train(config, "training.steps=40", "logging.dir=other_log", "checkpoint.dir=other")
        self.assertNotIn("resuming", result.out)
        self.assertTrue(kept.exists(), "a run takes nothing of another directory's")
        result = self.train(config, "training.steps=30", "checkpoint.in_memory=false")
        self.assertIn("resuming checkpoints/step_00000025", result.out)
        self.assertFalse(kept.exists())

    def test_resume_never_starts_over(self):
        config = self.endless()
        self.kill_behind(config, 35, 1)
        kept = self.kept_in_memory()
        result = self.train(config, "training.steps=3", "checkpoint.resume=never")
        self.assertNotIn("resuming", result.out)
        self.assertFalse(kept.exists())

    def test_a_run_folder_that_was_removed_is_another_run(self):
        config = self.endless(every=1_000_000)
        self.kill_behind(config, 24, 1)
        self.kept_in_memory()
        for name in ("checkpoints", "log"):
            shutil.rmtree(self.dir / name)
        result = self.train(config, "training.steps=3", "training.seed=7")
        self.assertNotIn("resuming", result.out)
        self.assertEqual(checkpoints(self.dir / "checkpoints"), ["step_00000003"])

    def test_what_another_put_in_its_place_is_refused(self):
        config = self.endless()
        self.kill_behind(config, 35, 1)
        kept = self.kept_in_memory()
        planted = self.dir / "planted"
        shutil.move(kept, planted)
        kept.symlink_to(planted)
        self.addCleanup(kept.unlink)
        before = sorted(planted.rglob("*"))
        result = self.finish(self.start("train", config, "training.steps=40"))
        self.assertEqual(result.code, BAD_INPUT)
        self.assertIn(f"{kept}: is not a directory, expected one that this user created", result.err)
        self.train(config, "training.steps=30", "checkpoint.in_memory=false")
        self.assertEqual(sorted(planted.rglob("*")), before, "nothing is removed through a link")
