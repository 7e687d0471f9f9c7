"""Tests that activation checkpointing does not change the results: losses and weights have equal bits in every mode."""

from sharding_test import Meshes


class ActivationCheckpointingTest(Meshes):
    def test_every_mode_gives_the_same_bits(self):
        """Tests one recipe. tests/app/run/mesh_draws_ranks.cpp compares every recipe on every mesh."""
        def run(*mode):
            keys = [f"activation_checkpointing.{key}" for key in mode]
            return self.run_mesh("precision.linear=fp8_delayed", "precision.compute=bfloat16", *keys, ranks=2, steps=3)

        everything = run("mode=none")
        for mode in (["mode=selective"], ["mode=full"], ["mode=block", "ratio=0.5"], ["mode=auto"]):
            with self.subTest(mode=mode):
                self.assertEqual(run(*mode), everything)

    def test_auto_saves_everything_if_memory_suffices(self):
        config = self.config(self.corpus, training={"steps": 1})
        for ranks in (1, 2):
            out = self.train(config, f"checkpoint.dir=on{ranks}", f"logging.dir=log{ranks}", ranks=ranks).out
            self.assertEqual(out.count("activation checkpointing: none"), 1, out)

    def test_plans_that_cannot_fit_are_refused(self):
        config = self.config(self.corpus, training={"steps": 1, "global_batch_size": 2**24, "micro_batch_size": 2**24})
        message = self.refused("train", config, mentions=["GiB", "activation_checkpointing.mode full",
                                                          "training.micro_batch_size"])
        self.assertRegex(message, r"would fit with training.micro_batch_size=\d+")
        self.refused("train", config, "activation_checkpointing.mode=none", mentions=["activation_checkpointing.mode none"])
        # One block takes 1 GiB in float32. All blocks together, with the state of the optimizer, take 400 GiB.
        deep = {"hidden_size": 2**12, "intermediate_size": 2**14, "num_layers": 100}
        config = self.config(self.corpus, training={"steps": 1}, model=deep)
        for options in ([], ["--dry-run"]):
            message = self.refused("train", config, *options, mentions=["GiB", "master weights"])
            self.assertRegex(message, r"would fit with \d+ ranks and training.global_batch_size=\d+")
