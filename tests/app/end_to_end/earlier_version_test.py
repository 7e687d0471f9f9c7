"""Tests that this version reads and resumes a run of version 0.1.0 (commit ffe5568), which is in the folder earlier_version.

The run was killed while it saved step 8, so its last checkpoint is that of step 4. Its checkpoints are in
./checkpoints, the default of that version. The default has changed since, so a command must name this directory.
reference_metrics.jsonl has the metrics of the same run without the kill.
"""

import json
from pathlib import Path

from support import Scratch, copy_tree

FIXTURE = Path(__file__).resolve().parent / "earlier_version"
CHECKPOINT = "checkpoints/step_00000004"


class EarlierVersionTest(Scratch):
    def setUp(self):
        super().setUp()
        self.dir = copy_tree(FIXTURE, self.dir / "old")

    def test_the_run_resumes(self):
        self.refused("train", "config.yaml", mentions=["which this run does not resume"])  # No step is taken again without its checkpoints.
        result = self.run_octavo("train", "config.yaml", "checkpoint.dir=checkpoints")
        self.assertIn(f"{CHECKPOINT} after step 4", result.out)
        reference = (self.dir / "reference_metrics.jsonl").read_text().splitlines()
        expected = {entry["step"]: (entry["loss"], entry["grad_norm"]) for entry in map(json.loads, reference)}
        self.assertEqual(sorted(self.metrics("runs/old")), list(range(1, 13)))
        self.assert_close(self.losses("runs/old"), expected, 1e-5)

    def test_what_it_wrote_is_read(self):
        checkpoint = json.loads(self.run_octavo("inspect", CHECKPOINT).out)
        self.assertEqual((checkpoint["step"], checkpoint["intact"]), (4, True))
        run = json.loads(self.run_octavo("inspect", "runs/old").out)
        self.assertEqual(run["step"], 8)
        self.run_octavo("report", "runs/old", "--output", "page.html")
        self.assertIn(f"{run['loss']:.4f}"[:4], (self.dir / "page.html").read_text())
        self.run_octavo("config", "config_dump.yaml")
        self.run_octavo("evaluate", CHECKPOINT, "data.validation=corpus", "validation.batches=1")
        # The run folder was copied with its project, so it refers to the checkpoints of the copy.
        out = self.run_octavo("evaluate", "runs/old", "data.validation=corpus", "validation.batches=1").out
        self.assertIn(f"{self.dir.resolve()}/{CHECKPOINT}", out)
