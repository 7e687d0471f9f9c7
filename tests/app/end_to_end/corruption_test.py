"""Tests of the check for silent corruption. A test flips bits in the memory of a running rank from outside. Runs without corruption must
not change."""

import os
import re
import signal
import socket
import time
from pathlib import Path

from support import ALLOW_SCHEDULE, DEVICE, FAILED, HANG_S, checkpoint_tensors, checkpoints
from training_test import Corpus

LARGEST_MAPPING = 1 << 30  # In bytes. Larger memory mappings of a process are those of sanitizers.


def rank_pid(rank, directory):
    """Returns the process id of a rank among the processes that run in the directory. Concurrent tests have other directories."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes().split(b"\0")
            command = (path / "cmdline").read_bytes().split(b"\0")
            where = (path / "cwd").resolve()
        except OSError:
            continue
        if where != directory.resolve():
            continue
        if f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment and command[0] == os.environ["OCTAVO"].encode():
            return int(path.name)
    raise AssertionError(f"no rank {rank} runs in {directory}")


def copies_of(pid, content):
    """Returns the addresses of `content` in the memory of the process."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end, access = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            begin, end = int(begin, 16), int(end, 16)
            if not access.startswith("rw") or end - begin > LARGEST_MAPPING:
                continue
            memory.seek(begin)
            try:
                bytes_there = memory.read(end - begin)
            except OSError:
                continue
            at = bytes_there.find(content)
            while at >= 0:
                found.append(begin + at)
                at = bytes_there.find(content, at + 1)
    return found


def flip_bits(pids, content):
    """Flips a bit in every copy of `content` in the memory of these processes, which are stopped meanwhile. Returns the number of
    copies."""
    flipped = 0
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        for pid in pids:
            places = copies_of(pid, content)
            with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                for place in places:
                    memory.seek(place)
                    memory.write(bytes([content[0] ^ 4]))
            flipped += len(places)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    return flipped


class CorruptionTest(Corpus):
    # With these values the weights stay equal to those in the checkpoint.
    STILL = {"lr": 1e-30, "min_lr_ratio": 0.0, "weight_decay": 0.0}

    def start_and_corrupt(self, *overrides, ranks=3, victim=1):
        if DEVICE != "cpu":
            self.skipTest("needs weights in the memory of the process")
        config = self.config(
            self.corpus,
            training={"steps": 100000, "global_batch_size": 2 * ranks, "micro_batch_size": 1, "corruption_check_every": 5},
            optimizer=self.STILL,
            checkpoint={"every": 10, "keep": 0},  # The test reads a checkpoint while the run continues.
        )
        process = self.start("train", config, "parallel.data_parallel_replicate=" + str(ranks), *overrides, ranks=ranks)
        self.wait_for(lambda: checkpoints(self.dir / "checkpoints"), process)
        directory = self.dir / "checkpoints" / checkpoints(self.dir / "checkpoints")[-1]
        content = checkpoint_tensors(directory)["model.layers.1.mlp.up_proj.weight"][-1][512:640]
        pid = rank_pid(victim, self.dir)
        try:
            self.assertGreater(flip_bits([pid], content), 0)
        except PermissionError:
            self.skipTest("needs to write into the memory of its children")
        return config, process, pid

    def test_a_flipped_bit_ends_the_run_and_is_not_saved(self):
        config, process, _ = self.start_and_corrupt()
        result = self.finish(process)
        self.assertEqual(result.code, FAILED, result.err)
        (line,) = result.octavo_lines()
        found = re.fullmatch(
            r"octavo: step (\d+): silent corruption on rank 1 on (\S+): replicas differ in weights of block 1 \(shard 0\)"
            r".*; the last checkpoint is (\S+)", line)
        self.assertTrue(found, line)
        self.assertEqual(found[2], socket.gethostname())
        newest = checkpoints(self.dir / "checkpoints")[-1]
        self.assertTrue(found[3].endswith(newest), line)
        step = int(newest[-8:])
        self.assertLess(step, int(found[1]))
        # The checkpoint was saved before the corruption, so the run resumes from it.
        self.train(config, f"training.steps={step + 10}", "parallel.data_parallel_replicate=3", ALLOW_SCHEDULE, ranks=3)
        self.assertIn(step + 10, self.metrics())

    def test_a_warning_keeps_the_run_and_saves_nothing_more(self):
        _, process, pid = self.start_and_corrupt("training.on_corruption=warn", ranks=2)
        step = max(self.metrics())
        self.wait_for(lambda: max(self.metrics()) > step + 25, process)
        os.kill(pid, signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, FAILED, result.err)  # The final checkpoint is not saved.
        (line,) = result.octavo_lines()
        self.assertRegex(line, r"the checkpoint of step \d+ is not saved, because its replicas differ; it is the final checkpoint, "
                               r"and the last good one is \S+" + checkpoints(self.dir / "checkpoints")[-1])
        text = result.out + result.err
        found = re.search(r"step (\d+): silent corruption on rank 0 on \S+ or rank 1 on \S+: replicas differ in weights", text)
        self.assertTrue(found, text)
        self.assertRegex(text, r"the checkpoint of step \d+ is not saved, because its replicas differ")
        self.assertLess(int(checkpoints(self.dir / "checkpoints")[-1][-8:]), int(found[1]))

    def test_a_sound_run_is_not_changed(self):
        """The check changes no bit of the metrics, with statistics of FP8 casts, and with and without gradient accumulation."""
        for rows in (2, 4):
            config = self.config(
                self.corpus,
                data={"document_mask": True},
                training={"steps": 4, "global_batch_size": rows, "micro_batch_size": 1},
                precision={"linear": "fp8_delayed"},
                logging={"fp8_stats_every": 2},
            )
            runs = []
            for every in (0, 1):
                log = f"log{rows}_{every}"
                self.train(config, f"training.corruption_check_every={every}", f"logging.dir={log}", f"checkpoint.dir={log}_saved",
                           ranks=2)
                timing = ("wps", "tflops", "step_ms", "data_ms", "memory_gib", "goodput", "wall_s")
                runs.append([{key: value for key, value in entry.items() if key not in timing}
                             for entry in self.metrics(log).values()])
            self.assertEqual(*runs)


class SlowRankTest(Corpus):
    def test_a_slow_rank_is_named(self):
        """A step takes longer than the time between two pauses, so every step includes a pause."""
        config = self.config(self.corpus, model={"hidden_size": 256, "intermediate_size": 768, "num_layers": 2, "num_heads": 4,
                                                 "num_kv_heads": 2, "vocab_size": 272},
                             data={"seq_len": 128}, training={"steps": 100000, "global_batch_size": 4, "micro_batch_size": 1},
                             logging={"slow_rank_every": 1})
        process = self.start("train", config, ranks=2)
        log = self.dir / "log/log.txt"
        self.wait_for(lambda: log.exists() and "step 3/" in log.read_text(), process)
        pid = rank_pid(1, self.dir)
        deadline = time.monotonic() + HANG_S
        # Other work on the machine may first make rank 0 slow.
        slow = re.compile(r"rank 1 on \S+ is slow in computing: the other ranks wait for it for \d+ ms of a step of \d+ ms")
        while not slow.search(log.read_text()) and time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.03)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        self.finish(process)
        self.assertRegex(log.read_text(), slow)
