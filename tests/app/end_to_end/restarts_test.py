"""Tests of scripts/launch_*.sh --restarts: a run whose ranks are killed is resumed, and a run that cannot be resumed ends."""

import os
import re
import shutil
import signal

from kill_cycles_test import processes_below, send_kill
from signal_test import Signalled
from support import AT_ONCE, BAD_INPUT, DONE, FAILED, ROOT, STOPPED, checkpoints, metrics_lines

PACE = 4  # Factor by which the tests shorten the pauses of the launchers.


class Restarted(Signalled):
    STEPS = 100
    SECTIONS = {"training": {"steps": STEPS, "micro_batch_size": 2}, "optimizer": {"schedule": "constant"},
                "checkpoint": {"every": 5, "async": True, "keep": 2}}

    def short_pauses(self):
        """Returns the variables with which the pauses of a launcher take a quarter of their time."""
        self.write_program("sleep", f'printf -v seconds %d.%03d $(($1 / {PACE})) $(($1 % {PACE} * 1000 / {PACE}))\n'
                                    f'exec {shutil.which("sleep")} "$seconds"\n')
        return {"PATH": f"{self.dir}:{os.environ['PATH']}"}

    def launch(self, script, *arguments, ranks=2, variables=None):
        """Starts a launcher script whose pauses take a quarter of their time."""
        variables = AT_ONCE | self.short_pauses() | {"NPROC": str(ranks), "OCTAVO": os.environ["OCTAVO"]} | (variables or {})
        return self.start_line([ROOT / "scripts" / script, *map(str, arguments)], None, variables, start_new_session=True)

    def kill_a_rank(self, process, after, directory="checkpoints"):
        """Kills a rank once there is a checkpoint and the metrics have `after` more lines."""
        lines = metrics_lines(self.dir / "log/metrics.jsonl")
        self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") >= lines + after, process)
        self.wait_for(lambda: any((self.dir / directory).glob("step_*")), process)
        send_kill([max(self.programs_of(process))])

    def programs_of(self, process):
        octavo = os.path.realpath(os.environ["OCTAVO"])
        return [pid for pid in processes_below(process.pid) if self.program(pid) == octavo]

    @staticmethod
    def program(pid):
        try:
            return os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return None

    def restarts(self, result):
        return [line for line in result.err.splitlines() if line.startswith("launch_")]

    def assert_finished(self, process, config):
        """Expects that the run ended with the losses of a run that nobody killed."""
        result = self.finish(process)
        self.assertEqual(result.code, DONE, result.err)
        self.train(config, "logging.dir=whole", "checkpoint.dir=whole", ranks=2)
        self.assertEqual(self.losses(), self.losses("whole"))
        return result

    def write_program(self, name, text):
        path = self.dir / name
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)
        return path

    def launch_program(self, text, *options, overrides=(), ranks=1, script="launch_mpirun.sh", variables=None):
        """Starts a launcher with a bash program in place of octavo."""
        program = self.write_program("octavo", text)
        return self.launch(script, *options, "x.yaml", *overrides, ranks=ranks, variables={"OCTAVO": str(program)} | (variables or {}))

    def lines_of(self, name):
        path = self.dir / name
        return path.read_text().splitlines() if path.exists() else []


