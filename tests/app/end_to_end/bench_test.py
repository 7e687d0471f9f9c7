"""Tests of octavo bench: its names and times, and the cores that it uses."""

import json
import os
import re
import shutil
import subprocess
import time
import unittest
from pathlib import Path
from unittest import mock

from support import BAD_INPUT, DONE, HANG_S, Scratch, environment


class BenchTest(Scratch):
    def bench(self, *arguments, ranks=1, warmup=0, steps=1):
        config = self.config("nowhere")
        return self.run_octavo("bench", config, "--steps", steps, "--warmup", warmup, *arguments, ranks=ranks)

    def test_headline(self):
        for linear, named in (("bfloat16", "computing in float32"), ("fp8_tensorwise", "fp8_tensorwise linears, the rest in float32")):
            result = self.bench(f"precision.linear={linear}")
            self.assertIn(f" parameters, {named}, micro-batch", result.out)
            self.assertNotIn("mfu", result.out)

    def test_json(self):
        result = json.loads(self.bench("--json").out)
        self.assertEqual((result["linear"], result["compute"]), ("float32", "float32"))
        self.assertNotIn("mfu", result)

    def test_of_the_first_stage(self):
        stages = "stages=[{steps: 2, data: {seq_len: 16}}, {steps: 4}]"
        self.assertEqual(json.loads(self.bench("--json", stages).out)["seq_len"], 16)

    def test_document_length(self):
        attended = []
        for length in (2, 8, None):
            options = [] if length is None else ["--document-length", length]
            result = json.loads(self.bench("--json", "data.document_mask=true", *options).out)
            self.assertEqual(result["document_length"], length or 1024)
            attended.append(result["attended_tokens"])
        self.assertEqual(sorted(set(attended)), attended)
        self.assertIn("tokens in documents of 8 on average\n", self.bench("data.document_mask=true", "--document-length", 8).out)
        for ranks in (1, 2):
            self.refused("bench", self.config("nowhere"), "--document-length", 8, ranks=ranks,
                         mentions=("--document-length needs documents, and data.document_mask is false",))

    @unittest.skipIf(shutil.which("nvidia-smi"), "this machine may have a GPU")
    def test_energy_is_refused_without_a_gpu(self):
        config = self.config("nowhere")
        for ranks in (1, 2):
            said = self.refused("bench", config, "--energy", "--steps", 1, "--warmup", 0, ranks=ranks, mentions=("--energy: this run is ",))
            self.assertRegex(said, r"this run is \d ranks? on cpu.*, expected GPUs, whose driver counts energy")
        result = self.run_octavo("bench", config, "--energy", "--data", code=BAD_INPUT)
        self.assertRegex(result.err, "--energy excludes|excludes --energy")

    def test_both_regimes(self):
        """The bench measures the batch of the config, and the smallest batch that the ranks can use."""
        for ranks, batch, smallest in ((1, 8, 2), (2, 8, 4), (1, 2, None), (2, 4, None)):
            with self.subTest(ranks=ranks, batch=batch):
                sizes = ("training.micro_batch_size=2", f"training.global_batch_size={batch}")
                result = json.loads(self.bench("--json", *sizes, ranks=ranks, warmup=2, steps=5).out)
                self.assertEqual(result["global_batch_size"], batch)
                self.assertEqual(result.get("one_micro_batch", {}).get("global_batch_size"), smallest)
                for regime, sequences in ((result, batch), (result.get("one_micro_batch"), smallest)):
                    if regime:
                        tokens_a_step = regime["wps"] * ranks * regime["step_ms"] / 1000
                        self.assertAlmostEqual(tokens_a_step / (sequences * result["seq_len"]), 1, delta=1e-3)
                said = "\none micro-batch " in self.bench(*sizes, ranks=ranks).out
                self.assertEqual(said, smallest is not None)

    def test_the_sweep_of_the_script(self):
        """A refused combination does not end the sweep."""
        script = Path(__file__).resolve().parents[3] / "scripts/bench_sweep.py"
        keys = ("precision.linear=bfloat16,fp8_tensorwise", "parallel.tensor_parallel=1,3")
        options = ("--json", "--bench-options", "--steps 1 --warmup 0")
        swept = subprocess.run([script, self.config("nowhere"), *keys, *options], cwd=self.dir, env=environment(), text=True, capture_output=True)
        self.assertEqual((swept.returncode, swept.stderr), (0, ""))
        runs = [json.loads(line) for line in swept.stdout.splitlines()]
        self.assertEqual([(run["precision.linear"], "speedup" in run) for run in runs], [("bfloat16", True), ("bfloat16", False), ("fp8_tensorwise", True), ("fp8_tensorwise", False)])
        self.assertAlmostEqual(runs[2]["speedup"], runs[2]["wps"] / runs[0]["wps"])
        self.assertIn("octavo: ", runs[1]["reason"])

    def test_ops_of_tensor_parallel_ranks(self):
        whole, parts = (
            {op["op"] for op in json.loads(self.bench("--json", *overrides, ranks=2).out)["ops"]}
            for overrides in ((), ("parallel.tensor_parallel=2",))
        )
        for name in ("cross_entropy", "embedding_forward", "embedding_backward"):
            self.assertIn(name, whole)
            self.assertNotIn(name, parts)
        for name in ("cross_entropy_stats", "cross_entropy_parallel", "embedding_part_forward", "embedding_part_backward"):
            self.assertIn(name, parts)
            self.assertNotIn(name, whole)


