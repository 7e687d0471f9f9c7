#!/usr/bin/env python3
"""Compares the losses of two runs step by step.

    compare_metrics.py A/metrics.jsonl B/metrics.jsonl [--tolerance 0.01]

Prints the largest relative differences of loss, validation loss and gradient norm. The exit code is 1 if a loss differs by more than the
tolerance, or if the runs have no step in common.
"""

import argparse
import sys

from plot_metrics import read_metrics


def largest_difference(a, b, key):
    """Returns (relative difference, step) of the largest difference over the steps where both have the key, or None."""
    other = {entry["step"]: entry.get(key) for entry in b}
    pairs = [(entry["step"], entry.get(key), other.get(entry["step"])) for entry in a]
    differences = [(abs(x - y) / max(abs(x), 1e-12), step) for step, x, y in pairs if x is not None and y is not None]
    return max(differences, default=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--tolerance", type=float, default=0.01, help="largest accepted relative difference of a loss")
    arguments = parser.parse_args()
    a, b = read_metrics(arguments.a), read_metrics(arguments.b)
    found = {key: largest_difference(a, b, key) for key in ("loss", "validation_loss", "grad_norm")}
    if found["loss"] is None:
        parser.exit(1, f"{arguments.a} and {arguments.b} have no step in common\n")
    for key, difference in found.items():
        if difference:
            print(f"{key}: differs by at most {difference[0]:.2e}, at step {difference[1]}")
    losses = [found[key][0] for key in ("loss", "validation_loss") if found[key]]
    return 0 if max(losses) <= arguments.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
