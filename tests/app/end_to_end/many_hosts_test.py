"""Tests of runs on several hosts (simulated_hosts.py): checkpoints in the memory of other hosts, and hosts that fail."""

import json
import os
import re
import signal
from pathlib import Path

from corruption_test import flip_bits, rank_pid
from resume_test import Resuming
from simulated_hosts import NotPermitted, SimulatedHosts
from support import AT_ONCE, DONE, ROOT, STOPPED, checkpoint_tensors, checkpoints, metrics_lines


class Hosts(Resuming):
    """Provides `self.hosts` and functions that train on them."""

    def start_hosts(self, count, link=None):
        try:
            self.hosts = SimulatedHosts(count, link, [self.root, Path(os.environ["OCTAVO"]).parent])
        except NotPermitted as error:
            self.skipTest(f"namespaces are not allowed here: {error}")
        self.addCleanup(self.hosts.close)

    def start_on(self, ranks, *arguments, names=None, **options):
        return self.start_line(self.hosts.mpirun(ranks, names) + [os.environ["OCTAVO"], *map(str, arguments)], **options)

    def train_on(self, ranks, config, *overrides, names=None, code=DONE):
        result = self.finish(self.start_on(ranks, "train", config, *overrides, names=names))
        self.assertEqual(result.code, code, result.out[-1500:] + result.err[-1500:])
        return result


class ManyHostsMemoryTest(Hosts):
    def endless(self):
        """Returns a config of a run whose second checkpoint on disk comes long after the first, so that a test that waits for the first
        ends the run in between."""
        return self.ten_steps(
            training={"steps": 1_000_000, "global_batch_size": 12, "micro_batch_size": 1},
            optimizer={"schedule": "constant"},
            checkpoint={"every": 100, "async": True, "in_memory": True, "in_memory_every": 2},
        )

    def lose(self, ranks, config, lost, lines):
        """Trains until the metrics have `lines` lines. Then the host `lost` fails, and the processes on the other hosts end by
        themselves."""
        process = self.start_on(ranks, "train", config, variables=AT_ONCE)
        self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") >= lines, process)
        self.hosts.cut_power(lost)
        self.assertNotEqual(self.finish(process).code, DONE)

    def kept(self, name):
        return [path for path in self.hosts.shm(name).glob("octavo_*/step_*") if (path / "manifest.json").exists()]

    def test_a_lost_host_costs_no_reading_from_disk(self):
        ranks = [2, 1, 1]
        for lost, again in (("host1", ranks), ("host0", ranks), ("host2", [2, 1])):
            with self.subTest(lost=lost, again=again):
                self.remove_runs()
                self.start_hosts(3)
                config = self.endless()
                self.lose(ranks, config, lost, 115)
                steps = {path.name for name in self.hosts.names for path in self.kept(name)}
                step = int(max(steps)[5:])
                self.assertGreater(step, 100)
                names = self.hosts.names
                if len(again) == len(ranks):
                    self.hosts.bring_back(lost)
                else:
                    names = [name for name in names if name != lost]
                result = self.train_on(again, config, f"training.steps={step + 5}", names=names)
                found = re.search(r"resuming /dev/shm/octavo_\S+/step_(\d+) after step (\d+)", result.out)
                self.assertTrue(found, result.out)
                self.assertIn(step - int(found[2]), (0, 2), "the checkpoint of the other hosts was neither complete nor being written")
                self.assertRegex(result.out, r"\d files of \S+ were fetched from the memory of other machines")
                self.assertEqual([self.kept(name) for name in names], [[]] * len(names), "a run that ends frees it")
                self.train(config, f"training.steps={step + 5}", "checkpoint.dir=whole", "logging.dir=whole_log", ranks=4)
                self.assert_close(self.losses(), self.losses("whole_log"), 0 if len(again) == len(ranks) else 1e-5)
                self.hosts.close()

    def test_two_neighbors_lost_at_once_resume_from_disk(self):
        self.start_hosts(3)
        config = self.endless()
        process = self.start_on([1, 1, 1], "train", config)
        self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") >= 115, process)
        for name in ("host1", "host2"):
            self.hosts.cut_power(name)
        process.kill()  # mpirun would wait for messages of the lost hosts.
        self.finish(process)
        for name in ("host1", "host2"):
            self.hosts.bring_back(name)
        result = self.train_on([1, 1, 1], config, "training.steps=118")
        self.assertIn("resuming checkpoints/step_00000100", result.out)

    def test_a_host_that_was_away_brings_nothing_old(self):
        """The checkpoint in the memory of host1 is newer than the newest one on disk, but it belongs to a run that was replaced since."""
        self.start_hosts(2)
        config = self.endless()
        self.lose([1, 1], config, "host0", 115)
        self.assertTrue(self.kept("host1"))
        self.hosts.bring_back("host0")
        self.train_on([1], config, "training.steps=112", "checkpoint.resume=never", names=["host0"])
        result = self.train_on([1, 1], config, "training.steps=116")
        self.assertIn("resuming checkpoints/step_00000112", result.out)


