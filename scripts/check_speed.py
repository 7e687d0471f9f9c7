#!/usr/bin/env python3
"""Compares the speed of this GPU with the recorded speed of GPUs of its kind, so that a change that makes steps slower is noticed.

    check_speed.py [--record] [RECIPE...]

Runs `octavo bench` three times for the 1.8B model in each recipe (default: those in tests/gpu_speeds.json). The exit
code is 1 if the median of a step is more than 3% longer than the recorded one, and the ops that take longer are listed.
Machines of one kind differ by 2% to 3%. To measure a change, first record this machine's medians with --record.

The program is $OCTAVO or build/octavo of this checkout. Exit code 2 is for bad input.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3
LONGER_PERCENT = 3.0  # Maximum by which a step may exceed its recorded time.


def bench(octavo, recipe):
    """Returns the device and the median times of a step and of its ops in ms, over all rounds."""
    line = [octavo, "bench", ROOT / "configs/llama3_1.8b_1gpu.yaml", "--json", "training.global_batch_size=2", f"precision.linear={recipe}"]
    rounds = [json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout) for _ in range(ROUNDS)]
    times = [{"step": found["step_ms"]} | {op["op"]: op["ms"] for op in found["ops"]} for found in rounds]
    return rounds[0]["device"], {name: round(statistics.median(time.get(name, 0.0) for time in times), 3) for name in times[0]}


def longer(times, recorded):
    """Returns (ms, name) of each op that takes longer, where ms is the difference. The largest difference is first."""
    differences = {name: times.get(name, 0.0) - recorded.get(name, 0.0) for name in times | recorded if name != "step"}
    return sorted(((ms, name) for name, ms in differences.items() if ms > 0), reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--record", action="store_true", help="write the medians of this machine instead of comparing them")
    parser.add_argument("--speeds", type=Path, default=ROOT / "tests/gpu_speeds.json", help="file of recorded speeds")
    arguments = parser.parse_args()
    octavo = os.environ.get("OCTAVO", str(ROOT / "build/octavo"))
    speeds = json.loads(arguments.speeds.read_text(encoding="utf-8"))
    recipes = arguments.recipes or sorted({recipe for recorded in speeds.values() for recipe in recorded})
    failed = False
    for recipe in recipes:
        try:
            device, times = bench(octavo, recipe)
        except (OSError, subprocess.CalledProcessError) as error:
            parser.exit(2, f"octavo bench with {recipe}: {error}\n")
        if arguments.record:
            speeds.setdefault(device, {})[recipe] = times
            continue
        recorded = speeds.get(device, {}).get(recipe)
        if recorded is None:
            parser.exit(2, f"{arguments.speeds} has no speed of {recipe} for {device}: add it with --record\n")
        percent = 100.0 * (times["step"] / recorded["step"] - 1.0)
        print(f"{recipe}: {times['step']:.1f} ms per step, {percent:+.1f}% of the recorded {recorded['step']:.1f} ms", flush=True)
        if percent > LONGER_PERCENT:
            failed = True
            for ms, name in longer(times, recorded)[:10]:
                print(f"  {name}: {times.get(name, 0.0):.2f} ms instead of {recorded.get(name, 0.0):.2f}, {ms:+.2f}")
    if arguments.record:
        arguments.speeds.write_text(json.dumps(speeds, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
