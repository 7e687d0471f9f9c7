#!/usr/bin/env python3
"""Checks that the results of cmake --install and CPack are complete and work from where they are installed.

    install_check.py BUILD_DIR
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = Path(sys.argv.pop(1)).resolve()
ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
model: {hidden_size: 64, intermediate_size: 96, num_layers: 1, num_heads: 2, num_kv_heads: 1, head_dim: 32, vocab_size: 272}
data: {train: [{path: readme}], seq_len: 32}
training: {steps: 2, global_batch_size: 2, micro_batch_size: 1}
logging: {dir: log}
device: cpu
"""


def run(*line, cwd, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "OCTAVO"} | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(list(map(str, line)), cwd=cwd, env=environment | variables, capture_output=True, text=True)
    assert result.returncode == 0, f"{line}: {result.returncode} {result.stdout}{result.stderr}"
    return result


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="octavo_install_")
        cls.addClassCleanup(scratch.cleanup)
        cls.dir = Path(scratch.name)
        cls.prefix = cls.dir / "opt"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix, cwd=cls.dir)
        (cls.dir / "config.yaml").write_text(CONFIG)
        run(cls.prefix / "bin/octavo", "pack", "--input", cls.prefix / "share/doc/octavo/README.md", "--output", "readme", cwd=cls.dir)

    def test_what_is_there(self):
        for name in ("bin/octavo", "share/octavo/configs/quickstart.yaml", "share/octavo/scripts/hf_tokenizer.py",
                     "share/octavo/scripts/tokenizing/run.py", "share/doc/octavo/LICENSE", "share/doc/octavo/docs/config.md"):
            self.assertTrue((self.prefix / name).is_file(), name)
        for script in ("make_golden.py", "test.sh", "tokenizing/__pycache__"):
            self.assertFalse((self.prefix / "share/octavo/scripts" / script).exists(), script)

    def train(self, prefix):
        launcher = prefix / "share/octavo/scripts/launch_mpirun.sh"
        return run(launcher, "config.yaml", "checkpoint.resume=never", cwd=self.dir, NPROC="1").stdout

    def test_the_launcher_finds_the_program(self):
        self.assertRegex(self.train(self.prefix), r"step 2/2 |2/2")

    def test_the_slurm_script_finds_the_program(self):
        """It runs as a copy, with an srun that says what it was to run."""
        (self.dir / "stub").mkdir()
        for name, text in (("srun", 'echo "${@:3}"'), ("squeue", "echo UNLIMITED")):
            (self.dir / "stub" / name).write_text(f"#!/bin/bash\n{text}\n")
            (self.dir / "stub" / name).chmod(0o755)
        copy = shutil.copy(self.prefix / "share/octavo/scripts/launch_slurm.sh", self.dir / "slurm_script")
        path = f"{self.dir}/stub:{self.prefix}/bin:{os.environ['PATH']}"
        out = run(copy, "--no-check", "config.yaml", cwd=self.dir, PATH=path, SLURM_SUBMIT_DIR=str(self.dir), SLURM_JOB_ID="1").stdout
        self.assertEqual(out, f"{self.prefix}/bin/octavo train config.yaml\n")

    @unittest.skipUnless(shutil.which("dpkg-deb") and shutil.which("cpack"), "dpkg-deb or cpack is not installed")
    def test_package(self):
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", "DEB", "-B", self.dir / "package", cwd=self.dir)
        (package,) = (self.dir / "package").glob("octavo_*.deb")
        run("dpkg-deb", "-x", package, self.dir / "root", cwd=self.dir)
        self.assertRegex(self.train(self.dir / "root/usr"), r"step 2/2 |2/2")
        declared = run("dpkg-deb", "-f", package, "Depends", "Description", cwd=self.dir).stdout
        self.assertIn("openmpi-bin", declared)
        if shutil.which("dpkg-shlibdeps"):
            for library in ("yaml-cpp", "openmpi", "fmt"):
                self.assertIn(f"lib{library}", declared)
        declared = declared.replace("cuda-cudart", "libcudart")
        linked = run("readelf", "-d", self.prefix / "bin/octavo", cwd=self.dir).stdout
        for library in ("libcudart", "libcudnn", "libnccl"):
            self.assertEqual(library in declared, library in linked, library)
        # cuBLASLt is loaded by name when a GPU first needs it.
        loaded = b"libcublasLt.so" in (self.prefix / "bin/octavo").read_bytes()
        self.assertEqual("libcublas" in declared, loaded)

    @unittest.skipUnless(shutil.which("qemu-x86_64") and platform.machine() == "x86_64", "qemu-x86_64 is not installed")
    def test_an_old_processor_is_named(self):
        line = ["qemu-x86_64", "-cpu", "Nehalem", self.prefix / "bin/octavo", "--version"]
        result = subprocess.run(line, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertRegex(result.stderr, r"octavo: this processor lacks AVX2.*native\n\Z")


if __name__ == "__main__":
    unittest.main()
