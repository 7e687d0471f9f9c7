#!/usr/bin/env python3
"""Runs `octavo bench` for every combination of config values and prints the speed of each.

    bench_sweep.py CONFIG.yaml training.micro_batch_size=1,2,4 precision.linear=bfloat16,fp8_delayed [--octavo "mpirun -n 8 build/octavo"]

A combination that octavo refuses does not end the sweep. The speed-up of a combination is relative to the first combination that has
equal values of all keys except precision.linear.
"""

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys


def bench(line):
    """Returns what `octavo bench --json` reports, or the reason why it reports nothing."""
    result = subprocess.run(line, capture_output=True, text=True)
    if result.returncode == 0:
        return json.loads(result.stdout)
    said = [text for text in result.stderr.splitlines() if text.strip()] or [f"exit code {result.returncode}"]
    return {"reason": next((text for text in said if text.startswith("octavo: ")), said[-1])}


def describe(result):
    mfu = f"{100 * result['mfu']:.1f}%" if "mfu" in result else "-"
    return f"{result['wps']:>10,.0f}{result['step_ms']:>11.2f}{mfu:>8}{result['memory_gib']:>9.1f}{result['speedup']:>10.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("keys", nargs="+", metavar="KEY=VALUE[,VALUE...]")
    parser.add_argument("--octavo", default=os.environ.get("OCTAVO", "build/octavo"), help="command that starts octavo, with its launcher (default: $OCTAVO or build/octavo)")
    parser.add_argument("--bench-options", default="", help="further options of octavo bench, such as '--warmup 3 --steps 10'")
    parser.add_argument("--json", action="store_true", help="print one JSON object per combination instead of the table")
    arguments = parser.parse_args()
    keys = dict(argument.partition("=")[::2] for argument in arguments.keys)
    if any("" in values.split(",") for values in keys.values()):
        parser.error(f"found {' '.join(arguments.keys)}, expected KEY=VALUE[,VALUE...] for each key")
    if not arguments.json:
        print("".join(f"{key:>26}" for key in keys) + "       wps    step ms     mfu  mem GiB  speed-up")
    baselines = {}
    for values in itertools.product(*(values.split(",") for values in keys.values())):
        overrides = dict(zip(keys, values))
        line = [*shlex.split(arguments.octavo), "bench", arguments.config, *map("=".join, overrides.items())]
        result = bench([*line, *shlex.split(arguments.bench_options), "--json"])
        if "wps" in result:
            others = tuple(value for key, value in overrides.items() if key != "precision.linear")
            result["speedup"] = result["wps"] / baselines.setdefault(others, result["wps"])
        row = "".join(f"{value:>26}" for value in values) + (describe(result) if "wps" in result else f"  {result['reason']}")
        print(json.dumps({**overrides, **result}) if arguments.json else row, flush=True)
    return 0 if baselines else 1


if __name__ == "__main__":
    sys.exit(main())
