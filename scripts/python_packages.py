"""Runs a script with a Python that has the packages that it needs."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".deps/venv"
TRIED = "OCTAVO_PYTHON_TRIED"  # Set in the environment of a script that was started again with another Python.
TOKENIZING = ("tokenizers", "pyarrow", "zstandard")  # Packages that scripts/setup.sh --tokenizing installs.


def missing_packages(packages):
    return [package for package in packages if package not in sys.modules and not is_installed(package)]


def is_installed(package):
    """Returns whether the package is installed. A folder of the same name on the path has no origin and does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def has_packages(python, packages):
    names = ", ".join(repr(package) for package in packages)
    line = (f"import importlib.util, sys; sys.path.pop(0); specs = [importlib.util.find_spec(p) for p in [{names}]]; "
            "sys.exit(not all(spec and spec.origin for spec in specs))")
    try:
        return subprocess.run([python, "-c", line], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def other_python(packages):
    """Returns the first of OCTAVO_PYTHON and the Python of .deps/venv that has the packages, or None."""
    if os.environ.get(TRIED):  # An earlier start of the script chose this Python.
        return None
    candidates = [os.environ.get("OCTAVO_PYTHON"), str(VENV / "bin/python3")]
    return next((python for python in candidates if python and has_packages(python, packages)), None)


def remedy(packages):
    """Returns how to install the packages if the distribution manages the system's Python (PEP 668)."""
    in_checkout = (ROOT / "scripts/setup.sh").exists()
    if in_checkout and set(packages) <= set(TOKENIZING):
        return f"run {ROOT}/scripts/setup.sh --tokenizing"
    venv = VENV if in_checkout else Path("~/octavo_venv")
    return (f"run `python3 -m venv {venv} && {venv}/bin/pip install {' '.join(packages)}`"
            + ("" if in_checkout else f" and set OCTAVO_PYTHON={venv}/bin/python3"))


def sentence(packages):
    return f"{sys.executable} lacks the Python package {' and '.join(packages)}: {remedy(packages)}"


def find_packages(*packages):
    """Returns None if this Python has the packages. Otherwise starts the script again with a Python that has them, or returns the
    sentence that says what is missing and how to install it."""
    missing = missing_packages(packages)
    if not missing:
        return None
    python = other_python(packages)
    if python:
        sys.stdout.flush()
        os.environ[TRIED] = "1"
        os.execvp(python, [python, *sys.argv])
    return sentence(missing)


def need_packages(*packages):
    """Like find_packages(), but ends the script with exit code 2 if the packages are missing."""
    problem = find_packages(*packages)
    if problem:
        print(f"{Path(sys.argv[0]).name}: {problem}", file=sys.stderr)
        sys.exit(2)
