"""Tests of scripts/python_packages.py: which Python runs a script, and the message if none has the packages."""

import os
import stat
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import python_packages  # noqa: E402
from scratch import ScratchTest  # noqa: E402

PACKAGE = "octavo_test_package"


class PythonPackagesTest(ScratchTest):
    def setUp(self):
        super().setUp()
        self.write(f"packages/{PACKAGE}.py", "")
        self.python = self.write("python3", f"#!/bin/sh\nPYTHONPATH={self.root}/packages exec {sys.executable} \"$@\"\n")
        os.chmod(self.python, stat.S_IRWXU)
        self.script = self.write("script.py", f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
from python_packages import need_packages
need_packages("{PACKAGE}")
import {PACKAGE}
print(sys.argv[1:])
""")

    def run_script(self, **environment):
        environment = {key: value for key, value in os.environ.items() if key != "OCTAVO_PYTHON"} | environment
        return subprocess.run([sys.executable, self.script, "a b", "c"], env=environment, capture_output=True, text=True)

    def test_the_script_runs_with_octavo_python(self):
        self.assertEqual(self.run_script(OCTAVO_PYTHON=self.python).stdout, "['a b', 'c']\n")

    def test_a_missing_package_is_one_sentence(self):
        for environment in ({}, {"OCTAVO_PYTHON": "/nowhere/python3"}, {"OCTAVO_PYTHON": sys.executable}):
            result = self.run_script(**environment)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertRegex(result.stderr, rf"\Ascript.py: \S+ lacks the Python package {PACKAGE}: run `python3 -m venv .*install {PACKAGE}`\n\Z")

    @unittest.skipIf(python_packages.VENV.exists(), "the virtual environment has all packages")
    def test_tokenizing_takes_a_python_with_tokenizers_alone(self):
        python = self.write("python", """#!/bin/sh
case "$1 $2" in *zstandard*) exit 1 ;; "-c "*) exit 0 ;; *) echo started ;; esac
""")
        os.chmod(python, stat.S_IRWXU)
        line = [sys.executable, "-S", ROOT / "scripts/tokenize_hf.py", "--train-bpe", "300", "--input", "a", "--output", "b"]
        result = subprocess.run(line, env=os.environ | {"OCTAVO_PYTHON": str(python)}, capture_output=True, text=True)
        self.assertEqual(result.stdout, "started\n", result.stderr)

    def test_octavo_python_comes_before_the_venv(self):
        venv = self.root / "venv"
        (venv / "bin").mkdir(parents=True)
        (venv / "bin/python3").symlink_to(self.python)
        with mock.patch.object(python_packages, "VENV", venv):
            with mock.patch.dict(os.environ, OCTAVO_PYTHON=self.python):
                self.assertEqual(python_packages.other_python([PACKAGE]), self.python)
            with mock.patch.dict(os.environ, OCTAVO_PYTHON=sys.executable):
                self.assertEqual(python_packages.other_python([PACKAGE]), str(venv / "bin/python3"))
            self.assertIsNone(python_packages.other_python([PACKAGE, "octavo_other_package"]))

    def test_the_remedy_works_where_the_scripts_are(self):
        self.assertEqual(python_packages.remedy(["tokenizers"]), f"run {ROOT}/scripts/setup.sh --tokenizing")
        self.assertIn(".deps/venv", python_packages.remedy(["torch"]))
        # An installation has no setup.sh.
        with mock.patch.object(python_packages, "ROOT", self.root):
            self.assertIn("set OCTAVO_PYTHON=~/octavo_venv/bin/python3", python_packages.remedy(["tokenizers"]))

    def test_scripts_that_lack_a_package_say_so(self):
        metrics = self.write("metrics.jsonl", '{"step": 1, "loss": 2}\n')
        for script, arguments, package in (("plot_metrics.py", [metrics, "--output", "loss.png"], "matplotlib"),
                                           ("check_export.py", [self.root], "torch"),
                                           ("import_checkpoint.py", [self.root], "torch"), ("wandb_sync.py", [self.root], "wandb")):
            result = subprocess.run([sys.executable, "-S", ROOT / "scripts" / script, *arguments], capture_output=True, text=True,
                                    env=os.environ | {"OCTAVO_PYTHON": "/nowhere/python3"})
            if (ROOT / ".deps/venv").exists() and result.returncode == 0:
                continue
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"lacks the Python package {package}", result.stderr)
            self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    unittest.main()
