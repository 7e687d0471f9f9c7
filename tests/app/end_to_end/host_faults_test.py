"""Tests of runs that scripts/launch_mpirun.sh starts on several hosts (simulated_hosts.py): they compute what one host computes, and end
or continue when a host, its link or its files fail."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

from kill_cycles_test import is_running, processes_below, send_kill
from many_hosts_test import LaunchedHosts
from restarts_test import Restarted
from simulated_hosts import SUBNET
from support import BAD_INPUT, DONE, FAILED, STOPPED, checkpoint_tensors, checkpoints, metrics_lines, numbers, relative_distance


class Launched(LaunchedHosts, Restarted):
    """Starts the launcher on host0, which also has the first ranks, unless a test says otherwise."""

    # With a larger learning rate the order of sums, which differs between numbers of hosts, changes losses visibly after a hundred steps.
    ENDLESS = {"training": {"steps": 1_000_000, "global_batch_size": 4, "micro_batch_size": 1},
               "optimizer": {"schedule": "constant", "lr": 1e-4}, "checkpoint": {"every": 10, "async": True}}

    def launch_endless(self, *arguments, **options):
        """Starts a run and waits until it has saved a checkpoint."""
        self.run_config = self.ten_steps(**self.ENDLESS)
        process = self.launch(1, self.run_config, "--restarts", "2", "parallel.timeout_s=2", *arguments, **{"where": "host0", "variables": self.short_pauses()} | options)
        self.wait_for(lambda: checkpoints(self.dir / "checkpoints"), process)
        return process

    def wait_for_more(self, process, count=15):
        lines = self.lines()
        self.wait_for(lambda: self.lines() >= lines + count, process)

    def lines(self):
        return metrics_lines(self.dir / "log/metrics.jsonl")

    def stop_and_check(self, process):
        """Stops the run and checks its losses. Returns its result."""
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, STOPPED, result.err[-3000:])
        self.check_losses()
        return result

    def check_losses(self):
        """Expects that each step of the run has the loss of a run that nothing disturbed."""
        losses = self.losses()
        self.assertEqual(sorted(losses), list(range(1, max(losses) + 1)), "no step is missing")
        self.train(self.run_config, f"training.steps={max(losses)}", "checkpoint.dir=whole_checkpoints", "logging.dir=whole")
        self.assert_close(losses, self.losses("whole"), 1e-4)

    def signal_host(self, name, number):
        for pid in self.hosts.processes(name):
            os.kill(pid, number)

    def kill_ranks(self, name):
        send_kill([pid for pid in self.hosts.processes(name) if self.program(pid) == os.path.realpath(os.environ["OCTAVO"])])

    def on_host(self, name, command):
        result = self.finish(self.start_line(["bash", "-c", self.hosts.shell(name, command)]))
        self.assertEqual(result.code, DONE, result.err)


class TwoHostsTest(Launched):
    def test_every_mesh_computes_what_it_computes_on_one_host(self):
        self.start_hosts(2)
        config = self.ten_steps(training={"steps": 10, "global_batch_size": 8, "micro_batch_size": 2})
        for ranks, mesh in ((1, "data_parallel_shard"), (1, "data_parallel_replicate"), (1, "tensor_parallel"), (1, "context_parallel"),
                            (1, "pipeline_parallel"), (2, "data_parallel_replicate")):
            with self.subTest(mesh, ranks=ranks):
                self.remove_runs()
                key = f"parallel.{mesh}=2"
                losses, tensors = self.reference(config, key, ranks=2 * ranks)
                self.train_on(ranks, config, key)
                # Ranks of one host sum some gradients in another order.
                self.assert_close(self.losses(), losses, 1e-6)
                found = checkpoint_tensors(self.dir / "checkpoints/step_00000010")
                self.assertEqual(sorted(found), sorted(tensors))
                for name, tensor in tensors.items():
                    self.assertLess(relative_distance(numbers(found[name]), numbers(tensor)), 1e-4, name)

    def test_what_differs_on_one_host_is_named(self):
        """The run is not started, or ends with one sentence."""
        self.start_hosts(2)
        config = self.ten_steps()
        other = self.dir / "other"
        shutil.copy2(os.environ["OCTAVO"], other)
        commit = re.search(r"commit (\w+)", self.run_octavo("--version").out)[1].encode()
        for name, path, said, code in (
            ("program", Path(os.environ["OCTAVO"]), "rank 1 has program .*, but rank 0 has program ", BAD_INPUT),
            ("config", config, "rank 1 has optimizer.warmup_steps 3, but rank 0 has optimizer.warmup_steps 2", BAD_INPUT),
            ("data", Path(f"{self.corpus}.bin"), "rank 1 has data.train .*, but rank 0 has", BAD_INPUT),
            ("folder", None, "octavo: host1: .*config.yaml: cannot be opened for reading", BAD_INPUT),
            ("ssh", None, "host1 does not answer and is left out of this start: Host key verification failed(.|\n)*1 of 2 nodes answer", FAILED),
        ):
            with self.subTest(name):
                if path:
                    changes = {"program": (commit, commit[::-1]), "config": (b'"warmup_steps": 2', b'"warmup_steps": 3'), "data": (b"\0", b"\1")}
                    other.write_bytes(path.read_bytes().replace(*changes[name]))
                    self.on_host("host1", f"mount --bind {other} {path}")
                elif name == "folder":
                    self.on_host("host1", f"umount -l {self.root}")
                else:
                    ssh = self.hosts.dir / "bin/ssh"
                    ssh.write_text(ssh.read_text().replace("StrictHostKeyChecking=no", "StrictHostKeyChecking=ask"))
                start = self.start_on(1, "train", config) if path else self.launch(1, config, "--no-check", where="host0")
                result = self.finish(start)
                self.assertRegex(result.err, said)
                self.assertEqual(result.code, code, result.err)
                if path:
                    self.on_host("host1", f"umount {path}")


class HostFaultsTest(Launched):
    def test_short_faults_cost_no_restart(self):
        """The link of a host is down for 5 seconds, and a host stops for 2 seconds. A rank that is killed costs a restart."""
        self.start_hosts(2)
        process = self.launch_endless("parallel.timeout_s=60", variables={"OCTAVO_TEST_ALIVE": "5"})
        self.hosts.set_link("host1", "down")
        time.sleep(5)
        self.hosts.set_link("host1", "up")
        self.wait_for_more(process)
        self.signal_host("host1", signal.SIGSTOP)
        time.sleep(2)
        self.signal_host("host1", signal.SIGCONT)
        self.wait_for_more(process)
        self.kill_ranks("host1")
        self.wait_for_more(process)
        result = self.stop_and_check(process)
        self.assertRegex("\n".join(self.restarts(result)), r"\A.*SIGKILL: restart 1 of 2; on the disk: step_.*\n.* SIGTERM: the ranks are told .*\Z")

    def test_a_host_without_the_shared_folder_or_with_a_wrong_address(self):
        """Saves fail while the folder is away. A restart does not need the address of rank 0's host."""
        self.start_hosts(2)
        process = self.launch_endless(f"checkpoint.dir={self.dir}/checkpoints", "checkpoint.max_failed_saves=1000000")
        self.on_host("host1", f"mount -t tmpfs none {self.root}")
        self.wait_for_more(process, 30)
        self.on_host("host1", f"umount {self.root}")
        newest = checkpoints(self.dir / "checkpoints")[-1]
        self.wait_for(lambda: checkpoints(self.dir / "checkpoints")[-1] > newest, process)
        (self.dir / "elsewhere").write_text((self.hosts.dir / "hosts").read_text().replace(f"{SUBNET}.1 ", f"{SUBNET}.99 "))
        self.on_host("host1", f"mount --bind {self.dir}/elsewhere /etc/hosts")
        self.kill_ranks("host1")
        self.wait_for_more(process)
        result = self.stop_and_check(process)
        self.assertRegex(result.out, r"warning: the checkpoint of step \d+ is not saved: .*/rank_00001.safetensors: cannot be created: No such file")
        self.assertRegex("\n".join(self.restarts(result)), r"\A.*SIGKILL: restart 1 of 2; on the disk: step_.*\n.* SIGTERM: the ranks are told .*\Z")

    def test_a_spare_host_replaces_one_whose_link_is_down_for_good(self):
        self.start_hosts(3)
        process = self.launch_endless(nodes=2)
        self.hosts.set_link("host1", "down")
        self.wait_for_more(process)
        result = self.stop_and_check(process)
        self.assertIn("did not complete within 2 s", result.err)
        self.assertRegex(result.err, r"mpirun is killed(.|\n)*SIGKILL: restart 1 of 2; on the disk: step_(.|\n)*host1 does not answer and is left out")
        self.assertEqual(len(re.findall("2 ranks on cpu", result.out)), 2, "the spare host took the place of the lost one")


