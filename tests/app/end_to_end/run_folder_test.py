"""Tests of the folder of a run: the place of its checkpoints, and the run that it belongs to."""

import json
import shutil

from support import ALLOW_SCHEDULE, ROOT, TINY_MODEL, checkpoints, metrics_lines, snapshot
from training_test import Corpus


class RunFolderTest(Corpus):
    """Trains with configs that do not set checkpoint.dir, like the shipped ones."""

    def of_defaults(self, **sections):
        return self.config(self.corpus, **({"checkpoint": None, "training": {"steps": 2}} | sections))

    def test_a_seed_sweep_over_each_shipped_config(self):
        """Each seed trains in its own folder with its own checkpoints."""
        shrunk = [f"model.{key}={value}" for key, value in TINY_MODEL.items()] + [
            f"data.train=[{self.corpus}]", "data.validation=[]", "data.seq_len=32", "data.bos_id=256", "data.eos_id=257",
            "data.tokenizer=byte", "training.steps=1", "training.global_batch_size=1", "training.micro_batch_size=1",
            "optimizer.warmup_steps=0", "optimizer.decay_steps=0", "precision.linear=bfloat16", "parallel.tensor_parallel=1", "device=cpu"]
        for config in sorted((ROOT / "configs").glob("*.yaml")):
            with self.subTest(config.name):
                folders = [f"runs/{config.stem}_{seed}" for seed in (1, 2, 3)]
                started = [self.start("train", config, *shrunk, f"training.seed={folder[-1]}", f"logging.dir={folder}")
                           for folder in folders]
                for process, folder in zip(started, folders):
                    result = self.finish(process)
                    self.assertEqual(result.code, 0, result.err)
                    self.assertEqual(checkpoints(self.dir / folder / "checkpoints"), ["step_00000001"])
                self.assertEqual(len({self.losses(folder)[1] for folder in folders}), 3)

    def test_a_second_run_is_refused(self):
        """The second run is refused before and after the first one has a checkpoint. It appends nothing, and the first run can be
        resumed."""
        config = self.of_defaults(training={"steps": 100_000})
        process = self.start("train", config, "checkpoint.every=0")
        self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") >= 3, process)
        process.kill()
        process.wait()

        def files():  # The lock that the killed run left is not compared.
            return {path: content for path, content in snapshot(self.dir / "log").items() if not path.name.endswith("lock")}

        before = files()
        for ranks in (1, 2):
            self.refused("train", config, "training.seed=7", "optimizer.weight_decay=0.2", ranks=ranks, mentions=[
                "logging.dir log belongs to another run (training.seed 42 -> 7, optimizer.weight_decay 0.1 -> 0.2)"])
        self.train(config, "logging.dir=other", "training.steps=2", "training.seed=7")
        self.refused("train", config, "training.seed=7", "checkpoint.resume=other/checkpoints", ALLOW_SCHEDULE,
                     mentions=["belongs to another run (training.seed 42 -> 7)"])
        self.assertEqual(files(), before)
        # A run that was killed before its first checkpoint can be started again.
        process = self.start("train", config, "training.micro_batch_size=8")
        self.wait_for(lambda: metrics_lines(self.dir / "log/starts.jsonl") == 2, process)

    def test_a_finished_run_that_is_started_again(self):
        config = self.of_defaults()
        self.train(config)
        before = snapshot(self.dir / "log")
        for ranks in (1, 2):
            self.assertIn("nothing to do: step 2 of 2 is reached, and the run is finished; a larger training.steps",
                          self.train(config, ranks=ranks).out)
            self.assertEqual(snapshot(self.dir / "log"), before)
        # Other seeds belong to another run, for any logging.dir.
        for where in ("logging.dir=log", "logging.dir=elsewhere"):
            self.refused("train", config, "training.seed=7", "checkpoint.dir=log/checkpoints", where, mentions=["training.seed 42 -> 7"])

    def test_a_run_that_is_begun_again(self):
        config = self.of_defaults()
        self.train(config)
        first = snapshot(self.dir / "log")
        (self.dir / "log/notes.txt").write_text("mine")
        out = self.train(config, "checkpoint.resume=never", "training.seed=7").out
        self.assertIn("the log and metrics of the earlier run were moved to log/earlier\n", out)
        for path, content in first.items():
            if path.parent == self.dir / "log" and path.name != "log.lock":
                self.assertEqual((self.dir / "log/earlier" / path.name).read_bytes(), content)
        self.assertEqual(metrics_lines(self.dir / "log/starts.jsonl"), 1)
        self.assertEqual(json.loads((self.dir / "log/goodput.json").read_text())["restarts"], 0)
        self.assertTrue((self.dir / "log/notes.txt").exists())

    def test_stages_after_samples_that_are_repeated(self):
        """data.resume_from_sample repeats samples in the first stage, and the run still reaches the end of the second stage."""
        config = self.of_defaults(stages=[{"steps": 4}, {"steps": 2, "data": {"seq_len": 16}}], training={"steps": 6})
        self.train(config, "checkpoint.every=2", "checkpoint.keep=0")
        for step in (4, 6):
            shutil.rmtree(self.dir / f"log/checkpoints/step_0000000{step}")
        self.train(config, "data.resume_from_sample=0")
        self.assertEqual(checkpoints(self.dir / "log/checkpoints")[-1], "step_00000006")
