"""Tests that make one system call fail in a run that resumes, trains, saves and removes checkpoints (tests/fault_injection).

By default one fault of each call is injected. With OCTAVO_FAULTS=CALL every call of that name fails in turn. With OCTAVO_FAULTS=all
every call fails in turn, except operator new, which a run calls tens of thousands of times.
"""

import os
import random
import shutil
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support import BAD_INPUT, DONE, FAILED, Scratch, checkpoints, copy_tree, text_documents, write_megatron

INJECTOR = Path(os.environ["OCTAVO"]).parent / "tests/liboctavo_fault_injection.so"
# Errors of the calls that fail with something other than EIO.
ERRORS = {"pthread_create": "EAGAIN", "new": "ENOMEM", "aligned_alloc": "ENOMEM", "mmap": "ENOMEM", "write": "ENOSPC",
          "pwrite": "ENOSPC", "fwrite": "ENOSPC", "fflush": "ENOSPC", "fallocate": "ENOSPC", "fstat": "ESTALE"}
ALWAYS = ["pthread_create:1+:EAGAIN"]  # No thread can be started.
TIMEOUT = 120


def chosen(counts):
    """Returns the faults to inject, given the number of times that a run makes each call."""
    wanted = os.environ.get("OCTAVO_FAULTS")
    faults = {call: [f"{call}:{k}:{ERRORS.get(call, 'EIO')}" for k in range(1, count + 1)] for call, count in counts.items()}
    if wanted == "all":
        return ALWAYS + sum((of_call for call, of_call in faults.items() if call != "new"), [])
    if wanted:
        return faults[wanted]
    sample = random.Random(1)
    return ALWAYS + [sample.choice(of_call) for of_call in faults.values() if of_call]


@unittest.skipUnless(INJECTOR.exists(), "this build has no library that injects faults")
class FaultInjectionTest(Scratch):
    def train(self, directory, steps=6, **variables):
        process = self.start("train", self.file, f"training.steps={steps}", f"logging.dir={directory}",
                             f"checkpoint.dir={directory}/checkpoints", variables=variables)
        return self.finish(process, TIMEOUT)

    def resumed_losses(self, directory):
        return {step: losses for step, losses in self.losses(directory).items() if step > 4}

    def check(self, fault):
        """Resumes after step 4 with a fault, and then again without one."""
        run = self.dir / fault.replace(":", "_")
        copy_tree(self.dir / "before", run)
        result = self.train(run.name, LD_PRELOAD=str(INJECTOR), OCTAVO_FAULT=fault)
        self.assertIn(result.code, (DONE, FAILED, BAD_INPUT), result.err)
        self.assertEqual(len(result.octavo_lines()), result.code != DONE, result.err)
        self.assertEqual(result.err.splitlines(), result.octavo_lines(), "nothing but that sentence")
        found = checkpoints(run / "checkpoints")
        self.assertIn("step_00000004", found, result.err)
        for name in found:
            seen = self.finish(self.start("inspect", run / "checkpoints" / name), TIMEOUT)
            self.assertEqual(seen.code, DONE, f"{name}: {seen.out}")
        again = self.train(run.name)
        self.assertEqual(again.code, DONE, again.err)
        self.assertEqual(self.resumed_losses(run.name), self.expected)
        left = sorted(path.name for path in (run / "checkpoints").iterdir())
        self.assertEqual(left, checkpoints(run / "checkpoints"), "a checkpoint is set aside, or files are left")
        self.assertEqual(left[-2:], ["step_00000004", "step_00000006"])
        shutil.rmtree(run)

    def test_a_run_ends_with_a_sentence_or_succeeds(self):
        """After any fault all checkpoints are intact, none is lost, and the next run ends with the same losses."""
        data = write_megatron(self.dir / "data", text_documents(20, 200))
        self.file = self.config(data, model={"hidden_size": 32, "intermediate_size": 32, "num_layers": 1},
                                optimizer={"schedule": "constant"}, checkpoint={"every": 2, "async": True, "keep": 2})
        self.assertEqual(self.train("before", 4).code, DONE)
        copy_tree(self.dir / "before", self.dir / "whole")
        counts = self.dir / "counts"
        whole = self.train("whole", LD_PRELOAD=str(INJECTOR), OCTAVO_FAULT_COUNTS=str(counts))
        self.assertEqual(whole.code, DONE, whole.err)
        self.expected = self.resumed_losses("whole")
        faults = chosen({call: int(count) for call, count in map(str.split, counts.read_text().splitlines())})
        with ThreadPoolExecutor(3) as pool:
            for fault, outcome in [(fault, pool.submit(self.check, fault)) for fault in faults]:
                with self.subTest(fault=fault):
                    outcome.result()

    def test_pack_replaces_both_datasets_or_none(self):
        for name in ("old", "new"):
            for document in ("a", "b"):
                path = self.dir / name / document
                path.parent.mkdir(exist_ok=True)
                path.write_text(name + document)

        def pack(name, **variables):
            return self.finish(self.start("pack", "--input", name, "--output", "packed", "--hold-out-every", 2, "--overwrite",
                                          variables=variables), TIMEOUT)

        def datasets():
            return {path.name: path.read_bytes() for path in self.dir.glob("packed*")}

        self.assertEqual(pack("old").code, DONE)
        before = datasets()
        self.assertEqual(len(before), 6)
        # Six files are moved aside, and six files take their names.
        for k in range(1, 13):
            result = pack("new", LD_PRELOAD=str(INJECTOR), OCTAVO_FAULT=f"rename:{k}:EIO")
            self.assertEqual((result.code, len(result.octavo_lines())), (FAILED, 1), result.err)
            self.assertEqual(datasets(), before, result.err)
        self.assertEqual(pack("new", LD_PRELOAD=str(INJECTOR), OCTAVO_FAULT="rename:13:EIO").code, DONE)
        self.assertEqual(datasets().keys(), before.keys())
        self.assertNotEqual(datasets(), before)
