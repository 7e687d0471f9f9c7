"""Tests that kill a run with SIGKILL at random moments. It must resume by itself every time and give the results of an uninterrupted run.

OCTAVO_KILL_CYCLES sets the number of kills, a hundred by default. OCTAVO_KILL_SEED selects other random kills. A nightly run uses:

    OCTAVO_KILL_CYCLES=1000 OCTAVO_KILL_SEED=2 python3 tests/app/end_to_end_test.py build/octavo KillCyclesTest
"""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress

from resume_test import Resuming, parent
from support import AT_ONCE, DONE, checkpoints, metrics_lines

CYCLES = int(os.environ.get("OCTAVO_KILL_CYCLES", "100"))
SEED = int(os.environ.get("OCTAVO_KILL_SEED", "11"))

RANKS = (1, 2, 3, 4)
BATCH = 12  # Every number of RANKS divides the batch.
VICTIMS = ("one rank", "all ranks", "mpirun", "mpirun and all ranks")
MOMENTS = ("start", "reading", "step", "saving")
# The model is wide, so that writing takes longer than computing and many kills happen while a checkpoint is written.
WIDE = {"hidden_size": 256, "num_layers": 1, "intermediate_size": 512, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32}
LONGEST_END_S = 30  # Time that ranks without an mpirun may take to end.


def processes_below(pid):
    """Returns the descendants of a process, parents first."""
    below = [int(name) for name in os.listdir("/proc") if name.isdigit() and parent(int(name)) == pid]
    return below + [other for child in below for other in processes_below(child)]


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def send_kill(pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class KillCyclesTest(Resuming):
    def kill_config(self, ranks, stages):
        return self.ten_steps(
            model=WIDE | {"num_layers": stages},
            parallel={"pipeline_parallel": stages},
            training={"steps": 1_000_000, "global_batch_size": BATCH, "micro_batch_size": BATCH // ranks},
            data={"seq_len": 8},
            optimizer={"schedule": "constant"},
            checkpoint={"every": 1, "keep": 2, "async": True},
        )

    def wait_until(self, condition, process):
        """Waits for the condition. Returns False if the process ended first."""
        deadline = time.monotonic() + 60
        while not condition():
            if process.poll() is not None:
                return False
            self.assertLess(time.monotonic(), deadline, self.cycle)
            time.sleep(0.001)
        return True

    def wait_for_moment(self, moment, rng, process, start_s):
        log, saved = self.dir / "log/metrics.jsonl", self.dir / "checkpoints"
        before = metrics_lines(log)
        if moment == "start":
            time.sleep(rng.uniform(0, start_s))
            return
        if moment == "reading":
            self.wait_until(lambda: b"resuming" in os.pread(process.captured[0].fileno(), 100_000, 0)
                            or metrics_lines(log) > before, process)
        else:
            steps = rng.randint(1, 4)
            self.wait_until(lambda: metrics_lines(log) >= before + steps, process)
        if moment == "saving":
            self.wait_until(lambda: any(saved.glob(".tmp_*")), process)
        time.sleep(rng.uniform(0, 0.01 if moment == "saving" else 0.05))

    def kill(self, victim, moment, rng, process, ranks):
        """Kills the victim and waits until all processes of the run have ended."""
        below = processes_below(process.pid)
        if ranks == 1 or victim == "mpirun":
            process.kill()
        elif victim == "one rank" and below:
            send_kill([rng.choice(below)])
        elif victim == "all ranks" and below:
            send_kill(below)
        else:
            process.kill()
            send_kill(below)
        try:
            result = self.finish(process)
        except subprocess.TimeoutExpired:
            # Open MPI may hang here: if its ranks are killed while mpirun starts them, it may wait for them forever.
            self.assertEqual(moment, "start", f"{self.cycle}: mpirun does not end")
            process.kill()
            send_kill(below)
            result = self.finish(process)
        self.assertNotEqual(result.code, DONE, self.cycle)
        deadline = time.monotonic() + LONGEST_END_S
        while any(map(is_running, below)):
            # A rank that is still starting may wait forever, inside Open MPI, for the mpirun that started it.
            if victim == "mpirun" and moment == "start" and time.monotonic() > deadline - 1:
                send_kill(below)
            self.assertLess(time.monotonic(), deadline, f"{self.cycle}: a rank goes on by itself")
            time.sleep(0.01)

    def check_checkpoints(self, inspected):
        directory = self.dir / "checkpoints"
        saved = checkpoints(directory) if directory.exists() else []
        self.assertLessEqual(len(saved), 4, self.cycle)
        for name in saved:
            self.assertTrue((directory / name / "manifest.json").exists(), f"{self.cycle}: {name} is not complete")
        if not saved or not inspected:
            return
        self.assertTrue(json.loads(self.run_octavo("inspect", directory / saved[-1]).out)["intact"], self.cycle)

    def check_run(self, config, ranks):
        """Lets the run finish without a kill, and compares it with an uninterrupted run of as many steps."""
        total = int(checkpoints(self.dir / "checkpoints")[-1][5:]) + 3
        self.train(config, f"training.steps={total}", ranks=ranks)
        hidden = [path.name for path in (self.dir / "checkpoints").iterdir() if path.name.startswith(".")]
        self.assertEqual(hidden, [], self.cycle)
        where = ("logging.dir=whole", "checkpoint.dir=whole", "checkpoint.every=0")
        self.train(config, f"training.steps={total}", *where, ranks=ranks)
        self.assertEqual(self.losses(), self.losses("whole"), self.cycle)
        lines = [json.loads(line) for line in (self.dir / "log/metrics.jsonl").read_text().splitlines()]
        steps = [line["step"] for line in lines]
        self.assertEqual(steps, list(range(1, total + 1)), f"{self.cycle}: a line for each step, and none twice")
        return total

    def check_cycles(self, ranks, stages=1):
        rng = random.Random(f"{SEED} {ranks}")
        config = self.kill_config(ranks, stages)
        cycles = CYCLES // len(RANKS) + (RANKS.index(ranks) < CYCLES % len(RANKS))
        start_s = 0.5
        for number in range(cycles):
            victim, moment = rng.choice(VICTIMS), rng.choice(MOMENTS)
            asynchronous = rng.choice(("true", "false"))
            # In some cycles the other ranks have the two seconds that mpirun grants by default.
            variables = rng.choice(({}, AT_ONCE, AT_ONCE, AT_ONCE, AT_ONCE))
            self.cycle = (f"seed {SEED}, {ranks} ranks in {stages} pipeline stages, cycle {number}: SIGKILL of {victim} at {moment}, "
                          f"checkpoint.async={asynchronous}")
            began = time.monotonic()
            process = self.start("train", config, f"checkpoint.async={asynchronous}", ranks=ranks, variables=variables)
            self.wait_for_moment(moment, rng, process, start_s)
            if moment == "reading":
                start_s = time.monotonic() - began
            self.kill(victim, moment, rng, process, ranks)
            self.check_checkpoints(inspected=rng.random() < 0.2)
        total = self.check_run(config, ranks)
        print(f"{ranks} ranks: {cycles} kills, {total} steps, seed {SEED}", flush=True)
        self.assertGreater(total, cycles // 5)

    def test_1_rank(self):
        self.check_cycles(1)

    def test_2_ranks(self):
        self.check_cycles(2)

    def test_3_ranks(self):
        self.check_cycles(3)

    def test_4_ranks(self):
        self.check_cycles(4)

    def test_4_ranks_in_2_pipeline_stages(self):
        self.check_cycles(4, stages=2)