class CoresTest(Scratch):
    """Without options mpirun binds each rank to a single core."""

    def threads(self, *options, **variables):
        config = self.config("nowhere")
        line = ["mpirun", "-n", "1", *options, os.environ["OCTAVO"], "bench", config, "--steps", "1", "--warmup", "0"]
        chosen = {key: value for key, value in environment().items() if not key.startswith(("OMP_", "OMPI_MCA_"))} | variables
        result = subprocess.run(line, cwd=self.dir, env=chosen, capture_output=True, text=True, timeout=HANG_S)
        self.assertEqual(result.returncode, DONE, result.stderr)
        self.assertIn("1 rank on cpu, ", result.stdout)
        return int(result.stdout.split("1 rank on cpu, ")[1].split()[0]), "its share" in result.stdout

    def test_waiting_threads_sleep_unless_the_user_has_chosen(self):
        patch = mock.patch.dict(os.environ)
        patch.start()
        self.addCleanup(patch.stop)
        os.environ.pop("OMP_WAIT_POLICY", None)  # The environment of the tests may have set this variable.
        for chosen, expected in (({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active"), ({"OMP_NUM_THREADS": "1"}, None)):
            with self.subTest(chosen):
                variables = {"OMP_NUM_THREADS": "2"} | chosen
                process = self.start("bench", self.config("nowhere"), "--steps", "100000", variables=variables)

                def policy():
                    found = re.search(rb"OMP_WAIT_POLICY=(\w+)", Path(f"/proc/{process.pid}/environ").read_bytes())
                    return found and found[1].decode()

                if expected is None:
                    time.sleep(0.3)
                self.wait_for(lambda: policy() == expected, process)
                self.assertEqual(Path(f"/proc/{process.pid}/comm").read_text(), "octavo\n")

    def test_a_rank_uses_its_share(self):
        cores = len(os.sched_getaffinity(0))
        if cores < 2 or cores < os.cpu_count():
            self.skipTest("needs a machine of two cores to itself")
        self.assertEqual(self.threads(), (cores, True))
        self.assertEqual(self.threads("--bind-to", "core"), (1, False))
        self.assertEqual(self.threads("--bind-to", "none"), (cores, False))
        self.assertEqual(self.threads(OMP_NUM_THREADS="1"), (1, False))
        allowed = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, allowed)
        os.sched_setaffinity(0, {min(allowed)})  # The launcher itself has a single core, so its ranks have no other.
        self.assertEqual(self.threads(), (1, False))