class RestartsTest(Restarted):
    def test_a_rank_is_killed(self):
        config = self.ten_steps(**self.SECTIONS)
        process = self.launch("launch_mpirun.sh", "--restarts", 3, config)
        for _ in range(2):
            self.kill_a_rank(process, 10)
        result = self.assert_finished(process, config)
        self.assertEqual(result.err.count("exited on signal 9"), 2, "Open MPI names the rank and the node")
        lines = self.restarts(result)
        self.assertEqual(len(lines), 2, result.err)
        for number, line in enumerate(lines, 1):
            self.assertRegex(line, rf"SIGKILL: restart {number} of 3; on the disk: step_\d+$")

    def test_a_restart_resumes_whatever_checkpoint_resume_says(self):
        config = self.ten_steps(**self.SECTIONS)
        # A shell or a parser that expanded this name would change it.
        directory = '-other "dir" \\t $HOME'
        process = self.launch("launch_mpirun.sh", "--restarts", 1, config, "checkpoint.resume=never", f"checkpoint.dir={directory}")
        self.kill_a_rank(process, 10, directory)
        result = self.finish(process)
        self.assertEqual(result.code, DONE, result.err)
        self.assertRegex(self.restarts(result)[0], r"restart 1 of 1; on the disk: step_\d+$")
        self.assertIn(f"resuming {directory}/step_", result.out)

    def test_a_run_that_died_before_its_first_checkpoint_starts_as_before(self):
        """The run starts in the directory of another run, whose checkpoints a new run moves aside."""
        (self.dir / "here/step_00000005").mkdir(parents=True)
        (self.dir / "here/step_00000005/manifest.json").touch()
        text = ('[[ $1 != config ]] || echo here\n[[ $1 == train ]] || exit 0\n'
                'echo "$@" >>starts\nmkdir -p here/earlier\nmv here/step_* here/earlier\nexit 1\n')
        result = self.finish(self.launch_program(text, "--restarts", 2, overrides=["checkpoint.resume=other/step_500"]))
        self.assertEqual(result.code, FAILED, result.err)
        self.assertEqual(self.lines_of("starts"), ["train x.yaml checkpoint.resume=other/step_500"] * 3)

    def test_no_more_than_allowed(self):
        process = self.launch("launch_mpirun.sh", "--restarts", 1, self.ten_steps(**self.LONG, checkpoint={"every": 5, "async": True}))
        for _ in range(2):
            self.kill_a_rank(process, 10)
        result = self.finish(process)
        self.assertEqual(result.code, 128 + signal.SIGKILL, result.err)
        self.assertIn("after 1 restarts, as many as --restarts allows", self.restarts(result)[-1])

    FAILS = "[[ $1 != train ]] || { echo >>starts; exit 1; }\n"

    def test_without_a_new_checkpoint_it_ends(self):
        result = self.finish(self.launch_program(self.FAILS, "--restarts", 50))
        self.assertEqual(result.code, FAILED, result.err)
        self.assertEqual(len(self.lines_of("starts")), 4)
        lines = self.restarts(result)
        self.assertIn("exit code 1: restart 1 of 50; on the disk: no checkpoint", lines[0])
        self.assertIn("4 times in a row without a new checkpoint", lines[-1])

    def test_ends_that_are_none_to_restart_from(self):
        for code in (DONE, BAD_INPUT, STOPPED):
            with self.subTest(code=code):
                text = f"[[ $1 != train ]] || {{ echo >>starts{code}; exit {code}; }}\n"
                result = self.finish(self.launch_program(text, "--restarts", 3))
                self.assertEqual((result.code, result.err), (code, ""), "Open MPI adds nothing to what the program says")
                self.assertEqual(len(self.lines_of(f"starts{code}")), 1)
        for wrong in (["--restarts", "-1"], ["--restarts", "x"], ["--restarts", ""], ["--nocheck"]):
            self.assertEqual(self.finish(self.launch("launch_mpirun.sh", *wrong, "x.yaml")).code, BAD_INPUT)

    def test_a_signal_ends_the_restarts(self):
        config = self.ten_steps(**self.LONG, checkpoint={"every": 5, "async": True})
        process = self.launch("launch_mpirun.sh", "--restarts", 9, config)
        self.kill_a_rank(process, 10)
        lines = metrics_lines(self.dir / "log/metrics.jsonl")
        self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") > lines + 5, process)
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, STOPPED, result.err)
        self.assertIn("the ranks are told to save a checkpoint", result.err)
        self.check_saved(config, exact=False)

    def test_a_signal_between_two_runs_goes_to_no_other_process(self):
        program = self.write_program("fails", self.FAILS)
        line = ["bash", "-x", str(ROOT / "scripts/launch_mpirun.sh"), "--restarts", "50", "x.yaml"]
        process = self.start_line(line, None, AT_ONCE | {"NPROC": "1", "OCTAVO": str(program)}, start_new_session=True)
        self.wait_for(lambda: b"+ sleep 2" in os.pread(process.captured[1].fileno(), 100_000, 0), process)
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, STOPPED)
        self.assertEqual(len(self.lines_of("starts")), 2)
        self.assertIn("+ on_signal TERM", result.err)
        self.assertNotRegex(result.err, r"kill -USR1 \d")


