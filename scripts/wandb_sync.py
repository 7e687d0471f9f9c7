#!/usr/bin/env python3
"""Sends the metrics of a run to Weights & Biases. Needs the Python package wandb, and no change of the run.

    wandb_sync.py runs/quickstart --project octavo              sends the metrics so far and ends
    wandb_sync.py runs/quickstart --project octavo --follow     continues to send until the run is done or Ctrl-C
    wandb_sync.py runs/quickstart --offline                     writes to RUN/wandb, for `wandb sync` on another machine

W&B's environment variables apply unless an option is given: WANDB_PROJECT, WANDB_ENTITY, WANDB_NAME, WANDB_MODE, WANDB_DIR,
WANDB_RUN_ID, and those that the package reads itself, such as WANDB_API_KEY and WANDB_BASE_URL.

RUN is a logging.dir. RUN/wandb_sync.json records the progress, so the next call sends the metrics since then to the same W&B run.
Metrics have the names that they have in TensorBoard, with `step` as their axis. A step that was repeated after a restart is sent again.
The config becomes the config of the W&B run.
"""

import argparse
import json
import os
import secrets
import sys
import time
from pathlib import Path

from python_packages import need_packages

STATE = "wandb_sync.json"
TABLE = "metric_table.json"


def read_tags(run):
    """Returns {key of metrics.jsonl: name in TensorBoard}. Folders of earlier versions have no table, so their metrics keep their
    keys."""
    path = run / TABLE
    return {metric["key"]: metric["tag"] for metric in json.loads(path.read_text())} if path.exists() else {}


def values_of(entry, tags):
    """Returns a line of metrics.jsonl as {tag: number}, with its step."""
    values = {"step": entry["step"]}
    for key, value in entry.items():
        tag = tags.get(key, key)
        if key in ("step", "nonfinite"):
            continue
        if isinstance(value, (int, float)):
            values[tag] = value
        elif isinstance(value, dict):
            values |= {f"{tag}/{name}": number for name, number in value.items() if isinstance(number, (int, float))}
        elif key == "fp8":
            for tensor in value:
                place = f"fp8/{tensor['layer']}/{tensor['linear']}/{tensor['tensor']}"
                values |= {f"{place}/{name}": v for name, v in tensor.items() if isinstance(v, float) and name != "layer"}
    return values


def new_entries(path, offset):
    """Returns the complete lines after `offset` that are JSON objects with a step, and the offset after the last complete line."""
    entries = []
    with open(path, "rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break  # The line is still being written.
            offset += len(line)
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # A crash cut the line short, and the next start of the run added the line end.
            if isinstance(entry, dict) and isinstance(entry.get("step"), int):
                entries.append(entry)
    return entries, offset


def largest_step(entries):
    """Returns the largest step. The last line may have a smaller one, because a step that a restart repeats with another result has a
    second line."""
    return max((entry["step"] for entry in entries), default=0)


def read_state(run):
    path = run / STATE
    state = json.loads(path.read_text()) if path.exists() else {}
    return {"id": None, "offset": 0} | state


def write_state(run, state):
    new = run / (STATE + ".tmp")
    new.write_text(json.dumps(state) + "\n")
    new.replace(run / STATE)


def read_config(run):
    import yaml  # The module comes with wandb.

    path = run / "config.yaml"
    return yaml.safe_load(path.read_text()) if path.exists() else {}


def send(wandb_run, run, state):
    """Sends new lines and returns the largest step among them, or 0 if there are none."""
    entries, offset = new_entries(run / "metrics.jsonl", state["offset"])
    tags = read_tags(run)
    for entry in entries:
        wandb_run.log(values_of(entry, tags))
    if offset != state["offset"]:
        state["offset"] = offset
        write_state(run, state)
    return largest_step(entries)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--project", help="project of the W&B run (default: WANDB_PROJECT, or octavo)")
    parser.add_argument("--entity", help="account or team (default: WANDB_ENTITY, or your account)")
    parser.add_argument("--name", help="name of the W&B run (default: WANDB_NAME, or the name of the folder)")
    parser.add_argument("--offline", dest="mode", action="store_const", const="offline", help="write to RUN/wandb and send nothing (default: WANDB_MODE, or online)")
    parser.add_argument("--follow", action="store_true", help="continue until the run is done")
    parser.add_argument("--seconds", type=float, default=10, help="with --follow, seconds between two reads of metrics.jsonl (default: 10)")
    options = parser.parse_args(arguments)
    run = options.run
    environment = os.environ
    options.project = options.project or environment.get("WANDB_PROJECT") or "octavo"
    options.entity = options.entity or environment.get("WANDB_ENTITY")
    options.name = options.name or environment.get("WANDB_NAME") or run.resolve().name
    options.mode = options.mode or environment.get("WANDB_MODE") or "online"
    options.dir = environment.get("WANDB_DIR") or str(run)
    if not (run / "metrics.jsonl").exists():
        sys.exit(f"{run} is not the folder of a run: it has no metrics.jsonl")
    need_packages("wandb")
    import wandb

    state = read_state(run)
    state["id"] = state["id"] or environment.get("WANDB_RUN_ID") or secrets.token_hex(4)
    config = read_config(run)
    wandb_run = wandb.init(
        project=options.project, entity=options.entity, name=options.name, id=state["id"], resume="allow", config=config,
        mode=options.mode, dir=options.dir, settings=wandb.Settings(console="off"),
    )
    wandb_run.define_metric("step")
    wandb_run.define_metric("*", step_metric="step")
    write_state(run, state)
    last = (config.get("training") or {}).get("steps")
    try:
        step = largest_step(new_entries(run / "metrics.jsonl", 0)[0])  # Includes entries that an earlier call sent.
        send(wandb_run, run, state)
        while options.follow and not (last is not None and step >= last):
            time.sleep(options.seconds)
            step = max(step, send(wandb_run, run, state))
    except KeyboardInterrupt:
        pass
    wandb_run.finish()
    print(f"{run}: up to byte {state['offset']} of metrics.jsonl, W&B run {state['id']}{'' if options.mode == 'online' else f' ({options.mode})'}")


if __name__ == "__main__":
    os.environ.setdefault("WANDB_SILENT", "true")
    main()