class LaunchedHosts(Hosts):
    def launch(self, ranks, config, *arguments, where="head", nodes=None, variables=None):
        """Starts the launcher on a host, or outside the hosts, with all of them in its hostfile."""
        (self.dir / "hosts").write_text("# of a rack\n" + "".join(f"{name} slots={ranks}\n" for name in self.hosts.names))
        variables = {"NPROC": str(ranks), "OCTAVO": os.environ["OCTAVO"], "HOSTFILE": "hosts", "NODES": str(nodes or len(self.hosts.names)),
                     "MPIRUN_ARGS": " ".join(self.hosts.mpirun_options())} | (variables or {})
        options = [word for word in arguments if "=" not in word]
        overrides = [word for word in arguments if "=" in word]
        line = [*self.hosts.enter(where), str(ROOT / "scripts/launch_mpirun.sh"), *options, str(config), *overrides]
        return self.start_line(line, None, variables, start_new_session=True)


class SeveralHostsTest(LaunchedHosts):
    LINK = "tbf rate 200mbit burst 256kb latency 50ms"

    def test_the_result_is_that_of_one_host(self):
        self.start_hosts(3, self.LINK)
        config = self.ten_steps(training={"steps": 10, "global_batch_size": 12, "micro_batch_size": 2})
        for copies in (1, 3):
            with self.subTest(copies=copies):
                self.remove_runs()
                key = f"parallel.data_parallel_replicate={copies}"
                reference = self.reference(config, key, ranks=6)
                # By default the program chooses three replicas, the most that fit into memory.
                result = self.train_on(2, config, *([key] if copies == 1 else []))
                self.assertIn(f"replicate {copies} x shard {6 // copies} x tensor 1", result.out)
                self.assertEqual("a replica on each of 3 nodes, because it fits: gathers stay within nodes" in result.out, copies == 3)
                if copies == 3:
                    self.assert_same_run(reference)
                # Between machines, the gradient of the embedding is summed in another order.
                else:
                    self.assert_close(self.losses(), reference[0], 1e-6)

    def test_continues_on_the_remaining_hosts(self):
        self.start_hosts(3, self.LINK)
        config = self.ten_steps(training={"steps": 1_000_000, "global_batch_size": 6, "micro_batch_size": 1},
                                optimizer={"schedule": "constant"}, checkpoint={"every": 10})
        metrics = self.dir / "log/metrics.jsonl"
        process = self.launch(1, config, "--restarts", "2")
        self.wait_for(lambda: checkpoints(self.dir / "checkpoints"), process)
        self.hosts.cut_power("host1")
        lines = metrics_lines(metrics)
        self.wait_for(lambda: metrics_lines(metrics) > lines + 10, process)
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, STOPPED, result.err[-2000:])
        self.assertRegex(result.out, r"3 ranks on cpu(.|\n)*2 ranks on cpu")
        self.assertEqual(re.findall(r"(\w+) does not answer", result.err), ["host1"], result.err[-2000:])
        steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
        self.assertEqual(sorted(set(steps)), list(range(1, max(steps) + 1)), "no step is missing")


class ExcludedHostsTest(LaunchedHosts):
    def test_continues_without_the_host_that_computes_wrongly(self):
        self.start_hosts(3)
        config = self.config(
            self.corpus,
            training={"steps": 100000, "global_batch_size": 18, "micro_batch_size": 1, "corruption_check_every": 5,
                      "on_corruption": "exclude"},
            optimizer={"lr": 1e-30, "min_lr_ratio": 0.0, "weight_decay": 0.0},
            checkpoint={"every": 10, "keep": 0},  # The test reads a checkpoint while the run continues.
            parallel={"data_parallel_replicate": 3},
        )
        process = self.launch(3, config, "--restarts", "2")
        self.wait_for(lambda: checkpoints(self.dir / "checkpoints"), process)
        directory = self.dir / "checkpoints" / checkpoints(self.dir / "checkpoints")[-1]
        content = checkpoint_tensors(directory)["model.layers.1.mlp.up_proj.weight"][-1][512:640]
        # One rank of host1 has these weights in its shard. The other ranks have them only in gathered weights, which the next gather
        # overwrites.
        self.assertGreater(flip_bits([rank_pid(rank, self.dir) for rank in (3, 4, 5)], content), 0)
        self.wait_for(lambda: (self.dir / "checkpoints/excluded_hosts").exists(), process)
        lines = metrics_lines(self.dir / "log/metrics.jsonl")
        self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") > lines + 10, process)
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertRegex((self.dir / "checkpoints/excluded_hosts").read_text(), r"\Ahost1 # step \d+: silent corruption on rank [345] on host1: ")
        self.assertRegex(result.err, r"host1 was added to \S+/excluded_hosts, and is excluded")
        self.assertRegex(result.out, r"9 ranks on cpu(.|\n)*6 ranks on cpu")
