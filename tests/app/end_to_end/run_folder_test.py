"""The folder of a run: where its checkpoints are, and which run it belongs to."""

import json

from support import ROOT, TINY_MODEL, checkpoints, snapshot
from training_test import Corpus


class RunFolderTest(Corpus):
    """Configs that name no checkpoint.dir, as the shipped ones."""

    def of_defaults(self, **sections):
        return self.config(self.corpus, **({"checkpoint": None, "training": {"steps": 2}} | sections))

    def test_a_seed_sweep_over_each_shipped_config(self):
        """Each seed trains in a folder of its own, with checkpoints of its own."""
        shrunk = [f"model.{key}={value}" for key, value in TINY_MODEL.items()] + [
            f"data.train=[{self.corpus}]", "data.validation=[]", "data.seq_len=32", "data.bos_id=256", "data.eos_id=257",
            "data.tokenizer=byte", "training.steps=1", "training.global_batch_size=1", "training.micro_batch_size=1",
            "optimizer.warmup_steps=0", "precision.linear=bfloat16", "parallel.tensor_parallel=1", "device=cpu"]
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

    def test_checkpoints_where_earlier_versions_put_them(self):
        """The run that saved them continues there, and any other ignores them."""
        old = self.of_defaults(checkpoint={"dir": "checkpoints"}, optimizer={"schedule": "constant"})
        self.train(old)
        config = self.of_defaults(optimizer={"schedule": "constant"}, training={"steps": 4})
        self.assertIn("  dir: checkpoints\n", self.run_octavo("config", config).out)
        for steps in (3, 4):
            out = self.train(config, f"training.steps={steps}").out
            self.assertIn("the checkpoints of this run are in ./checkpoints, the default of earlier versions, and stay "
                          "there; log/checkpoints holds none\n", out)
            self.assertIn(f"resuming checkpoints/step_0000000{steps - 1} ", out)
        self.assertFalse((self.dir / "log/checkpoints").exists())
        before = snapshot(self.dir / "checkpoints")
        for expected in (True, False):  # once its own directory holds some, there is nothing to say
            out = self.train(config, "logging.dir=other").out
            self.assertEqual("the checkpoints in ./checkpoints are of another run, with logging.dir log, and are ignored; "
                             "those of this run are in other/checkpoints\n" in out, expected, out)
        self.assertEqual(checkpoints(self.dir / "other/checkpoints"), ["step_00000004"])
        self.assertEqual(snapshot(self.dir / "checkpoints"), before)
