"""Tests what scripts/fp8_loss_parity.py makes of the losses of branches. tests/app/end_to_end/fp8_branches_test.py runs it."""

import math
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import fp8_loss_parity as parity


def row(branch, trunk, seed, loss, length=1):
    return {"branch": branch, "trunk": trunk, "seed": seed, "length": length, "steps": 100 * length, "wps": 10.0,
            "loss": 1.01 * loss, "loss_bfloat16": loss}


class IntervalTest(unittest.TestCase):
    def test_students_t(self):
        # The sample 1, 2, 3 has the standard deviation 1, and t with two degrees of freedom is 4.303.
        mean, half_width = parity.interval_95([1.0, 2.0, 3.0])
        self.assertEqual(mean, 2.0)
        self.assertAlmostEqual(half_width, 4.303 / math.sqrt(3), places=3)
        self.assertEqual(parity.interval_95([5.0]), (5.0, math.inf))

    def test_verdicts(self):
        cases = [
            ((0.05, 0.04), "equal"),
            ((-0.05, 0.04), "equal"),
            ((0.05, 0.06), "undecided"),
            ((0.3, 0.1), "worse"),
            ((-0.3, 0.1), "undecided"),
            ((0.0, math.inf), "undecided"),
            ((math.nan, 0.1), "diverged"),
        ]
        for interval, expected in cases:
            with self.subTest(interval):
                self.assertEqual(parity.verdict(*interval), expected)


class TableTest(unittest.TestCase):
    def test_pairs_have_one_trunk_length_and_seed(self):
        rows = [row("bfloat16", "a", 0, 2.0), row("bfloat16", "a", 1, 4.0), row("bfloat16", "b", 0, 8.0), row("bfloat16", "a", 0, 1.0, 2),
                row("tensorwise", "a", 0, 2.02), row("tensorwise", "a", 1, 4.04), row("tensorwise", "b", 0, 8.08),
                row("tensorwise", "a", 5, 9.0), row("tensorwise", "a", 0, 1.1, 2)]
        lines = parity.table(rows)
        self.assertEqual(len(lines), 2 + 4)
        self.assertIn("| tensorwise | 100 steps | 3 |", lines[3])
        self.assertIn("+1.000% ± 0.000% | worse |", lines[3])
        self.assertIn("| tensorwise | 200 steps | 1 |", lines[5])
        self.assertIn("+10.000% | undecided |", lines[5])


if __name__ == "__main__":
    unittest.main()
