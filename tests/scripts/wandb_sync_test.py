"""Tests of scripts/wandb_sync.py: what it sends and where it resumes. The real package runs offline, if it is installed."""

import contextlib
import importlib.util
import io
import json
import os
import struct
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import wandb_sync  # noqa: E402
from scratch import ScratchTest  # noqa: E402

LINE = {"step": 1, "loss": 2.5, "grad_norm": 1.0, "lr": 1e-3, "validation_loss": 2.0, "loss_by_dataset": {"web": 2.25}, "validation_loss_by_dataset": {"held": 2.0},
        "nonfinite": {"wps": "nan"}, "wps": None, "fp8": [{"layer": 3, "linear": "qkv", "tensor": "input", "saturated": 0.5}]}

TABLE = [{"key": key, "tag": tag} for key, tag in (
    ("loss", "train/loss"), ("grad_norm", "optimizer/grad_norm"), ("lr", "optimizer/lr"), ("validation_loss", "validation/loss"),
    ("loss_by_dataset", "train/loss_by_dataset"), ("validation_loss_by_dataset", "validation"))]


def records(data):
    """Yields the records of a .wandb file. After seven bytes it has LevelDB's log format: blocks of 32 KiB with crc, length, type and
    bytes."""
    assert data[:4] == b":W&B"
    offset, parts = 7, b""
    while offset + 7 <= len(data):
        if 32768 - offset % 32768 < 7:
            offset += 32768 - offset % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, offset + 4)
        parts += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # The record is whole, or this is its last part.
            yield parts
            parts = b""


class FakeRun:
    def __init__(self):
        self.logged, self.metrics, self.finished = [], [], False

    def log(self, values):
        self.logged.append(values)

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def finish(self):
        self.finished = True


class WandbSyncTest(ScratchTest):
    def run_folder(self, text):
        path = Path(self.write("metrics.jsonl", text))
        (path.parent / "config.yaml").write_text("training: {steps: 3}\n")
        (path.parent / "metric_table.json").write_text(json.dumps(TABLE))
        return path.parent

    def sync(self, run, *options):
        fake, calls = FakeRun(), []
        module = types.SimpleNamespace(Settings=lambda **_: None, init=lambda **given: (calls.append(given), fake)[1])
        yaml = types.SimpleNamespace(safe_load=lambda text: {"training": {"steps": 3}})
        with mock.patch.dict(sys.modules, wandb=module, yaml=yaml), contextlib.redirect_stdout(io.StringIO()):
            wandb_sync.main([str(run), *options])
        self.assertTrue(fake.finished)
        self.assertIn(("*", "step"), fake.metrics)
        return fake.logged, calls[0]

    def test_names(self):
        run = self.run_folder("")
        self.assertEqual(wandb_sync.values_of(LINE, wandb_sync.read_tags(run)), {
            "step": 1, "train/loss": 2.5, "optimizer/grad_norm": 1.0, "optimizer/lr": 1e-3, "validation/loss": 2.0, "train/loss_by_dataset/web": 2.25,
            "validation/held": 2.0, "fp8/3/qkv/input/saturated": 0.5})

    def test_a_run_of_an_earlier_version_has_no_table(self):
        run = self.run_folder("")
        (run / "metric_table.json").unlink()
        self.assertEqual(wandb_sync.read_tags(run), {})
        self.assertEqual(wandb_sync.values_of({"step": 1, "loss": 2.5}, {}), {"step": 1, "loss": 2.5})

    def test_resumes_where_it_stopped(self):
        run = self.run_folder('{"step":1,"loss":3}\nhalf a line\n{"step":2,"loss":2')
        logged, given = self.sync(run, "--project", "p", "--offline")
        self.assertEqual(logged, [{"step": 1, "train/loss": 3}])
        self.assertEqual((given["project"], given["mode"], given["config"]), ("p", "offline", {"training": {"steps": 3}}))
        first = given["id"]
        with open(run / "metrics.jsonl", "a") as file:
            file.write('.5}\n{"step":3,"loss":2}\n')
        # Following ends with the last step of the config.
        logged, given = self.sync(run, "--follow")
        self.assertEqual([entry["train/loss"] for entry in logged], [2.5, 2])
        self.assertEqual((given["id"], given["mode"]), (first, "online"))
        self.assertEqual(self.sync(run)[0], [])

    def test_the_environment_of_wandb_counts_where_no_option_is_given(self):
        run = self.run_folder('{"step":1,"loss":3}\n')
        environment = {"WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "WANDB_NAME": "n", "WANDB_MODE": "offline", "WANDB_DIR": "d", "WANDB_RUN_ID": "i"}
        with mock.patch.dict(os.environ, environment):
            given = self.sync(run)[1]
            self.assertEqual([given[key] for key in ("project", "entity", "name", "mode", "dir", "id")], ["p", "e", "n", "offline", "d", "i"])
            given = self.sync(run, "--project", "q", "--name", "m")[1]
            self.assertEqual([given[key] for key in ("project", "name", "id")], ["q", "m", "i"])
        given = self.sync(run)[1]
        self.assertEqual([given[key] for key in ("project", "entity", "name", "mode")], ["octavo", None, run.name, "online"])

    def test_following_ends_with_the_last_step_wherever_its_line_is(self):
        # The run was resumed after step 1.
        run = self.run_folder('{"step":1,"loss":3}\n{"step":3,"loss":2}\n{"step":2,"loss":2.5}\n')
        with mock.patch("time.sleep", side_effect=AssertionError("waits for more")):
            self.assertEqual(len(self.sync(run, "--follow")[0]), 3)
            self.assertEqual(self.sync(run, "--follow")[0], [])

    def test_no_run(self):
        with self.assertRaisesRegex(SystemExit, "not the folder of a run"):
            wandb_sync.main([str(ROOT)])

    @unittest.skipUnless(importlib.util.find_spec("wandb"), "wandb is not installed")
    def test_offline(self):
        from wandb.proto import wandb_internal_pb2

        run = self.run_folder("".join(json.dumps(LINE | {"step": step, "loss": 3.0 / step}) + "\n" for step in (1, 2, 3)))
        with mock.patch.dict(os.environ, WANDB_SILENT="true"), contextlib.redirect_stdout(io.StringIO()):
            wandb_sync.main([str(run), "--offline"])
        (file,) = run.glob("wandb/offline-run-*/run-*.wandb")
        losses = []
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            for item in record.history.item:
                if (item.key or "/".join(item.nested_key)) == "train/loss":
                    losses.append(json.loads(item.value_json))
        self.assertEqual(losses, [3.0, 1.5, 1.0])


if __name__ == "__main__":
    unittest.main()
