"""Tests of octavo doctor: its report on a machine, and the machine file that it saves."""

import json
import socket

from support import DONE, FAILED, Scratch

# Each of these tests measures the CPU, which takes long on a busy machine.
TIMEOUT = 120


class DoctorTest(Scratch):
    """The tests hide the GPUs, so that two ranks never share one and the measurements are short."""

    def doctor(self, *arguments, ranks=1):
        result = self.finish(self.start("doctor", *arguments, ranks=ranks), TIMEOUT)
        self.assertEqual(result.code, DONE, result.out[-1500:] + result.err[-1500:])
        self.assertEqual(result.octavo_lines(), [])
        return result

    def check_collectives(self, collectives, ranks):
        self.assertEqual((collectives["ranks"], collectives["hosts"]), (ranks, 1))
        self.assertGreater(collectives["latency_s"], 0)
        largest = {}
        for size in collectives["sizes"]:
            sent = size["bytes"] * (ranks - 1) / ranks * (2 if size["op"] == "all_reduce" else 1)
            self.assertAlmostEqual(size["bus_bytes_per_s"] * size["seconds"] / sent, 1, places=6)
            largest[size["op"]] = size["bus_bytes_per_s"]
        self.assertEqual(set(largest), {"all_gather", "reduce_scatter", "all_reduce"})
        self.assertEqual(collectives["bus_bytes_per_s"], min(largest["all_gather"], largest["reduce_scatter"]))

    def check_report(self, ranks):
        result = self.doctor("--json", "--save", "machine.json", ranks=ranks)
        report = json.loads(result.out)
        self.assertTrue(report["ok"])
        self.assertFalse([finding for finding in report["findings"] if finding["prevents_training"]])
        self.assertEqual([rank["rank"] for rank in report["ranks"]], list(range(ranks)))
        for rank in report["ranks"]:
            self.assertGreater(min(rank[key] for key in ("cores", "threads", "memory_bytes", "open_files_limit")), 0)
            self.assertTrue(rank["host"])
            self.assertRegex(rank["product_kernels"], "^(oneDNN|OpenBLAS) [0-9.]+ ")
        for rate in report["rates"]:
            self.assertGreater(rate["slowest"], 0, rate)
            self.assertLessEqual(rate["slowest"], rate["fastest"], rate)
            self.assertIn(rate["slowest_rank"], range(ranks))
        machine = report["machine"]
        self.assertEqual(json.loads((self.dir / "machine.json").read_text()), machine)
        self.assertEqual([path.name for path in self.dir.iterdir()], ["machine.json"], "the file of the disk test was not removed")
        self.assertEqual((machine["device"], machine["collectives"] is None), ("cpu", ranks == 1))
        self.assertTrue(machine["versions"]["octavo"] and machine["versions"]["mpi"])
        if ranks > 1:
            self.check_collectives(machine["collectives"], ranks)
        # A plan refuses a machine file in which a rate is missing or not positive.
        plan = json.loads(self.run_octavo("plan", self.config("none"), "--machine", "machine.json", "--json").out)
        self.assertGreater(plan["prediction"]["wps"], 0)

    def test_one_rank(self):
        self.check_report(1)

    def test_two_ranks(self):
        self.check_report(2)

    def test_text(self):
        (self.dir / "scratch").mkdir()
        result = self.doctor("--disk", "scratch")
        for text in ("octavo ", "cores", "matmuls by ", "attention backward", "disk write", "nothing prevents training"):
            self.assertIn(text, result.out)
        self.assertEqual(list(self.dir.rglob("*")), [self.dir / "scratch"])

    def test_quick(self):
        result = self.doctor("--quick", "--disk", "to/be/made")
        self.assertIn("nothing prevents training\n", result.out)
        self.assertEqual(list(self.dir.iterdir()), [])
        report = json.loads(self.doctor("--quick", "--json", "--ranks-per-node", 8, ranks=2).out)
        self.assertEqual([rank["planned_ranks"] for rank in report["ranks"]], [8, 8])
        self.assertGreater(report["ranks"][0]["disk"]["free_bytes"], 0)
        self.assertEqual((report["rates"], report["machine"]), ([], None))

    def test_quick_where_checkpoints_cannot_be_written(self):
        result = self.run_octavo("doctor", "--quick", "--disk", "/proc/checkpoints", code=FAILED)
        self.assertRegex(result.out, rf"PROBLEM  {socket.gethostname()}: checkpoints cannot be written: /proc/")

    def test_full_output(self):
        with open("/dev/full", "w") as full:
            self.refused("doctor", "--json", code=FAILED, stdout=full, mentions=["standard output"])

    def test_bad_input(self):
        self.refused("doctor", "--jsn", mentions=["--jsn"])
        self.refused("doctor", "config.yaml", mentions=["config.yaml"])
        self.refused("doctor", "--quick", "--save", "machine.json", mentions=["--quick"])
        self.refused("doctor", "--save", mentions=["--save"])
        self.refused("doctor", "--save", "nowhere/machine.json", mentions=["nowhere/machine.json"])
        self.refused("doctor", "--disk", "nowhere", mentions=["nowhere", "directory"])
        self.refused("doctor", "--disk", "nowhere", ranks=2, mentions=["nowhere"])
        self.assertEqual(list(self.dir.iterdir()), [])
