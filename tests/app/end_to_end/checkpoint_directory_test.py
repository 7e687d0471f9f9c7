"""Tests of checkpoint directories: damaged checkpoints, locks against a second run, new runs in used directories, and which checkpoints are
kept."""

import json
import shutil
import signal
import time

from resume_test import Resuming
from support import AT_ONCE, BAD_INPUT, DONE, HANG_S, STOPPED, checkpoints, copy_tree, metrics_lines, snapshot


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def cut(path, amount):
    path.write_bytes(path.read_bytes()[:-amount])


def damages(checkpoint):
    """Returns functions that damage a checkpoint on disk, by the kind of damage."""
    shard, manifest = sorted(checkpoint.glob("rank_*"))[-1], checkpoint / "manifest.json"
    size = shard.stat().st_size
    return {
        "weights": lambda: flip(shard, size // 3),
        "last byte": lambda: flip(shard, size - 1),
        "header": lambda: flip(shard, 30),
        "header length": lambda: flip(shard, 0),
        "truncated shard": lambda: cut(shard, 100),
        "empty shard": lambda: cut(shard, size),
        "no shard": shard.unlink,
        "manifest number": lambda: flip(manifest, manifest.read_bytes().index(b'"step"') + 8),
        "manifest version": lambda: flip(manifest, manifest.read_bytes().index(b'"version"') + 11),
        "manifest text": lambda: flip(manifest, manifest.stat().st_size // 2),
        "truncated manifest": lambda: cut(manifest, 50),
        "empty manifest": lambda: manifest.write_text(""),
        "foreign manifest": lambda: manifest.write_text('{"a": [1, 2]}'),
        "manifest of a list": lambda: manifest.write_text("[]"),
    }


class DamagedCheckpointTest(Resuming):
    def saved(self, ranks=1):
        """Trains six steps with a checkpoint every two steps. Each case of damage then repeats two steps."""
        config = self.ten_steps(training={"steps": 6}, checkpoint={"every": 2, "keep": 0}, optimizer={"schedule": "constant"})
        shutil.rmtree(self.dir / "log", ignore_errors=True)
        shutil.rmtree(self.dir / "checkpoints", ignore_errors=True)
        shutil.rmtree(self.dir / "backup", ignore_errors=True)
        self.train(config, ranks=ranks)
        return config, copy_tree(self.dir / "checkpoints", self.dir / "backup"), self.losses()

    def restore(self, saved):
        shutil.rmtree(self.dir / "checkpoints")
        copy_tree(saved, self.dir / "checkpoints")

    def test_auto_takes_the_one_before(self):
        for ranks in (1, 2):
            config, saved, losses = self.saved(ranks)
            directory = self.dir / "checkpoints"
            for name in damages(directory / "step_00000006"):
                if ranks == 2 and name not in ("weights", "no shard", "truncated manifest"):
                    continue
                with self.subTest(name, ranks=ranks):
                    damages(directory / "step_00000006")[name]()
                    damaged = {path.name: data for path, data in snapshot(directory / "step_00000006").items()}
                    shutil.rmtree(self.dir / "log")
                    result = self.train(config, "training.steps=7", ranks=ranks)
                    self.assertIn("resuming checkpoints/step_00000004", result.out)
                    self.assertRegex(result.out, "checkpoints/step_00000006 is damaged and was renamed to checkpoints/damaged_step_00000006; "
                                                 "checkpoints/step_00000004 is used instead: checkpoints/step_00000006/")
                    self.assertEqual(sorted(self.losses()), [5, 6, 7])
                    self.assertEqual({step: self.losses()[step] for step in (5, 6)}, {step: losses[step] for step in (5, 6)})
                    self.assertEqual(checkpoints(directory), [f"step_{step:08}" for step in (2, 4, 6, 7)])
                    aside = snapshot(directory / "damaged_step_00000006")
                    self.assertEqual({path.name: data for path, data in aside.items()}, damaged, "the damaged checkpoint is unchanged")
                    self.restore(saved)
            shutil.rmtree(directory)
            shutil.rmtree(saved)

    def test_several_damaged_ones(self):
        config, saved, _ = self.saved()
        directory = self.dir / "checkpoints"
        flip(directory / "step_00000006/rank_00000.safetensors", 5000)
        cut(directory / "step_00000004/manifest.json", 10)
        (directory / "damaged_step_00000006").mkdir()
        result = self.train(config, "training.steps=7")
        self.assertIn("resuming checkpoints/step_00000002", result.out)
        self.assertEqual(sorted(path.name for path in directory.glob("damaged_*")),
                         ["damaged_step_00000004", "damaged_step_00000006", "damaged_step_00000006_2"])
        self.restore(saved)
        for step in (2, 4, 6):
            flip(directory / f"step_{step:08}/rank_00000.safetensors", 5000)
        before = snapshot(directory)
        for ranks in (1, 2):
            self.refused("train", config, "training.steps=7", ranks=ranks,
                         mentions=["all 3 checkpoints are damaged", "step_00000006"])
        self.assertEqual(snapshot(directory), before)

    def test_a_path_and_other_commands_refuse_it(self):
        config, saved, _ = self.saved()
        newest = self.dir / "checkpoints/step_00000006"
        for name in damages(newest):
            with self.subTest(name):
                damages(newest)[name]()
                before = snapshot(self.dir / "checkpoints")
                for path in ("checkpoints/step_00000006", "checkpoints"):
                    self.refused("train", config, "training.steps=7", f"checkpoint.resume={path}", mentions=["step_00000006"])
                self.assertIn(self.finish(self.start("inspect", newest)).code, (DONE, BAD_INPUT))
                self.assertEqual(snapshot(self.dir / "checkpoints"), before)
                self.restore(saved)
        flip(newest / "rank_00000.safetensors", 5000)
        self.refused("train", config, f"checkpoint.resume={newest}", ranks=2, mentions=["step_00000006"])
        self.assertEqual(self.finish(self.start("inspect", newest)).code, BAD_INPUT)
        self.refused("generate", newest, "--prompt", "x", mentions=["step_00000006"])
        self.refused("export", newest, "exported", mentions=["step_00000006"])
        self.assertFalse((self.dir / "exported/model.safetensors").exists())

    def test_unreadable_checkpoints_are_not_skipped(self):
        config, _, _ = self.saved()
        shard = self.dir / "checkpoints/step_00000006/rank_00000.safetensors"
        shard.rename(self.dir / "shard")
        shard.symlink_to("/nowhere")
        self.refused("train", config, "training.steps=7", mentions=["step_00000006"])


class RunLockTest(Resuming):
    def long_run(self, *overrides, ranks=1):
        config = self.ten_steps(training={"steps": 100_000, "micro_batch_size": 2}, optimizer={"schedule": "constant"})
        return self.start("train", config, *overrides, ranks=ranks)

    def losers(self, pairs):
        """Returns for each pair of runs the number of the one that has ended. The pairs run concurrently, because each waits for
        the time that the other run may need to end."""
        deadline = time.monotonic() + HANG_S
        while any(run_a.poll() is None and run_b.poll() is None for run_a, run_b in pairs):
            self.assertLess(time.monotonic(), deadline, "neither was refused")
            time.sleep(0.05)
        for pair in pairs:
            [loser] = [i for i in range(2) if pair[i].poll() is not None]
            yield loser

    def test_two_runs_at_once(self):
        """One run trains, the other one is refused, and nothing is overwritten."""
        config = self.ten_steps(training={"steps": 100_000, "micro_batch_size": 2})
        pairs = [[self.start("train", config, f"checkpoint.dir=shared{attempt}", f"logging.dir=log{attempt}_{i}", "checkpoint.every=20",
                             ranks=1 + attempt % 2, variables=AT_ONCE) for i in range(2)] for attempt in range(4)]
        for attempt, loser in enumerate(self.losers(pairs)):
            with self.subTest(attempt=attempt):
                runs = pairs[attempt]
                refused = self.finish(runs[loser])
                self.assertEqual(refused.code, BAD_INPUT, refused.err)
                [sentence] = refused.octavo_lines()
                self.assertRegex(sentence, rf"checkpoint.dir shared{attempt}: is in use by another run, process \d+ on \S+;")
                winner, log = runs[1 - loser], self.dir / f"log{attempt}_{1 - loser}/metrics.jsonl"
                self.wait_for(lambda: metrics_lines(log) >= 25, winner)
                winner.send_signal(signal.SIGUSR1)
                self.assertEqual(self.finish(winner).code, STOPPED)
                self.assertEqual(metrics_lines(self.dir / f"log{attempt}_{loser}/metrics.jsonl"), 0)
                for name in checkpoints(self.dir / f"shared{attempt}"):
                    self.assertTrue(json.loads(self.run_octavo("inspect", f"shared{attempt}/{name}").out)["intact"])
                self.assertFalse((self.dir / f"shared{attempt}/lock").exists())

    def test_one_log_for_two_runs(self):
        """Tests the lock of logging.dir, which may also be checkpoint.dir."""
        config = self.ten_steps(training={"steps": 100_000, "micro_batch_size": 2})
        pairs = [[self.start("train", config, f"checkpoint.dir={name}", f"logging.dir=log{ranks}", ranks=ranks, variables=AT_ONCE)
                  for name in directories] for ranks, directories in ((1, ("a", "b")), (2, ("log2", "c")))]
        for ranks, loser in enumerate(self.losers(pairs), start=1):
            with self.subTest(ranks=ranks):
                runs = pairs[ranks - 1]
                refused = self.finish(runs[loser])
                self.assertEqual(refused.code, BAD_INPUT, refused.err)
                [sentence] = refused.octavo_lines()
                self.assertRegex(sentence, rf"logging.dir log{ranks}: is in use by another run, process \d+ on \S+; use another directory$")
                winner, log = runs[1 - loser], self.dir / f"log{ranks}"
                self.wait_for(lambda: metrics_lines(log / "metrics.jsonl") >= 5, winner)
                winner.send_signal(signal.SIGUSR1)
                self.assertEqual(self.finish(winner).code, STOPPED)
                steps = [json.loads(line)["step"] for line in (log / "metrics.jsonl").read_text().splitlines()]
                self.assertEqual(steps, list(range(1, len(steps) + 1)))
                self.assertEqual(metrics_lines(log / "starts.jsonl"), 1)
                self.assertFalse((log / "log.lock").exists())

    def test_a_run_that_ends_is_waited_for(self):
        for number in (signal.SIGKILL, signal.SIGUSR1):
            first = self.long_run()
            log = self.dir / "log/metrics.jsonl"
            lines = metrics_lines(log)
            self.wait_for(lambda: metrics_lines(log) > lines + 2, first)
            second = self.long_run("logging.dir=second")
            time.sleep(1)
            self.assertIsNone(second.poll(), "it waits")
            first.send_signal(number)
            self.finish(first)
            self.wait_for(lambda: metrics_lines(self.dir / "second/metrics.jsonl") > 2, second)
            second.send_signal(signal.SIGUSR1)
            self.assertEqual(self.finish(second).code, STOPPED)
            shutil.rmtree(self.dir / "second")


class LineageTest(Resuming):
    def test_never_leaves_the_old_run(self):
        config = self.ten_steps(checkpoint={"every": 4, "keep": 0}, optimizer={"schedule": "constant"})
        for ranks in (1, 2):
            directory = self.dir / f"on{ranks}"
            where = (f"checkpoint.dir=on{ranks}", f"logging.dir=log{ranks}")
            self.train(config, *where, ranks=ranks)
            before = {path.relative_to(directory): data for path, data in snapshot(directory).items()}
            result = self.train(config, *where, "checkpoint.resume=never", "training.steps=3", "training.seed=5", ranks=ranks)
            self.assertIn(f"3 checkpoints of another run, up to step_00000010, moved to on{ranks}/earlier", result.out)
            self.assertEqual(checkpoints(directory), ["step_00000003"])
            earlier = directory / "earlier"
            self.assertEqual({path.relative_to(earlier): data for path, data in snapshot(earlier).items()}, before)
            result = self.train(config, *where, "training.seed=5", ranks=ranks)
            self.assertIn(f"resuming on{ranks}/step_00000003", result.out)
            # The old run can be resumed, and the new run is then moved aside.
            result = self.train(config, *where, f"checkpoint.resume=on{ranks}/earlier/step_00000008", ranks=ranks)
            self.assertIn(f"moved to on{ranks}/earlier_2", result.out)
            self.assertEqual(checkpoints(directory), ["step_00000010"])
            self.assertEqual(checkpoints(directory / "earlier_2"), ["step_00000003", "step_00000004", "step_00000008", "step_00000010"])

    def test_resuming_an_older_checkpoint(self):
        config = self.ten_steps(checkpoint={"every": 2, "keep": 0}, optimizer={"schedule": "constant"})
        self.train(config)
        losses = self.losses()
        result = self.train(config, "checkpoint.resume=checkpoints/step_00000004", "training.steps=5")
        self.assertIn("3 checkpoints of another run, up to step_00000010, moved to checkpoints/earlier", result.out)
        self.assertEqual(checkpoints(self.dir / "checkpoints"), ["step_00000002", "step_00000004", "step_00000005"])
        self.assertIn("resuming checkpoints/step_00000005", self.train(config).out)
        self.assertEqual({step: self.losses()[step] for step in range(6, 11)}, {step: losses[step] for step in range(6, 11)})

    def test_a_start_that_is_refused_moves_nothing(self):
        config = self.ten_steps(checkpoint={"every": 4, "keep": 0})
        self.train(config)
        before = snapshot(self.dir / "checkpoints")
        self.refused("train", config, "checkpoint.resume=never", "data.train=[nowhere]", mentions=["nowhere"])
        self.refused("train", config, "checkpoint.resume=checkpoints/step_00000004", "data.seed=9", mentions=["data.seed 1234 -> 9"])
        (self.dir / "occupied/metrics.jsonl").mkdir(parents=True)
        self.refused("train", config, "checkpoint.resume=never", "logging.dir=occupied", mentions=["occupied/metrics.jsonl"])
        self.assertEqual(sorted(path.name for path in (self.dir / "occupied").iterdir()), ["metrics.jsonl"])
        self.assertEqual(snapshot(self.dir / "checkpoints"), before)


class KeptCheckpointsTest(Resuming):
    def test_keep_every(self):
        config = self.ten_steps()
        for ranks, mode in ((1, "true"), (1, "false"), (2, "true")):
            name = f"kept_{ranks}_{mode}"
            self.train(config, "checkpoint.every=1", "checkpoint.keep=2", "checkpoint.keep_every=4", f"checkpoint.dir={name}",
                       f"logging.dir={name}_log", f"checkpoint.async={mode}", ranks=ranks)
            self.assertEqual(checkpoints(self.dir / name), [f"step_{step:08}" for step in (4, 8, 9, 10)])

    def test_every_minutes(self):
        config = self.ten_steps(training={"steps": 100_000, "micro_batch_size": 2}, checkpoint={"keep": 0},
                                optimizer={"schedule": "constant"})
        for ranks in (1, 2):
            name = f"on{ranks}"
            process = self.start("train", config, "checkpoint.every_minutes=0.01", f"checkpoint.dir={name}",
                                 f"logging.dir=log{ranks}", ranks=ranks, variables=AT_ONCE)
            self.wait_for(lambda: len(checkpoints(self.dir / name)) >= 4, process)
            process.send_signal(signal.SIGUSR1)
            self.assertEqual(self.finish(process).code, STOPPED)
            steps = [int(path[5:]) for path in checkpoints(self.dir / name)]
            self.assertLess(len(steps), max(steps), "not after each step")
            self.assertIn(f"resuming {name}/step_{steps[-1]:08}",
                          self.train(config, f"checkpoint.dir={name}", f"logging.dir=log{ranks}",
                                     f"training.steps={steps[-1] + 1}", ranks=ranks).out)
