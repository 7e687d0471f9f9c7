#!/usr/bin/env python3
"""Summarizes the JUnit reports of ctest. Prints the failed tests with their last lines, why tests were skipped, and one last line with
the counts.

    count_tests.py REPORT.xml...     exit code 1 if a test failed or none ran

A ctest test that runs a suite writes the result of each single test to results/NAME.xml next to the report. The single tests are counted
instead of the suite.
"""

import collections
import re
import sys
import xml.etree.ElementTree
from pathlib import Path

# The reason a GoogleTest gives to GTEST_SKIP() follows the file and line; other tests print "skipped: reason".
REASON = re.compile(r"Skipped\n(.+)|^skipped: (.+)$", re.MULTILINE)

TAIL = 40  # Maximum number of lines shown of a failed test.
COLUMNS = 400  # Maximum length of such a line.


def tail(case):
    lines = (case.findtext("system-out") or "").rstrip().splitlines()[-TAIL:]
    return "".join(f"\n    {line[:COLUMNS]}" for line in lines)


def skip_reason(case):
    output = case.findtext("system-out") or ""
    match = REASON.search(output)
    return (match.group(1) or match.group(2)).strip() if match else "no reason given"


def is_skipped(case):
    """Returns whether the test itself reported a skip. A test that ctest could not start, for example because its executable is
    missing, has failed."""
    message = (case.find("skipped").get("message") or "") if case.find("skipped") is not None else ""
    return case.get("status") == "disabled" or message.startswith("SKIP_")


def single_tests(report, case):
    """Returns (name, outcome, reason of a skip) of the tests that a ctest test ran, or of the test itself."""
    name = case.get("name")
    itself = "passed" if case.get("status") == "run" else "skipped" if is_skipped(case) else "failed"
    results = Path(report).parent / "results" / f"{name}.xml"
    tests = []
    if results.exists():
        for test in xml.etree.ElementTree.parse(results).getroot().iter("testcase"):
            skipped = test.find("skipped")
            outcome = "failed" if test.find("failure") is not None else "passed" if skipped is None else "skipped"
            reason = skipped.get("message").strip().splitlines()[-1] if outcome == "skipped" else None
            tests.append((f"{name}: {test.get('classname')}.{test.get('name')}", outcome, reason))
    # A suite that crashed has no results. A suite that failed after its tests, for example with a leak, has no failed test. Both are
    # counted as one failed test.
    if not tests or itself == "failed" and all(outcome != "failed" for _, outcome, _ in tests):
        tests.append((name, itself, skip_reason(case)))
    return tests


def main(reports):
    passed, failed, reasons = 0, [], collections.Counter()
    for report in reports:
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            found = single_tests(report, case)
            outcomes = collections.Counter(outcome for _, outcome, _ in found)
            passed += outcomes["passed"]
            reasons.update(reason for _, outcome, reason in found if outcome == "skipped")
            failed += [f"{report}: {name}" for name, outcome, _ in found if outcome == "failed"]
            if outcomes["failed"]:
                failed[-1] += tail(case)
    for test in failed:
        print(f"FAILED {test}")
    for reason, count in reasons.most_common():
        print(f"skipped {count}: {reason}")
    print(f"{passed} passed, {len(failed)} failed, {sum(reasons.values())} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