class NodeCheckTest(Restarted):
    """Tests how the launchers treat nodes that octavo doctor --quick rejects, and excluded nodes."""

    UNFIT = ('echo "$@" >>log\n[[ $1 != doctor ]] || { echo "PROBLEM  node7: 7 GPUs are visible"; echo "problems prevent training"; exit 1; }\n'
             '[[ $1 != config ]] || echo here\n')
    CHECK = "doctor --quick --ranks-per-node 2 --disk here"

    def launch_with(self, text, *options, code, **launched):
        result = self.finish(self.launch_program(text, *options, ranks=2, **launched))
        self.assertEqual(result.code, code, result.err)
        return result, [line for line in self.lines_of("log") if not line.startswith("config ")]

    def test_an_unfit_node_is_named_and_nothing_is_started(self):
        result, log = self.launch_with(self.UNFIT, code=FAILED)
        self.assertEqual(log, [self.CHECK])
        self.assertEqual(result.err.splitlines()[0], "PROBLEM  node7: 7 GPUs are visible")
        self.assertIn("the run was not started", result.err)
        self.assertNotIn("problems prevent training", result.err)

    def test_no_check(self):
        _, log = self.launch_with(self.UNFIT, "--no-check", code=DONE)
        self.assertEqual(log, ["train x.yaml"] * 2)

    def test_restarts_check_again_and_end(self):
        text = self.UNFIT.replace("[[ $1 != doctor ]]", "[[ $1 != doctor || ! -e died ]]") + "[[ $1 != train ]] || { touch died; until (($(grep -c train log) == 2)); do sleep 0; done; exit 1; }\n"
        result, log = self.launch_with(text, "--restarts", "9", code=FAILED)
        self.assertEqual(log, [self.CHECK] + ["train x.yaml"] * 2 + [self.CHECK] * 3)
        self.assertIn("4 times in a row without a new checkpoint", result.err)

    def test_a_program_that_does_not_start(self):
        result, _ = self.launch_with("echo libnccl.so.2: cannot open shared object file >&2; exit 127\n", code=FAILED)
        self.assertIn("libnccl.so.2", result.err)

    def test_warnings_do_not_hinder(self):
        result, log = self.launch_with('echo "$1" >>log; [[ $1 != doctor ]] || { echo "warning  node7: hot"; echo fine; }\n', code=DONE)
        self.assertEqual((result.err, log.count("train")), ("warning  node7: hot\n", 2))

    def test_excluded_nodes_are_named(self):
        """This mpirun only prints the nodes that it was given."""
        (self.dir / "here").mkdir()
        (self.dir / "here/excluded_hosts").write_text("node2 # step 7: it is ill\nnode9\n")
        (self.dir / "hosts").write_text("# of a rack\nnode1 slots=8\nnode2.cluster slots=8\nnode3\n")
        self.write_program("mpirun", 'for ((i = 1; i < $#; i++)); do [[ ${!i} != --hostfile ]] || { j=$((i + 1)); cat "${!j}" >>log; }; done\n')
        variables = {"PATH": f"{self.dir}:{os.environ['PATH']}", "HOSTFILE": "hosts"}
        result, log = self.launch_with(self.UNFIT, variables=variables, code=DONE)
        self.assertEqual(log, ["node1 slots=8", "node3"] * 2)  # The first nodes are those of the check, the second those of the run.
        self.assertRegex(result.err, r"\A.*node2.cluster is left out: excluded_hosts.*\n\Z")

    def test_a_hostfile_without_nodes(self):
        (self.dir / "empty").write_text("# of a rack\n\n")
        for name, what in (("not_there", "cannot be read"), ("empty", "names no node")):
            result, log = self.launch_with(self.UNFIT, variables={"HOSTFILE": name}, code=BAD_INPUT)
            self.assertRegex(result.err, rf"\A.*HOSTFILE is {name}, which {what}, expected .*\n\Z")
            self.assertEqual(log, [])

    def test_slurm(self):
        (self.dir / "here").mkdir()
        (self.dir / "here/excluded_hosts").write_text("node2.cluster # as the machine calls itself\n")
        self.write_program("scontrol", "printf 'node%d\\n' 1 2 3\n")
        self.write_program("squeue", "echo UNLIMITED\n")
        self.write_program("srun", 'echo "srun $*" >>log; while [[ $1 == --* ]]; do shift; done; exec "$@"\n')
        variables = {"PATH": f"{self.dir}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT),
                     "SLURM_JOB_NUM_NODES": "3", "SLURM_NTASKS": "24", "SLURM_JOB_NODELIST": "node[1-3]"}
        result, log = self.launch_with(self.UNFIT, variables=variables, script="launch_slurm.sh", code=FAILED)
        nodes = "srun --mpi=pmix --kill-on-bad-exit=1 --nodes=2 --ntasks=16 --exclude=node2 "
        self.assertEqual(log[0], nodes + f"--ntasks=2 --ntasks-per-node=1 {self.dir}/octavo doctor --quick --ranks-per-node 8 --disk here")
        self.assertEqual(len(log), 2)
        self.assertRegex(result.err, r"node2 is left out: excluded_hosts.*\nPROBLEM  node7: 7 GPUs are visible\n")
        self.assertEqual(self.launch_with(self.UNFIT, "--no-check", variables=variables, script="launch_slurm.sh", code=DONE)[1][2:],
                         [nodes + f"{self.dir}/octavo train x.yaml", "train x.yaml"])


