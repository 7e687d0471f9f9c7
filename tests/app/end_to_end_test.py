#!/usr/bin/env python3
"""Runs the end-to-end tests, which use octavo through its command line and check its output and files independently.

    end_to_end_test.py [--results FILE] OCTAVO [CLASS...]     OCTAVO is the program. By default all test classes run.

The tests are in end_to_end/, one file per subject. They need mpirun and Python's standard library. --results writes the result of each
test in GoogleTest's format for scripts/count_tests.py. The exit code is 77 if every test was skipped.
"""

import argparse
import os
import sys
import unittest
import xml.etree.ElementTree as xml
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


def write_results(path, tests, result):
    """Writes the result of each test, with those of the failed subtests. Errors outside tests, such as in setUpClass, are listed as
    tests."""
    root = xml.Element("testsuites")
    cases = {test.id(): xml.SubElement(root, "testcase", classname=type(test).__name__, name=test._testMethodName) for test in tests}
    for kind, outcomes in (("failure", result.failures + result.errors), ("skipped", result.skipped)):
        for test, text in outcomes:
            whole = getattr(test, "test_case", test)  # A subtest has its test in this member.
            if whole.id() not in cases:
                cases[whole.id()] = xml.SubElement(root, "testcase", classname="", name=whole.id())
            xml.SubElement(cases[whole.id()], kind, message=text)
    path.parent.mkdir(parents=True, exist_ok=True)
    xml.ElementTree(root).write(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path)
    parser.add_argument("octavo", type=Path)
    parser.add_argument("classes", nargs="*")
    options = parser.parse_args()
    os.environ["OCTAVO"] = str(options.octavo.resolve(strict=True))
    classes = test_classes()
    names = options.classes or list(classes)
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    tests = [test for name in names for test in load(classes[name])]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(tests))
    if options.results:
        write_results(options.results, tests, result)
    if not result.wasSuccessful() or result.testsRun == 0:
        sys.exit(1)
    if len(result.skipped) == result.testsRun:
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
