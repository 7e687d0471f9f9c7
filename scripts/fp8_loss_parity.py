#!/usr/bin/env python3
"""Compares the losses of runs that differ only in the recipe of their linears. scripts/fp8_loss_parity.sh makes these runs.

    fp8_loss_parity.py RUN/metrics.jsonl MORE/metrics.jsonl... [--last 200] [--csv losses.csv] [--png losses.png]

All runs are compared with the first one. A run is named after its folder. The script prints a table. --png needs matplotlib.
"""

import argparse
import csv
import statistics
import sys
from pathlib import Path

from plot_metrics import PICTURE_MARK, check_output, last_validation_loss, read_metrics, write_picture

# Largest difference from bfloat16, in percent, that a recipe may have.
TARGETS = {"fp8_tensorwise": 0.5, "fp8_delayed": 0.5, "fp8_rowwise": 0.3, "fp8_blockwise": 0.3}


CSV_BEGIN = "step,"  # First column of every CSV that this script writes.


def losses_by_step(metrics):
    return {entry["step"]: entry["loss"] for entry in metrics if entry.get("loss") is not None}


def percent(value, reference):
    return 100.0 * (value / reference - 1.0)


def table(runs, last):
    """Returns the lines of a Markdown table with one row per run."""
    lines = [
        f"| recipe | mean loss, last {last} steps | to {runs[0][0]} | target | validation loss | to {runs[0][0]} | wps |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for index, (name, metrics) in enumerate(runs):
        losses = [entry["loss"] for entry in metrics[-last:]]
        # A NaN or infinite step has no loss, and an average without it would hide it.
        mean = statistics.fmean(losses) if None not in losses else float("nan")
        validation = last_validation_loss(metrics)
        # The first steps choose algorithms, and a step after validation waits for it.
        wps = statistics.median(entry["wps"] for entry in metrics[len(metrics) // 10 :])
        if index == 0:
            reference, reference_validation = mean, validation
        target = f"{TARGETS[name]}%" if name in TARGETS else ""
        difference = f"{percent(mean, reference):+.3f}%" if index else ""
        row = [name, f"{mean:.5f}", difference, target]
        if validation is None or reference_validation is None:
            row += ["", ""]
        else:
            row += [f"{validation:.5f}", f"{percent(validation, reference_validation):+.3f}%" if index else ""]
        lines.append(f"| {' | '.join(row)} | {wps:,.0f} |")
    return lines


def write_csv(runs, path, every):
    columns = [losses_by_step(metrics) for _, metrics in runs]
    steps = sorted(set().union(*columns))
    with open(path, "w", newline="", encoding="utf-8") as output:
        writer = csv.writer(output, lineterminator="\n")
        writer.writerow([CSV_BEGIN.rstrip(",")] + [name for name, _ in runs])
        for step in steps:
            if step % every == 0:
                writer.writerow([step] + [f"{column[step]:.5f}" if step in column else "" for column in columns])


def moving_mean(values, window):
    """Returns the mean of each value and up to window - 1 values before it."""
    means, total = [], 0.0
    for index, value in enumerate(values):
        total += value - (values[index - window] if index >= window else 0.0)
        means.append(total / min(index + 1, window))
    return means


def draw(runs, path, window):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (curves, differences) = pyplot.subplots(2, 1, figsize=(9, 8), dpi=120, sharex=True)
    reference = losses_by_step(runs[0][1])
    for index, (name, metrics) in enumerate(runs):
        losses = losses_by_step(metrics)
        steps = [step for step in sorted(losses) if step in reference]
        smooth = moving_mean([losses[step] for step in steps], window)
        curves.plot(steps, smooth, color=f"C{index}", linewidth=1.2, label=name)
        if index:
            base = moving_mean([reference[step] for step in steps], window)
            differences.plot(steps, [percent(*pair) for pair in zip(smooth, base)], color=f"C{index}", linewidth=1.2, label=name)
    for target in sorted(set(TARGETS.values())):
        for sign in (-1, 1):
            differences.axhline(sign * target, color="black", linestyle=":", linewidth=0.8)
    curves.set_ylabel(f"cross entropy, nats per token\nmean of {window} steps")
    differences.set_ylim(-2, 2)
    differences.set_ylabel(f"difference to {runs[0][0]}, %")
    differences.set_xlabel("step; dotted: targets")
    for axes in (curves, differences):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    write_picture(figure, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", nargs="+", type=Path, help="metrics.jsonl of the runs, with the reference first")
    parser.add_argument("--last", type=int, default=200, help="number of steps at the end that are averaged")
    parser.add_argument("--csv", type=Path, help="CSV file to write with the losses")
    parser.add_argument("--csv-every", type=int, default=10, help="steps between two rows of the CSV file")
    parser.add_argument("--png", type=Path, help="PNG file to write with the loss curves")
    parser.add_argument("--window", type=int, default=50, help="number of steps that each point of the curves averages")
    arguments = parser.parse_args()
    for path, mark in ((arguments.csv, CSV_BEGIN), (arguments.png, PICTURE_MARK)):
        if path:
            check_output(parser, path, mark)

    runs = [(path.parent.name, read_metrics(path)) for path in arguments.metrics]
    lengths = {metrics[-1]["step"] if metrics else 0 for _, metrics in runs}
    if len(lengths) != 1 or 0 in lengths:
        parser.exit(1, f"the runs end at different steps: {sorted(lengths)}\n")
    print(*table(runs, arguments.last), sep="\n")
    if arguments.csv:
        write_csv(runs, arguments.csv, arguments.csv_every)
    if arguments.png:
        draw(runs, arguments.png, arguments.window)
    return 0


if __name__ == "__main__":
    sys.exit(main())
