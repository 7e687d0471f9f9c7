"""Tests that scripts refuse bad input with one sentence and exit code 2 and print their help, and what the launchers do with signals and
variables of the environment. A stand-in replaces mpirun."""

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/scripts"))

from scratch import ScratchTest  # noqa: E402


class LaunchersTest(ScratchTest):
    def refuse(self, script, *arguments, mentions, **variables):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "NPROC", "HOSTFILE"))}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OCTAVO": "/bin/true"} | variables
        result = subprocess.run([ROOT / "scripts" / script, *arguments], cwd=self.root, env=environment, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertRegex(result.stderr, rf"\A{script}: [^\n]*{mentions}[^\n]*\n\Z")

    def test_mpirun(self):
        self.refuse("launch_mpirun.sh", mentions="no config is given, expected .*CONFIG.yaml")
        self.refuse("launch_mpirun.sh", "--restarts", "x", "c.yaml", mentions="--restarts is 'x'")
        self.refuse("launch_mpirun.sh", "c.yaml", mentions="no GPU is found; NPROC=2")
        self.refuse("launch_mpirun.sh", "c.yaml", mentions="NPROC is two", NPROC="two")
        self.refuse("launch_mpirun.sh", "c.yaml", mentions="/nowhere/octavo is not there: build it", NPROC="1", OCTAVO="/nowhere/octavo")
        self.refuse("launch_mpirun.sh", "c.yaml", mentions="HOSTFILE is nowhere", NPROC="1", HOSTFILE="nowhere")
        self.refuse("launch_mpirun.sh", "c.yaml", mentions="NODES is 0", NPROC="1", NODES="0")

    def test_slurm(self):
        self.refuse("launch_slurm.sh", "c.yaml", mentions="not a Slurm job: submit it with sbatch")
        job = {"SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(ROOT)}
        self.refuse("launch_slurm.sh", mentions="no config is given", **job)
        self.refuse("launch_slurm.sh", "c.yaml", mentions="/nowhere/octavo is not there", **job | {"OCTAVO": "/nowhere/octavo"})

    def test_help_is_printed_and_nothing_is_done(self):
        scripts = sorted(set((ROOT / "scripts").glob("*.sh")) - {ROOT / "scripts/common.sh", ROOT / "scripts/launching.sh"})
        self.assertGreater(len(scripts), 8)
        lines = [(script, "--help") for script in scripts] + [(ROOT / "scripts/launch_mpirun.sh", "--restarts", "3", "-h")]
        for script, *arguments in lines:
            with self.subTest(script.name, arguments=arguments):
                result = subprocess.run([script, *arguments], cwd=self.root, capture_output=True, text=True, check=False)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                comment = script.read_text().split("\n")[1:]
                self.assertEqual(result.stdout.split("\n")[0], comment[0].removeprefix("# "))
                self.assertNotIn("set -euo", result.stdout)
                self.assertNotIn("shellcheck", result.stdout)

    def test_the_quick_start_refuses_before_it_builds_or_deletes(self):
        for argument in ("--fast", "-x", "steps", "--steps=5"):
            self.refuse("quickstart.sh", argument, mentions=f"the argument is '{argument}', expected section.key=value")


class StandIn(ScratchTest):
    def launch(self, mpirun, *options, **variables):
        """Starts launch_mpirun.sh with an mpirun that is the given script."""
        (self.root / "bin").mkdir(exist_ok=True)
        path = self.root / "bin/mpirun"
        path.write_text(f"#!/bin/bash\n{mpirun}")
        path.chmod(0o755)
        environment = os.environ | {"OCTAVO": "/bin/true", "NPROC": "1", "PATH": f"{path.parent}:{os.environ['PATH']}"} | variables
        return subprocess.Popen([ROOT / "scripts/launch_mpirun.sh", "--no-check", *options, "c.yaml"], cwd=self.root, env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_variables_of_the_network_are_passed_on(self):
        out, _ = self.launch('printf "%s\\n" "$@"', NCCL_DEBUG="WARN", UCX_TLS="rc", FI_PROVIDER="efa", OMPI_MCA_btl="tcp,self", OTHER_UCX_="x",
                             OMPI_MCA_mca_base_env_list="A=1").communicate()
        lines = out.splitlines()
        passed = {lines[i + 1] for i, line in enumerate(lines) if line == "-x"}
        self.assertLessEqual({"NCCL_DEBUG", "UCX_TLS", "FI_PROVIDER", "OMPI_MCA_btl", "OMPI_MCA_plm_rsh_agent"}, passed)
        self.assertNotIn("OTHER_UCX_", passed)
        self.assertNotIn("OMPI_MCA_mca_base_env_list", passed, "mpirun refuses -x beside it")

    def test_a_run_that_fails_after_its_last_checkpoint_has_failed(self):
        """The second start of the stand-in has nothing left to do."""
        once = 'if [[ -e once ]]; then exit 0; fi; touch once; exit '
        for code, expected in ((1, 1), (137, 0)):
            with self.subTest(code):
                (self.root / "once").unlink(missing_ok=True)
                process = self.launch(f"{once}{code}", "--restarts", "2")
                _, err = process.communicate()
                self.assertEqual(process.returncode, expected, err)
                self.assertIn("restart 1 of 2", err)

    def test_an_mpirun_that_does_not_end_is_killed(self):
        """This mpirun ignores SIGTERM and waits forever, although its rank has ended. The pauses of the launcher are short."""
        (self.root / "bin").mkdir()
        for name, text in (("sleep", "read -rt 0.05 <> <(:)\n"), ("octavo", "[[ $1 != train ]] || read -rt 0.5 <> <(:)\n")):
            (self.root / "bin" / name).write_text(f"#!/bin/bash\n{text}")
            (self.root / "bin" / name).chmod(0o755)
        hangs = 'trap "" TERM USR1\nwhile [[ $1 != train ]]; do program="$1"; shift; done\n"$program" train & wait\nwhile :; do read -rt 1 <> <(:); done'
        process = self.launch(hangs, "--restarts", "1", OCTAVO=str(self.root / "bin/octavo"))
        _, err = process.communicate()
        self.assertEqual(process.returncode, 137, err)
        self.assertEqual(err.count("mpirun is killed, because it has not ended within 30 s"), 2, err)
        self.assertIn("the run ended by SIGKILL: restart 1 of 1", err)

    def test_signals_make_the_ranks_save(self):
        for name in ("SIGUSR1", "SIGTERM", "SIGINT"):
            with self.subTest(name):
                started = self.root / name
                launcher = self.launch(f"trap 'exit 3' USR1\ntouch {started}\nwhile :; do read -rt 0.05 <> <(:); done\n")
                while not started.exists() and launcher.poll() is None:
                    time.sleep(0.01)
                launcher.send_signal(getattr(signal, name))
                _, errors = launcher.communicate()
                self.assertEqual(launcher.returncode, 3, errors)
                self.assertIn(f"{name}: the ranks are told to save", errors)

    def test_a_signal_when_a_killed_run_would_be_restarted(self):
        """This mpirun signals the launcher and ends as if a rank had been killed, or had failed to save."""
        for options, code, expected in ((("--restarts", "5"), 137, 3), ((), 137, 137), (("--restarts", "0"), 137, 137), (("--restarts", "5"), 1, 1)):
            with self.subTest(options=options, code=code):
                launcher = self.launch(f"trap '' USR1\nkill -TERM $PPID\nsleep 0.2\nexit {code}\n", *options)
                _, errors = launcher.communicate()
                self.assertEqual(launcher.returncode, expected, errors)
                self.assertEqual("ended by SIGKILL, and the request to stop" in errors, expected == 3)


if __name__ == "__main__":
    unittest.main()
