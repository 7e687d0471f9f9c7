#!/usr/bin/env python3
"""Tests that the other ranks end in time when one rank fails, with a message and a non-zero exit code.

    failing_ranks_check.py OCTAVO_FAILING_RANKS

mpirun ends all ranks when it notices that one has died. The options in LOOK_ON prevent this in tests of the watchdog.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

TIMEOUT_S = 1.5
RANKS = 3
GONE = r"octavo: rank [01]: rank 2 is gone \(killed, or it crashed\), so the run ends without saving a checkpoint$"
# Seconds allowed for the start, the collectives before the failure, and the time that mpirun takes to end the ranks on a busy machine.
SLACK_S = 25
# Options with which mpirun lets the other ranks continue after a rank has failed.
LOOK_ON = ["--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0"]
# With these options mpirun itself exits with 0, so the exit code of each rank is printed.
WITH_EXIT_CODE = ["sh", "-c", '"$@"; echo "rank $OMPI_COMM_WORLD_RANK: exit code $?"', "sh"]


def start(failure, collective, options=(), timeout_s=TIMEOUT_S):
    """Runs a failing case and returns mpirun's exit code, the lines of stderr from octavo, the exit code of each rank (only if
    `options` is LOOK_ON), and the seconds that it took."""
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1",
                       OMP_NUM_THREADS="1")
    command = ["mpirun", "-n", str(RANKS), "--oversubscribe", "--bind-to", "none", *options]
    begin = time.monotonic()
    wrapper = WITH_EXIT_CODE if options is LOOK_ON else []
    result = subprocess.run([*command, *wrapper, PROGRAM, failure, collective, str(TIMEOUT_S), str(timeout_s)], env=environment,
                            capture_output=True, text=True, timeout=TIMEOUT_S * 10 + SLACK_S)
    lines = [line for line in result.stderr.splitlines() if line.startswith("octavo: ")]
    codes = {int(rank): int(code) for rank, code in re.findall(r"rank (\d+): exit code (\d+)", result.stdout)}
    return result.returncode, lines, codes, time.monotonic() - begin


def start_each(cases):
    """Returns the arguments of start() and the result for each case. Four cases run at a time, because they wait for time limits."""
    with ThreadPoolExecutor(4) as pool:
        yield from zip(cases, pool.map(lambda case: start(*case), cases))


class FailingRanks(unittest.TestCase):
    def check_message(self, lines, where, missing):
        self.assertEqual(len(lines), 1, lines)
        pattern = rf"octavo: rank [01]: {re.escape(where)} did not complete within 1.5 s \(parallel.timeout_s\); {missing}$"
        self.assertRegex(lines[0], pattern)

    def test_nothing_fails(self):
        for (_, collective), (code, lines, *_) in start_each([("nothing", name) for name in ("all_reduce", "barrier", "agreement", "finalize")]):
            with self.subTest(collective=collective):
                self.assertEqual((code, lines), (0 if collective == "finalize" else 3, []), "the program's own exit code")

    def test_a_rank_that_is_busy_with_files(self):
        code, lines, *_ = start("nothing", "files")
        self.assertEqual((code, len(lines)), (3, 1), lines)
        self.assertRegex(lines[0], r"octavo: rank [01]: has waited for reading the checkpoint for more than 1.5 s; "
                                   r"rank 2 has not entered it$")

    def test_a_rank_that_ends_while_it_is_waited_for(self):
        cases = [(failure, "files", LOOK_ON) for failure in ("exits", "killed")]
        for (failure, *_), (_, lines, codes, seconds) in start_each(cases):
            with self.subTest(failure=failure):
                self.assertEqual(len(lines), 1, lines)
                self.assertRegex(lines[0], GONE)
                self.assertEqual({codes[rank] for rank in (0, 1) if rank in codes}, {1})
                self.assertLess(seconds, TIMEOUT_S * 4 + SLACK_S)

    def test_a_rank_that_hangs(self):
        places = {"all_reduce": "all_reduce of gradients (world axis)", "barrier": "barrier", "agreement": "agreement",
                  "finalize": "MPI_Finalize"}
        cases = [(failure, collective) for failure in ("sleeps", "stopped") for collective in places]
        for (failure, collective), (code, lines, _, seconds) in start_each(cases):
            with self.subTest(failure=failure, collective=collective):
                self.check_message(lines, places[collective], "rank 2 has not entered it")
                # The exit code is that of the rank that reports the failure. Now and then mpirun 4.1 itself crashes while it ends the others.
                self.assertIn(code, (1, -signal.SIGSEGV))
                self.assertLess(seconds, TIMEOUT_S * 4 + SLACK_S)

    def test_a_rank_that_ends_unseen_by_mpirun(self):
        """The other ranks end at once, without waiting for the time limit of a collective."""
        cases = [(failure, "all_reduce", LOOK_ON, 1000) for failure in ("exits", "fails", "killed")]
        for (failure, *_), (_, lines, codes, _) in start_each(cases):
            with self.subTest(failure=failure):
                self.assertEqual(len(lines), 1, lines)
                self.assertRegex(lines[0], GONE)
                # The rank that reports the failure exits with 1. MPI kills the other rank and the shell that would print its exit code.
                self.assertEqual({codes[rank] for rank in (0, 1) if rank in codes}, {1})

    def test_a_rank_that_ends_seen_by_mpirun(self):
        for (failure, _), (code, *_) in start_each([(failure, "all_reduce") for failure in ("exits", "fails", "killed")]):
            with self.subTest(failure=failure):
                self.assertNotEqual(code, 0)


if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        sys.exit(77)
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
