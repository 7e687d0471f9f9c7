"""Tests that scripts/launch_*.sh refuse bad input with one sentence and exit code 2."""

import os
import subprocess
import sys
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

    def test_slurm(self):
        self.refuse("launch_slurm.sh", "c.yaml", mentions="not a Slurm job: submit it with sbatch")
        job = {"SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(ROOT)}
        self.refuse("launch_slurm.sh", mentions="no config is given", **job)
        self.refuse("launch_slurm.sh", "c.yaml", mentions="/nowhere/octavo is not there", **job | {"OCTAVO": "/nowhere/octavo"})


if __name__ == "__main__":
    unittest.main()
