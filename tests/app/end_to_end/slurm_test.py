"""Tests of jobs that scripts/launch_slurm.sh starts with Slurm on several hosts (simulated_hosts.py), with one slurmd per host."""

import os
import shutil
import subprocess

from host_faults_test import Launched
from kill_cycles_test import send_kill
from simulated_hosts import SUBNET
from support import AT_ONCE, ROOT, checkpoints, environment

CONF = """
ClusterName=octavo
SlurmctldHost=head({subnet}.254)
SlurmUser=root
AuthInfo=socket={dir}/munge.socket,cred_expire=10
CredType=cred/munge
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/%n/spool
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/%n/slurmd.pid
SlurmdParameters=config_overrides
SlurmdTimeout=5
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmTest(Launched):
    def start_cluster(self, count):
        for program in ("slurmd", "slurmctld", "munged"):
            if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin"):
                self.skipTest(f"there is no {program}: install slurmctld, slurmd, slurm-client and munge")
        self.start_hosts(count)
        folder = self.hosts.dir
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(64))
        (folder / "munge.key").chmod(0o400)
        nodes = [f"NodeName={name} NodeAddr={SUBNET}.{i + 1} CPUs=4" for i, name in enumerate(self.hosts.names)]
        (folder / "slurm.conf").write_text(CONF.format(subnet=SUBNET, dir=folder) + "\n".join(nodes) + "\n")
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf"), "OCTAVO": os.environ["OCTAVO"]}
        self.serve(["munged", "--foreground", "--force", *(f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")),
                    f"--socket={folder}/munge.socket"])
        self.controller = self.serve([*self.hosts.enter(), "unshare", "--uts", "bash", "-c", "hostname head; exec slurmctld -D"])
        for name in self.hosts.names:
            self.on_host(name, f"SLURM_CONF={folder}/slurm.conf slurmd -N {name}")
        self.wait_for(lambda: f"idle {count}" in self.slurm("sinfo", "--noheader", "--format=%t %D"), self.controller)

    def serve(self, line):
        return self.start_line(line, None, self.variables)

    def slurm(self, *line):
        """Runs a command of Slurm from the checkout, and returns its output. It fails until the controller answers."""
        variables = environment() | AT_ONCE | self.variables
        return subprocess.run([*self.hosts.enter(), *line], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=variables, check=False).stdout

    def submit(self, config, *arguments):
        """Submits a job of one rank on each of two nodes, which runs in self.dir."""
        return self.slurm("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", f"--chdir={self.dir}", f"--output={self.dir}/job.log",
                          "scripts/launch_slurm.sh", *arguments, str(config)).strip()

    def end_of(self, job):
        """Waits for the job and returns its log."""
        self.wait_for(lambda: not self.slurm("squeue", "--noheader", f"--jobs={job}", "--states=pending,running,completing"), self.controller)
        return (self.dir / "job.log").read_text()

    def test_a_job_computes_what_one_host_computes(self):
        self.start_cluster(2)
        config = self.ten_steps()
        losses, _ = self.reference(config, ranks=2)
        self.assertIn("2 ranks on cpu", self.end_of(self.submit(config)))
        self.assert_close(self.losses(), losses, 1e-6)

    def test_a_rank_that_is_killed_and_a_node_that_is_lost(self):
        """The job restarts the ranks after the first fault. After the second one Slurm puts the job back into its queue and starts it with
        the spare node. No step is lost."""
        self.start_cluster(3)
        self.run_config = self.ten_steps(**self.ENDLESS)
        job = self.submit(self.run_config, "--restarts", "2")
        self.wait_for(lambda: checkpoints(self.dir / "checkpoints"), self.controller)
        send_kill([pid for pid in self.hosts.processes("host1") if self.program(pid) == os.path.realpath(os.environ["OCTAVO"])])
        self.wait_for_more(self.controller)
        self.hosts.cut_power("host1")
        self.wait_for_more(self.controller)
        self.slurm("scancel", job)
        self.assertRegex(self.end_of(job), "SIGKILL: restart 1 of 2; on the disk: step_")
        self.check_losses()
