#!/usr/bin/env python3
"""Draws the loss curve of a run from its metrics.jsonl into a PNG. Needs matplotlib.

    plot_metrics.py runs/quickstart/metrics.jsonl [MORE...] --output loss.png [--bigram-entropy 2.3]

Several files are drawn into one picture, so that runs can be compared. After a resume a file may have a step twice. The later line
counts. If it differs from the earlier line, the earlier lines of all steps after it are ignored.
"""

import argparse
import json
import sys
from pathlib import Path

from python_packages import need_packages

# Title of every picture, by which a later call recognizes a picture that it may replace.
PICTURE_MARK = "octavo: curves of metrics.jsonl"
DISTINCTION = ("loss", "grad_norm", "tokens")  # as in MetricsHistory of app/records/metrics_writer.h


def read_metrics(path):
    """Returns the lines of metrics.jsonl as a list of dicts, one per step, in order of the steps."""
    by_step = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                # A run that was killed can leave an incomplete last line.
                print(f"{path}:{number}: not a JSON object, skipped", file=sys.stderr)
                continue
            before = by_step.get(entry["step"], entry)
            if any(before.get(key) != entry.get(key) for key in DISTINCTION):
                for step in [step for step in by_step if step >= entry["step"]]:
                    del by_step[step]
            by_step.setdefault(entry["step"], {}).update(entry)
    return [by_step[step] for step in sorted(by_step)]


def last_validation_loss(metrics):
    losses = [entry["validation_loss"] for entry in metrics if entry.get("validation_loss") is not None]
    return losses[-1] if losses else None


def last_training_loss(metrics):
    """Returns the mean of the last tenth of the logged steps, because a single step has few sequences."""
    losses = [entry["loss"] for entry in metrics if entry.get("loss") is not None]
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last) if last else None


def check_output(parser, path, mark):
    """Refuses a path unless it is free, an empty file, or a file with `mark` that this script wrote."""
    there = path.is_symlink() or path.exists()
    own = there and path.is_file() and not path.is_symlink() and (path.stat().st_size == 0 or mark.encode() in path.read_bytes())
    if there and not own:
        parser.exit(2, f"{path}: was not written by this script, so it is not replaced; expected another name\n")
    if not path.parent.is_dir():
        parser.exit(2, f"{path}: {path.parent} is not a directory, expected an existing one\n")


def write_picture(figure, path):
    temporary = path.with_name(f"{path.name}.tmp")
    figure.savefig(temporary, format=path.suffix[1:] or "png", metadata={"Title": PICTURE_MARK})
    temporary.replace(path)


def draw(runs, output, bigram_entropy):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), dpi=120)
    for index, (name, metrics) in enumerate(runs):
        color = f"C{index}"
        prefix = f"{name}: " if len(runs) > 1 else ""
        trained = [(entry["step"], entry["loss"]) for entry in metrics if entry.get("loss") is not None]
        axes.plot(*zip(*trained), color=color, alpha=0.6, linewidth=1.2, label=f"{prefix}training loss")
        validated = [(e["step"], e["validation_loss"]) for e in metrics if e.get("validation_loss") is not None]
        if validated:
            label = f"{prefix}validation loss, last {validated[-1][1]:.3f}"
            axes.plot(*zip(*validated), color=color, marker="o", linewidth=1.8, label=label)
    if bigram_entropy is not None:
        label = f"bigram entropy of the held-out files, {bigram_entropy:.3f}"
        axes.axhline(bigram_entropy, color="black", linestyle="--", linewidth=1.0, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("cross entropy, nats per token")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    write_picture(figure, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", nargs="+", type=Path, help="metrics.jsonl of one or more runs")
    parser.add_argument("--output", type=Path, help="PNG file to write")
    parser.add_argument("--bigram-entropy", type=float, help="draw a line at this value, in nats per token")
    parser.add_argument("--print-validation", action="store_true", help="only print the last validation loss of the first run")
    parser.add_argument("--print-training", action="store_true", help="only print the mean training loss of the last tenth of the first run")
    arguments = parser.parse_args()

    runs = [(path.parent.name, read_metrics(path)) for path in arguments.metrics]
    for path, (_, metrics) in zip(arguments.metrics, runs):
        if not metrics:
            parser.exit(1, f"{path}: holds no metrics\n")
    if arguments.print_validation or arguments.print_training:
        loss = (last_validation_loss if arguments.print_validation else last_training_loss)(runs[0][1])
        if loss is None:
            parser.exit(1, f"{arguments.metrics[0]}: holds no such loss\n")
        print(f"{loss:.4f}")
        return
    if arguments.output is None:
        parser.error("--output is missing")
    check_output(parser, arguments.output, PICTURE_MARK)
    need_packages("matplotlib")
    draw(runs, arguments.output, arguments.bigram_entropy)
    print(f"drew {arguments.output}")


if __name__ == "__main__":
    main()