class UnreachableHostsTest(Launched):
    def test_a_host_that_stops(self):
        """The launcher runs outside the hosts. Rank 0 holds the lock of the run until its host continues."""
        self.start_hosts(2)
        process = self.launch_endless(where="head")
        self.signal_host("host0", signal.SIGSTOP)
        self.wait_for(lambda: b"is in use by another run" in os.pread(process.captured[1].fileno(), 100_000, 0), process)
        self.signal_host("host0", signal.SIGCONT)
        self.wait_for_more(process)
        result = self.stop_and_check(process)
        self.assertEqual(set(re.findall(r"(\w+) does not answer", result.err)), {"host0"})

    def test_a_launcher_that_ends_leaves_no_process(self):
        """SIGTERM and SIGKILL to the launcher, while a host cannot be reached."""
        self.start_hosts(2)
        for number, code in ((signal.SIGTERM, STOPPED), (signal.SIGKILL, -signal.SIGKILL)):
            with self.subTest(number):
                self.remove_runs()
                process = self.launch_endless()
                below = processes_below(process.pid)
                self.hosts.set_link("host1", "down")
                process.send_signal(number)
                self.assertEqual(self.finish(process).code, code)
                deadline = time.monotonic() + 60
                while any(map(is_running, below)):
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.1)
                self.hosts.set_link("host1", "up")
