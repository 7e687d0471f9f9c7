#!/usr/bin/env python3
"""Compares the losses of runs that differ only in their precision settings. scripts/fp8_loss_parity.sh makes these runs.

    fp8_loss_parity.py SETTING/seed-N/metrics.jsonl... [--last 200] [--csv losses.csv] [--png losses.png]

All settings are compared with that of the first run, seed by seed. The script prints a table. --png needs matplotlib.
"""

import argparse
import csv
import math
import statistics
import sys
from pathlib import Path

from plot_metrics import PICTURE_MARK, check_output, last_validation_loss, read_metrics, write_picture

CSV_BEGIN = "step,"  # First column of every CSV that this script writes.
EARLY_STEPS = (151, 200)  # Steps whose mean shows whether a setting falls behind at the start of a run.


def losses_by_step(metrics):
    return {entry["step"]: entry["loss"] for entry in metrics if entry.get("loss") is not None}


def percent(value, reference):
    return 100.0 * (value / reference - 1.0)


def mean_loss(metrics, first, last):
    """Returns the mean loss of the steps from first to last. NaN if the loss of one of them is not finite."""
    losses = [entry["loss"] for entry in metrics if first <= entry["step"] <= last]
    return statistics.fmean(losses) if losses and None not in losses else float("nan")


def validation_loss(metrics):
    loss = last_validation_loss(metrics)
    return float("nan") if loss is None else loss


def with_spread(values, form):
    """Returns the mean of the values, and their standard deviation if there are several and all are finite."""
    text = f"{statistics.fmean(values):{form}}".replace("+nan", "nan")
    finite = all(math.isfinite(value) for value in values)
    return f"{text} ± {statistics.stdev(values):{form.lstrip('+')}}" if len(values) > 1 and finite else text


def table(settings, last):
    """Returns the lines of a Markdown table with one row per setting. `settings` maps its name to its runs by seed."""
    reference = next(iter(settings))
    steps = next(iter(settings[reference].values()))[-1]["step"]
    columns = {
        f"steps {EARLY_STEPS[0]} to {EARLY_STEPS[1]}": lambda metrics: mean_loss(metrics, *EARLY_STEPS),
        f"last {last} steps": lambda metrics: mean_loss(metrics, steps - last + 1, steps),
        "validation": validation_loss,
    }
    lines = [
        "| setting | seeds | " + " | ".join(f"{name} | to {reference}, %" for name in columns) + " | wps |",
        "| --- | --- |" + " --- | --- |" * len(columns) + " --- |",
    ]
    for name, runs in settings.items():
        row = [name, str(len(runs))]
        for loss_of in columns.values():
            row.append(with_spread([loss_of(metrics) for metrics in runs.values()], ".4f"))
            pairs = [
                percent(loss_of(metrics), loss_of(settings[reference][seed])) for seed, metrics in runs.items() if seed in settings[reference]
            ]
            row.append(with_spread(pairs, "+.2f") if pairs and name != reference else "")
        # The first steps choose algorithms, and a step after validation waits for it.
        speeds = [statistics.median(entry["wps"] for entry in metrics[len(metrics) // 10 :]) for metrics in runs.values()]
        lines.append(f"| {' | '.join(row)} | {statistics.median(speeds):,.0f} |")
    return lines


def mean_curve(runs):
    """Returns the mean loss over the seeds for each step that all runs have logged."""
    curves = [losses_by_step(metrics) for metrics in runs.values()]
    return {step: statistics.fmean(curve[step] for curve in curves) for step in sorted(set.intersection(*map(set, curves)))}


def write_csv(settings, path, every):
    columns = {f"{name}/{seed}": losses_by_step(metrics) for name, runs in settings.items() for seed, metrics in runs.items()}
    steps = sorted(set().union(*columns.values()))
    with open(path, "w", newline="", encoding="utf-8") as output:
        writer = csv.writer(output, lineterminator="\n")
        writer.writerow([CSV_BEGIN.rstrip(","), *columns])
        for step in steps:
            if step % every == 0:
                writer.writerow([step] + [f"{column[step]:.5f}" if step in column else "" for column in columns.values()])


def moving_mean(values, window):
    """Returns the mean of each value and up to window - 1 values before it."""
    means, total = [], 0.0
    for index, value in enumerate(values):
        total += value - (values[index - window] if index >= window else 0.0)
        means.append(total / min(index + 1, window))
    return means


def draw(settings, path, window):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (curves, differences) = pyplot.subplots(2, 1, figsize=(9, 8), dpi=120, sharex=True)
    names = list(settings)
    reference = mean_curve(settings[names[0]])
    for index, name in enumerate(names):
        losses = mean_curve(settings[name])
        steps = [step for step in losses if step in reference]
        smooth = moving_mean([losses[step] for step in steps], window)
        curves.plot(steps, smooth, color=f"C{index}", linewidth=1.2, label=name)
        if index:
            base = moving_mean([reference[step] for step in steps], window)
            differences.plot(steps, [percent(*pair) for pair in zip(smooth, base)], color=f"C{index}", linewidth=1.2, label=name)
    curves.set_ylabel(f"cross entropy, nats per token\nmean of all seeds and {window} steps")
    differences.set_ylim(-3, 3)
    differences.set_ylabel(f"difference to {names[0]}, %")
    differences.set_xlabel("step")
    for axes in (curves, differences):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    figure.tight_layout()
    write_picture(figure, path)


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", nargs="+", type=Path, help="SETTING/SEED/metrics.jsonl of the runs, with the reference first")
    parser.add_argument("--last", type=positive, default=200, help="number of steps at the end that are averaged")
    parser.add_argument("--csv", type=Path, help="CSV file to write with the losses")
    parser.add_argument("--csv-every", type=positive, default=10, help="steps between two rows of the CSV file")
    parser.add_argument("--png", type=Path, help="PNG file to write with the loss curves")
    parser.add_argument("--window", type=positive, default=50, help="number of steps that each point of the curves averages")
    arguments = parser.parse_args()
    for path, mark in ((arguments.csv, CSV_BEGIN), (arguments.png, PICTURE_MARK)):
        if path:
            check_output(parser, path, mark)

    settings = {}
    lengths = {}
    for path in arguments.metrics:
        try:
            metrics = read_metrics(path)
            lengths.setdefault(metrics[-1]["step"], path)
        except (OSError, ValueError, LookupError, TypeError) as error:
            parser.exit(2, f"{path}: {error}; expected the metrics.jsonl of a run\n")
        settings.setdefault(path.parent.parent.name, {})[path.parent.name] = metrics
    if len(lengths) != 1:
        ends = ", ".join(f"{path} ends at step {step}" for step, path in sorted(lengths.items()))
        parser.exit(1, f"the runs have different lengths: {ends}\n")
    reference = next(iter(settings))
    for name, runs in settings.items():
        if missing := sorted(runs.keys() - settings[reference].keys()):
            print(f"{reference} has no run of {', '.join(missing)}, so these runs of {name} are not compared", file=sys.stderr)
    print(*table(settings, arguments.last), sep="\n")
    if arguments.csv:
        write_csv(settings, arguments.csv, arguments.csv_every)
    if arguments.png:
        draw(settings, arguments.png, arguments.window)
    return 0


if __name__ == "__main__":
    sys.exit(main())
