"""The state kept in host memory: a run that died goes on from there, not from disk."""

import os
import shutil
import signal
from pathlib import Path

from resume_test import Resuming, parent
from support import DONE, checkpoints, metrics_lines


def kept_in_memory():
    return {path for path in Path("/dev/shm").glob(f"octavo_{os.getuid()}_*") if any(path.glob("step_*"))}


class InMemoryTest(Resuming):
    def setUp(self):
        super().setUp()
        self.before = set(Path("/dev/shm").glob(f"octavo_{os.getuid()}_*"))

    def tearDown(self):
        for path in set(Path("/dev/shm").glob(f"octavo_{os.getuid()}_*")) - self.before:
            shutil.rmtree(path)

    def endless(self, **checkpoint):
        return self.ten_steps(training={"steps": 1_000_000, "micro_batch_size": 1}, optimizer={"schedule": "constant"},
                              checkpoint={"every": 25, "in_memory": True, "in_memory_every": 2} | checkpoint)

    def kill_behind(self, config, lines, ranks):
        process = self.start("train", config, ranks=ranks)
        # Steps take a few milliseconds, and what goes to disk is behind them.
        self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") >= lines
                      and (self.dir / "checkpoints/step_00000025").is_dir(), process)
        for name in os.listdir("/proc"):
            if ranks > 1 and name.isdigit() and parent(int(name)) == process.pid:
                os.kill(int(name), signal.SIGKILL)
                break
        else:
            process.kill()
        self.assertNotEqual(self.finish(process).code, DONE)

    def test_a_killed_run_goes_on_from_memory(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                for name in ("checkpoints", "log", "whole", "whole_log"):
                    shutil.rmtree(self.dir / name, ignore_errors=True)
                config = self.endless()
                self.kill_behind(config, 35, ranks)
                kept = kept_in_memory()
                self.assertEqual(len(kept), 1)
                step = int(checkpoints(kept.pop())[-1][5:])
                self.assertGreater(step, 25)
                result = self.train(config, f"training.steps={step + 5}", ranks=ranks)
                self.assertRegex(result.out, rf"resuming /dev/shm/octavo_\S+/step_{step:08} after step {step}")
                self.assertEqual(kept_in_memory(), set(), "a run that ends frees it")
                self.assertEqual(checkpoints(self.dir / "checkpoints")[-1], f"step_{step + 5:08}")
                self.train(config, f"training.steps={step + 5}", "checkpoint.dir=whole", "logging.dir=whole_log", ranks=ranks)
                losses = {at: numbers for at, numbers in self.losses().items() if at <= step + 5}  # it may have come further
                self.assertEqual(losses, self.losses("whole_log"))

    def test_what_is_damaged_in_memory_is_left(self):
        config = self.endless()
        self.kill_behind(config, 35, 1)
        for path in kept_in_memory():
            for shard in path.glob("step_*/rank_*.safetensors"):
                content = bytearray(shard.read_bytes())
                content[-5] ^= 1
                shard.write_bytes(content)
        result = self.train(config, "training.steps=40")
        self.assertIn("resuming checkpoints/step_00000025", result.out)
        self.assertIn("the run goes on from disk", result.out)

    def test_a_run_that_keeps_nothing_frees_what_was_left(self):
        config = self.endless()
        self.kill_behind(config, 35, 1)
        other = Path("/dev/shm") / f"octavo_{os.getuid()}_of_another_directory"
        (other / "step_00000001").mkdir(parents=True)
        self.assertEqual(len(kept_in_memory()), 2)
        result = self.train(config, "training.steps=30", "checkpoint.in_memory=false")
        self.assertIn("resuming checkpoints/step_00000025", result.out)
        self.assertEqual(kept_in_memory(), {other})

    def test_never_begins_anew(self):
        config = self.endless()
        self.kill_behind(config, 35, 1)
        result = self.train(config, "training.steps=3", "checkpoint.resume=never")
        self.assertNotIn("resuming", result.out)
        self.assertEqual(kept_in_memory(), set())