class SlurmRestartsTest(Restarted):
    def launch_job(self, *arguments, time_left="UNLIMITED", variables=None):
        """Starts the Slurm launcher with the environment of a job, and with an srun that calls mpirun."""
        self.write_program("squeue", f'echo "   {time_left}"\n')
        # This scancel signals the steps of the job, as Slurm does.
        self.write_program("scancel", f'echo "$@" >>scancel.log; pkill -TERM -f "^{os.environ["OCTAVO"]} train {self.dir}"\n')
        self.write_program("srun", 'echo "$@" >>srun.log\nranks=2\nwhile [[ $1 == --* ]]; do [[ $1 != --ntasks-per-node=1 ]] || ranks=1; shift; done\n'
                                   'exec mpirun -n $ranks --oversubscribe --bind-to none "$@"\n')
        self.write_program("scontrol", '[[ $1 == show ]] || echo "$@" >>scontrol.log\n')
        of_slurm = {"PATH": f"{self.dir}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT)}
        return self.launch("launch_slurm.sh", *arguments, variables=of_slurm | (variables or {}))

    def test_a_rank_is_killed(self):
        config = self.ten_steps(**self.SECTIONS)
        process = self.launch_job("--restarts", 2, config)
        self.kill_a_rank(process, 10)
        result = self.assert_finished(process, config)
        self.assertRegex(self.restarts(result)[0], r"SIGKILL: restart 1 of 2; on the disk: step_")

    def test_the_time_limit_requeues_the_job(self):
        self.assertEqual(self.finish(self.launch_job(self.ten_steps(**self.LONG), time_left="0:16")).code, DONE)
        self.assertEqual(set((self.dir / "scancel.log").read_text().splitlines()), {"--signal=TERM 7"})
        self.assertEqual((self.dir / "scontrol.log").read_text(), "requeue 7\n")
        self.assertEqual(len(checkpoints(self.dir / "checkpoints")), 1)

    def test_the_time_limit_while_no_rank_trains(self):
        """The time limit arrives during the check of the nodes, and in the pause between two starts."""
        for at, options, starts in (("doctor", [], 0), ("train", ["--restarts", "9"], 3)):
            with self.subTest(at):
                (self.dir / "starts").write_text("")
                program = self.write_program("octavo", f'if [[ $1 == train ]]; then echo >>starts; fi\nif [[ $1 != {at} ]]; then exit 0; fi\n'
                                                       '[[ $1 == train ]] || sleep 8\nexit 1\n')
                process = self.launch_job(*options, "x.yaml", time_left="0:05", variables={"OCTAVO": str(program)})
                self.write_program("srun", 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
                result = self.finish(process)
                # The job did not finish a step, so it is not requeued.
                self.assertEqual(result.code, STOPPED, result.err)
                self.assertLessEqual(metrics_lines(self.dir / "starts"), starts)
                self.assertNotIn("times in a row", result.err)

    def test_a_job_too_short_for_a_step_is_not_requeued(self):
        config = self.ten_steps(**self.LONG)
        self.train(config, "training.steps=1")
        self.write_program("octavo", f'if [[ "$1" != train ]]; then exec {os.environ["OCTAVO"]} "$@"; fi\nexit 3\n')
        variables = {"OCTAVO": str(self.dir / "octavo")}
        result = self.finish(self.launch_job("--restarts", 2, config, variables=variables))
        self.assertEqual(result.code, STOPPED)
        self.assertIn("did not suffice for a step", result.err)
        self.assertFalse((self.dir / "scontrol.log").exists())

    def test_the_time_that_squeue_says(self):
        for text, seconds in (("1-02:03:04", 93784), ("02:03:04", 7384), ("08:09", 489), ("0:00", 0), ("UNLIMITED", ""), ("INVALID", "")):
            self.write_program("squeue", f'echo "{text}"\n')
            script = f'SLURM_JOB_ID=7; {self.function("seconds_left")}; seconds_left'
            line = ["bash", "-euc", script]
            result = self.finish(self.start_line(line, None, {"PATH": f"{self.dir}:{os.environ['PATH']}"}))
            self.assertEqual((result.code, result.out.strip()), (0, str(seconds)), text)

    @staticmethod
    def function(name):
        text = (ROOT / "scripts/launch_slurm.sh").read_text()
        return re.search(rf"^{name}\(\) {{\n.*?^}}", text, re.M | re.S)[0]

    def test_a_signal_requeues_the_job(self):
        process = self.launch_job("--restarts", 2, self.ten_steps(**self.LONG))
        self.wait_for_steps(process, 3)
        for pid in self.programs_of(process):
            os.kill(pid, signal.SIGTERM)
        self.assertEqual(self.finish(process).code, DONE)
        self.assertEqual((self.dir / "scontrol.log").read_text(), "requeue 7\n")
        self.assertEqual(len(checkpoints(self.dir / "checkpoints")), 1)

    def test_a_requeued_job_resumes_whatever_checkpoint_resume_says(self):
        program = self.write_program("octavo", '[[ $1 != config ]] || echo here\n[[ $1 == train ]] || exit 0\n'
                                               'echo "$@" >>starts\n[[ ! -e dies ]] || exit 1\nat=here/step_$(date +%s%N); mkdir -p $at; touch $at/manifest.json; exit 3\n')
        given = "train x.yaml checkpoint.resume=never"

        def job(number, count):
            (self.dir / "starts").unlink(missing_ok=True)
            variables = {"OCTAVO": str(program), "SLURM_JOB_ID": number} | ({"SLURM_RESTART_COUNT": str(count)} if count else {})
            code = self.finish(self.launch_job("x.yaml", "checkpoint.resume=never", variables=variables)).code
            return code, set((self.dir / "starts").read_text().splitlines())

        self.assertEqual(job("7", 0), (DONE, {given}))  # The job is requeued.
        for count in (1, 2):
            self.assertEqual(job("7", count), (DONE, {given + " checkpoint.resume=auto"}))
        # The directory belongs to another job.
        self.assertEqual(job("8", 0), (DONE, {given}))
        (self.dir / "dies").touch()
        self.assertEqual(job("9", 0), (FAILED, {given}))
        self.assertFalse((self.dir / "here/slurm_job_9").exists(), "the job is not put back")
        newest = max((self.dir / "here").glob("step_*/manifest.json"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (4_000_000_000, 4_000_000_000))
        (self.dir / "here/slurm_job_10").write_text(f"4000000000.0000000000 {newest.relative_to(self.dir / 'here')}\n")
        self.assertEqual(job("10", 1), (FAILED, {given}))  # A node failed before the job had written a checkpoint.
