"""Tests of octavo train --dry-run: its output, its refusals, and that it writes no file."""

from support import ALLOW_SCHEDULE, copy_tree
from training_test import Corpus


class DryRunTest(Corpus):
    def tree(self):
        return {path: path.read_bytes() if path.is_file() else None for path in self.dir.rglob("*")}

    def dry_run(self, config, *arguments):
        before = self.tree()
        out = self.run_octavo("train", config, "--dry-run", *arguments).out
        self.assertEqual(self.tree(), before)
        return out

    def test_says_what_the_run_will_do(self):
        config = self.config(self.corpus, data={"validation": [{"path": self.held_out}]})
        out = self.dry_run(config, "checkpoint.dir=deep/below/checkpoints", "optimizer.warmup_steps=7")
        for line in ("octavo train ", "  weights     random, seed 42\n", "  mesh        1 rank on cpu; ", "optimizer.warmup_steps is 7, ",
                     "the run would begin with step 1\n", "dry run: no problem was found, and nothing was written\n"):
            self.assertIn(line, out)
        screen = [line for line in out.splitlines() if line.startswith("  ") and not line.startswith(("  memory", "  checkpoints"))]
        trained = self.train(config).out.splitlines()
        ignored = ("  mesh", "  schedule")  # The number of threads may differ, and the warm-up was overridden.
        self.assertEqual([line for line in screen if not line.startswith(ignored) and line not in trained], [])
        self.assertIn("the run would have nothing to do: step 6 of 6 is reached in checkpoints/step_00000006\n", self.dry_run(config))
        out = self.dry_run(config, "training.steps=8", ALLOW_SCHEDULE)
        self.assertIn("config changes since the checkpoint was saved: training.steps 6 -> 8\n", out)
        self.assertIn("the run would resume checkpoints/step_00000006 after step 6\n", out)
        self.assertIn("would be moved aside\n", self.dry_run(config, "checkpoint.resume=never"))
        # A dry run does not rename damaged checkpoints.
        manifest = copy_tree(self.dir / "checkpoints/step_00000006", self.dir / "checkpoints/step_00000007") / "manifest.json"
        manifest.write_bytes(manifest.read_bytes()[:-20])
        out = self.dry_run(config, "training.steps=8", ALLOW_SCHEDULE)
        self.assertIn("checkpoints/step_00000007 is damaged, and checkpoints/step_00000006 is used instead: ", out)

    def test_needs_neither_gpus_nor_ranks(self):
        config = self.config(self.corpus, device="cuda", parallel={"tensor_parallel": 2})
        self.assertIn("\ndry run for 4 ranks on ", self.dry_run(config, "--gpus", 4))
        self.assertIn("  mesh        4 ranks on ", self.dry_run(config, "--gpus", 4))
        self.assertIn("  mesh        2 ranks on ", self.dry_run(config))
        time = " ".join(self.dry_run(config, "--gpus", 16, "training.global_batch_size=32", "--machine", "H100").split())
        self.assertRegex(time, r"by the rates of h100: [\d,]+ wps \(range unknown, not measured: [^)]*several nodes[^)]*\), and an assumed")
        self.refused("train", config, "--dry-run", ranks=2, mentions=["started on 2 ranks", "--gpus"])

    def test_refuses_what_the_run_would_refuse(self):
        config = self.config(self.corpus, data={"validation": [{"path": self.held_out}]})
        self.train(config)
        (self.dir / "file").write_text("")
        fresh = ("logging.dir=other", "checkpoint.dir=other/checkpoints")
        cases = [
            (("training.stepz=3",), "training.stepz"),
            ((f"data.train=[{self.dir}/nowhere]",), "nowhere"),
            ((f"data.validation=[{self.corpus}]",), "are the same file"),
            (("training.micro_batch_size=3",), "training.global_batch_size"),
            (("--gpus", 3), "training.global_batch_size"),
            (("device=cuda", "data.seq_len=1"), "data.seq_len is 1"),
            ((*fresh, "device=cuda", "model.hidden_size=8192", "model.intermediate_size=65536", "model.num_layers=40"), "GiB"),
            (("training.steps=8",), "checkpoint.allow_changes"),
            (("model.intermediate_size=128",), "intermediate_size"),
            (("checkpoint.resume=nowhere",), "nowhere"),
            (("checkpoint.dir=other", "training.seed=1"), "logging.dir log belongs to another run"),
            ((*fresh, "logging.dir=file/log"), "logging.dir file/log: cannot be created"),
            ((*fresh, "checkpoint.dir=file"), "checkpoint.dir file: is not a directory"),
        ]
        before = self.tree()
        for arguments, expected in cases:
            with self.subTest(arguments):
                self.refused("train", config, "--dry-run", *arguments, mentions=[expected])
        self.refused("train", config, "--gpus", 4, mentions=["--dry-run"])
        self.assertEqual(self.tree(), before)
        running = self.start("train", config, "logging.dir=running", "checkpoint.dir=running/checkpoints", "training.steps=100000")
        self.wait_for((self.dir / "running/metrics.jsonl").exists, running)
        self.refused("train", config, "--dry-run", "logging.dir=running", "checkpoint.dir=running/checkpoints",
                     "training.steps=100000", mentions=["logging.dir running: is in use by another run, process"])
