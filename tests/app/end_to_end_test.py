#!/usr/bin/env python3
"""Uses octavo as its users do, through the command line, and checks what comes out independently.

    end_to_end_test.py OCTAVO [CLASS...]     OCTAVO: the program; CLASS: test classes, all by default

The tests are in end_to_end/, by subject. They need mpirun and Python's standard library. Exit code 77: every test was
skipped.
"""

import os
import sys
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "end_to_end"
SKIPPED = 77


def test_classes():
    sys.path.insert(0, str(FOLDER))
    classes = {}
    for path in sorted(FOLDER.glob("*_test.py")):
        for name, value in vars(__import__(path.stem)).items():
            if isinstance(value, type) and issubclass(value, unittest.TestCase) and name.endswith("Test"):
                classes[name] = value
    return classes


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    os.environ["OCTAVO"] = str(Path(sys.argv[1]).resolve(strict=True))
    classes = test_classes()
    names = sys.argv[2:] or list(classes)
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    suite = unittest.TestSuite(load(classes[name]) for name in names)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if not result.wasSuccessful() or result.testsRun == 0:
        sys.exit(1)
    if len(result.skipped) == result.testsRun:
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
