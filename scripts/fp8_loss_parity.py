#!/usr/bin/env python3
"""Measures what a precision setting costs in loss, by branches of one bfloat16 trunk. docs/precision.md has results.

    fp8_loss_parity.py CONFIG [--output DIR] [--branches NAME...] [--seeds N] [--lengths K...] [section.key=value ...]
    fp8_loss_parity.py --table DIR...

CONFIG describes one bfloat16 run with the schedule wsd. Its steps before the decay are the trunk, which is trained in bfloat16. Every
branch resumes the trunk's checkpoint with its own settings and decays the learning rate over optimizer.decay_steps steps. Branches
with the same seed read the same samples. Another seed reads the samples that follow, and a length K multiplies the steps of the decay.
So all branches stay close to each other, and small differences become visible that the chaotic first steps of a run would hide.

Each branch is evaluated on the held-out tokens as it was trained, and in bfloat16, as whoever exports the model would run it.
DIR/results.jsonl has a line per branch, and the same command continues after an interruption. The checkpoint of a branch is removed
when both losses are known. Every visible GPU trains one branch at a time, and the trunk uses all of them.

The table has the mean paired difference to bfloat16 with its 95% interval (Student's t over the seeds), over all DIRs, each of which
has a trunk of its own. A setting is "equal" if the interval of the loss in bfloat16 lies within +-0.1%. `bfloat16_again` differs from
bfloat16 in the order of additions only, so its row is the noise of the comparison.

The program is $OCTAVO or build/octavo of this checkout. Exit code 2 is for bad input, 1 for a branch that failed.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Lock

from plot_metrics import last_validation_loss, read_metrics

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "bfloat16"
IN_BFLOAT16 = ["precision.linear=bfloat16", "precision.lm_head=bfloat16"]
LIMIT_PERCENT = 0.1  # A setting is equal if the interval of its difference lies within this distance of zero.

# Overrides of each branch.
BRANCHES = {
    "bfloat16": [],
    "bfloat16_again": [],  # with micro-batches of half the size
    "tensorwise": ["precision.linear=fp8_tensorwise"],
    "delayed": ["precision.linear=fp8_delayed"],
    "rowwise": ["precision.linear=fp8_rowwise"],
    "blockwise": ["precision.linear=fp8_blockwise"],
    "tensorwise_lm_head": ["precision.linear=fp8_tensorwise", "precision.lm_head=fp8_backward"],
    "tensorwise_fast": ["precision.linear=fp8_tensorwise", "precision.fast_accumulation=all"],
    "tensorwise_e4m3": ["precision.linear=fp8_tensorwise", "precision.gradient_format=e4m3"],
    "tensorwise_float8_moments": ["precision.linear=fp8_tensorwise", "optimizer.state_dtype=float8"],
    "fast_preset": ["precision.linear=fp8_delayed", "precision.lm_head=fp8_backward", "precision.fast_accumulation=all"],
}

# Quantiles of Student's t distribution that bound 95% on both sides, for 1 to 20 degrees of freedom. 1.96 is the limit.
T_95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]


class Failed(Exception):
    """A command of Octavo that failed. The message has its last line."""


def interval_95(values):
    """Returns the mean of the values and the half width of its 95% interval, which is infinite for a single value."""
    mean = statistics.fmean(values)
    degrees = len(values) - 1
    if degrees == 0:
        return mean, math.inf
    quantile = T_95[degrees - 1] if degrees <= len(T_95) else 2.09
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))


def verdict(mean, half_width):
    """Returns what an interval of differences in percent says about a setting."""
    if not math.isfinite(mean):
        return "diverged"
    if abs(mean) + half_width <= LIMIT_PERCENT:
        return "equal"
    return "worse" if mean - half_width > LIMIT_PERCENT else "undecided"


def paired_percent(rows, reference, key):
    """Returns the differences of `key` in percent between rows and reference rows with the same trunk, length and seed."""
    by_pair = {(row["trunk"], row["length"], row["seed"]): row[key] for row in reference}
    pairs = [(row[key], by_pair.get((row["trunk"], row["length"], row["seed"]))) for row in rows]
    return [100.0 * (value / base - 1.0) for value, base in pairs if base is not None]


def percent_text(differences):
    if not differences:
        return ""
    mean, half_width = interval_95(differences)
    return f"{mean:+.3f}%" + (f" ± {half_width:.3f}%" if math.isfinite(half_width) else "")


def table(rows):
    """Returns the lines of a Markdown table with one row per branch and length."""
    lines = [
        "| branch | decay | pairs | loss in bfloat16 | compared with bfloat16 | verdict | as trained | wps |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    groups = {}
    for row in rows:
        groups.setdefault((row["length"], row["branch"]), []).append(row)
    order = {name: index for index, name in enumerate(BRANCHES)}
    for (length, branch), group in sorted(groups.items(), key=lambda item: (item[0][0], order.get(item[0][1], len(order)))):
        reference = groups.get((length, REFERENCE), [])
        differences = paired_percent(group, reference, "loss_bfloat16") if branch != REFERENCE else []
        trained = paired_percent(group, reference, "loss") if branch != REFERENCE else []
        loss = statistics.fmean(row["loss_bfloat16"] for row in group)
        steps = group[0]["steps"]
        cells = [branch, f"{steps} steps", str(len(differences) or len(group)), f"{loss:.4f}", percent_text(differences),
                 verdict(*interval_95(differences)) if differences else "", percent_text(trained),
                 f"{statistics.median(row['wps'] for row in group):,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def read_results(directory):
    path = Path(directory) / "results.jsonl"
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append(row | {"trunk": str(directory)})
        except ValueError as error:
            raise SystemExit(f"{path}:{number}: {error}; expected a line that this script wrote") from error
    return rows


class Experiment:
    """The commands of one trunk and its branches."""

    def __init__(self, octavo, config, output, overrides):
        self.octavo = octavo
        self.config = config
        self.output = output
        self.overrides = overrides
        values = json.loads(self.run([octavo, "config", "--json", config, *overrides], None))
        self.decay = values["optimizer"]["decay_steps"]
        self.trunk_steps = values["training"]["steps"] - self.decay
        self.batch = values["training"]["global_batch_size"]
        self.micro_batch = values["training"]["micro_batch_size"]
        self.on_cpu = values["device"] == "cpu"
        # octavo evaluate takes the dtype of the device, whatever the run computed in.
        compute = values["precision"]["compute"]
        self.evaluation = [*IN_BFLOAT16, *([f"precision.compute={compute}"] if compute else [])]
        if values["optimizer"]["schedule"] != "wsd" or not 0 < self.decay < values["training"]["steps"]:
            raise SystemExit(f"{config}: expected optimizer.schedule wsd with decay_steps between 0 and training.steps")

    def run(self, command, log, gpu=None):
        """Runs a command of Octavo and returns its output. Appends what it prints to the file `log` if there is one."""
        environment = dict(os.environ)
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)
        if log:
            with open(log, "a", encoding="utf-8") as output:
                output.write(result.stdout + result.stderr)
        if result.returncode != 0:
            last = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
            raise Failed(f"{' '.join(map(str, command[:3]))} ended with exit code {result.returncode}: {last}")
        return result.stdout + result.stderr

    def train_trunk(self, gpus):
        """Trains the trunk on all GPUs, unless its last checkpoint is there. Returns the path of that checkpoint."""
        folder = self.output / "trunk"
        checkpoint = folder / "checkpoints" / f"step_{self.trunk_steps:08d}"
        if not checkpoint.exists():
            ranks = [] if len(gpus) < 2 else ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", len(gpus)]
            self.run([*ranks, self.octavo, "train", self.config, *self.overrides, *IN_BFLOAT16, f"training.steps={self.trunk_steps}",
                      "optimizer.schedule=constant", "optimizer.decay_steps=0", f"logging.dir={folder}"], self.output / "trunk.log")
        return checkpoint

    def branch(self, checkpoint, name, length, seed, gpu):
        """Trains and evaluates one branch. Returns its line of results.jsonl."""
        steps = length * self.decay
        folder = self.output / f"{name}-{steps}-{seed}"
        log = folder.with_suffix(".log")
        shutil.rmtree(folder, ignore_errors=True)
        precision = BRANCHES[name] or IN_BFLOAT16
        if name == "bfloat16_again":
            precision = [*IN_BFLOAT16, f"training.micro_batch_size={max(1, self.micro_batch // 2)}"]
        first_sample = (self.trunk_steps + seed * steps) * self.batch
        self.run([self.octavo, "train", self.config, *self.overrides, *precision, f"training.steps={self.trunk_steps + steps}",
                  f"optimizer.decay_steps={steps}", "optimizer.min_lr_ratio=0", f"data.resume_from_sample={first_sample}",
                  f"checkpoint.resume={checkpoint}", "checkpoint.allow_changes=[schedule,precision,optimizer]", "checkpoint.every=0",
                  f"validation.every={self.trunk_steps + steps}", f"logging.dir={folder}"], log, gpu)
        metrics = read_metrics(folder / "metrics.jsonl")
        evaluation = self.run([self.octavo, "evaluate", folder, *self.evaluation], log, gpu)
        found = re.findall(r"loss ([0-9.]+|nan|inf)", evaluation)
        if not found:
            raise Failed(f"octavo evaluate {folder} printed no loss: {evaluation.strip().splitlines()[-1]}")
        shutil.rmtree(folder / "checkpoints")
        branch = [entry for entry in metrics if entry["step"] > self.trunk_steps]
        return {"branch": name, "length": length, "steps": steps, "seed": seed, "loss": last_validation_loss(branch),
                "loss_bfloat16": float(found[-1]), "wps": statistics.median(entry["wps"] for entry in branch),
                "largest_grad_norm": max(entry["grad_norm"] for entry in branch)}


def visible_gpus():
    """Returns the names of the visible GPUs, or [None] if there are none."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    else:
        try:
            listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False).stdout
        except OSError:
            listed = ""
        names = [str(index) for index, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU"))]
    return names or [None]


def run_all(experiment, branches, lengths, seeds):
    """Trains the trunk and all branches that results.jsonl lacks. Returns the number of branches that failed."""
    experiment.output.mkdir(parents=True, exist_ok=True)
    gpus = [None] if experiment.on_cpu else visible_gpus()
    began = time.monotonic()
    checkpoint = experiment.train_trunk(gpus)
    print(f"trunk of {experiment.trunk_steps} steps after {time.monotonic() - began:.0f} s: {checkpoint}", flush=True)
    done = {(row["branch"], row["length"], row["seed"]) for row in read_results(experiment.output)}
    free_gpus = Queue()
    for gpu in gpus:
        free_gpus.put(gpu)
    writing = Lock()

    def work(task):
        name, length, seed = task
        gpu = free_gpus.get()
        try:
            row = experiment.branch(checkpoint, name, length, seed, gpu)
            with writing, open(experiment.output / "results.jsonl", "a", encoding="utf-8") as results:
                results.write(json.dumps(row) + "\n")
            print(f"{time.monotonic() - began:.0f} s: {name}, {row['steps']} steps, seed {seed}: {row['loss_bfloat16']:.6f} in bfloat16, "
                  f"{row['loss']:.6f} as trained", flush=True)
            return 0
        except Failed as error:
            print(f"{name}, length {length}, seed {seed}: {error}", file=sys.stderr, flush=True)
            return 1
        finally:
            free_gpus.put(gpu)

    tasks = [(name, length, seed) for seed in range(seeds) for length in lengths for name in branches if (name, length, seed) not in done]
    with ThreadPoolExecutor(max_workers=len(gpus)) as pool:
        return sum(pool.map(work, tasks))


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", help="YAML file with a wsd schedule; and overrides section.key=value after it")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--output", type=Path, default=ROOT / "runs/fp8_loss_parity", help="folder of the trunk and its branches")
    parser.add_argument("--branches", nargs="+", default=list(BRANCHES), choices=list(BRANCHES), metavar="NAME", help=", ".join(BRANCHES))
    parser.add_argument("--seeds", type=positive, default=5, help="pairs per branch, each with other samples (default: 5)")
    parser.add_argument("--lengths", type=positive, nargs="+", default=[1], metavar="K", help="multiples of optimizer.decay_steps (default: 1)")
    parser.add_argument("--table", type=Path, nargs="+", metavar="DIR", help="only print the table of these output folders")
    arguments = parser.parse_intermixed_args()
    if bool(arguments.config) == bool(arguments.table):
        parser.error("expected either CONFIG or --table DIR...")
    failed = 0
    folders = arguments.table
    if not folders:
        octavo = os.environ.get("OCTAVO", str(ROOT / "build/octavo"))
        try:
            experiment = Experiment(octavo, arguments.config, arguments.output, arguments.overrides)
            failed = run_all(experiment, arguments.branches, arguments.lengths, arguments.seeds)
        except (Failed, OSError) as error:
            parser.exit(2, f"fp8_loss_parity.py: {error}\n")
        folders = [arguments.output]
    rows = [row for folder in folders for row in read_results(folder)]
    if not rows:
        parser.exit(2, f"fp8_loss_parity.py: no results in {', '.join(map(str, folders))}\n")
    print(*table(rows), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
