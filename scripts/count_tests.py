#!/usr/bin/env python3
"""Adds up the JUnit reports of ctest: the failed tests with the last lines they printed, why tests were skipped, and one
last line with the counts.

    count_tests.py REPORT.xml...     exit code 1 when a test failed or none ran
"""

import collections
import re
import sys
import xml.etree.ElementTree

# The reason a GoogleTest gives to GTEST_SKIP() follows the file and line; other tests print "skipped: reason".
REASON = re.compile(r"Skipped\n(.+)|^skipped: (.+)$", re.MULTILINE)

TAIL = 40  # lines that are shown of a failed test, of
COLUMNS = 400  # at most


def tail(case):
    lines = (case.findtext("system-out") or "").rstrip().splitlines()[-TAIL:]
    return "".join(f"\n    {line[:COLUMNS]}" for line in lines)


def skip_reason(case):
    output = case.findtext("system-out") or ""
    match = REASON.search(output)
    return (match.group(1) or match.group(2)).strip() if match else "no reason given"


def is_skipped(case):
    """Skipped by its own word. What ctest could not start, an executable that is missing say, has failed."""
    message = (case.find("skipped").get("message") or "") if case.find("skipped") is not None else ""
    return case.get("status") == "disabled" or message.startswith("SKIP_")


def main(reports):
    passed, failed, reasons = 0, [], collections.Counter()
    for report in reports:
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            if case.get("status") == "run":
                passed += 1
            elif is_skipped(case):
                reasons[skip_reason(case)] += 1
            else:
                failed.append(f"{report}: {case.get('name')}{tail(case)}")
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
