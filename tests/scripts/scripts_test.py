"""Tests of the Python scripts that need nothing but the standard library. Run with python3 -m unittest."""

import contextlib
import io
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import count_tests  # noqa: E402
import plot_metrics  # noqa: E402
from scratch import ScratchTest  # noqa: E402


class PlotMetricsTest(ScratchTest):
    def test_later_line_of_a_step_counts_and_half_a_line_is_left_out(self):
        path = self.write(
            "metrics.jsonl",
            '{"step": 2, "loss": 3.0}\n{"step": 1, "loss": 4.0}\n{"step": 2, "loss": 2.5, "validation_loss": 2.75}\n{"step": 3, "lo',
        )
        with contextlib.redirect_stderr(io.StringIO()) as warnings:
            metrics = plot_metrics.read_metrics(path)
        self.assertEqual([entry["step"] for entry in metrics], [1, 2])
        self.assertEqual(metrics[1]["loss"], 2.5)
        self.assertEqual(plot_metrics.last_validation_loss(metrics), 2.75)
        self.assertIn(":4:", warnings.getvalue())

    def test_what_a_run_left_is_not_drawn(self):
        lines = [(1, 4.0), (5, 3.0), (10, 2.5), (4, 3.2), (5, 3.0), (6, 2.9)]  # goes on from step 3 as it was
        path = self.write("metrics.jsonl", "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in lines))
        self.assertEqual([entry["step"] for entry in plot_metrics.read_metrics(path)], [1, 4, 5, 6, 10])
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"step": 5, "loss": 3.5}\n')  # and another way
        self.assertEqual([(entry["step"], entry["loss"]) for entry in plot_metrics.read_metrics(path)], [(1, 4.0), (4, 3.2), (5, 3.5)])

    def test_no_validation(self):
        self.assertIsNone(plot_metrics.last_validation_loss([{"step": 1, "loss": 4.0}]))


class CountTestsTest(ScratchTest):
    REPORT = """<testsuite>
      <testcase name="a" status="run"><system-out>fine</system-out></testcase>
      <testcase name="b" status="fail"><system-out>wrong</system-out></testcase>
      <testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
        <system-out>c_test.cpp:12: Skipped
needs a GPU
</system-out></testcase>
      <testcase name="d" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>skipped: no tool
</system-out></testcase>
      <testcase name="e" status="notrun"><skipped message=""/><system-out>Unable to find executable</system-out></testcase>
      </testsuite>"""

    def run_main(self, report):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = count_tests.main([self.write("ctest.xml", report)])
        return code, output.getvalue().splitlines()

    def test_counts_and_reasons(self):
        code, lines = self.run_main(self.REPORT)
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "1 passed, 2 failed, 2 skipped")
        self.assertIn("skipped 1: needs a GPU", lines)
        self.assertIn("skipped 1: no tool", lines)
        self.assertEqual(lines[1], "    wrong", "what a failed test printed follows it")

    def test_all_passed(self):
        code, lines = self.run_main('<testsuite><testcase name="a" status="run"/></testsuite>')
        self.assertEqual((code, lines), (0, ["1 passed, 0 failed, 0 skipped"]))

    def test_nothing_ran_is_a_failure(self):
        self.assertEqual(self.run_main("<testsuite/>")[0], 1)


if __name__ == "__main__":
    unittest.main()
