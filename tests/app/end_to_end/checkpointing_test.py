"""Activation checkpointing: whatever a block keeps for backward, the numbers are the same to the bit."""

from sharding_test import Meshes


class ActivationCheckpointingTest(Meshes):
    # All dimensions, and those of two ranks, are multiples of 16, which products in FP8 need.
    MODEL = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32,
             "vocab_size": 272}
    MODES = (["mode=selective"], ["mode=full"], ["mode=block", "ratio=0.67"], ["mode=auto"])
    RECIPES = ("bfloat16", "fp8_tensorwise", "fp8_delayed")
    MESHES = {
        "one rank": (1, []),
        "two shards": (2, ["parallel.reshard_after_forward=true"]),
        "tensor parallel": (2, ["parallel.tensor_parallel=2"]),
        "context parallel": (2, ["parallel.context_parallel=2"]),
    }

    def run_mode(self, linear, ranks, mesh, mode):
        keys = [f"activation_checkpointing.{key}" for key in mode]
        return self.run_mesh(f"precision.linear={linear}", "precision.compute=bfloat16", *mesh, *keys, ranks=ranks,
                             steps=3, model=self.MODEL)

    def test_every_mode_gives_the_same_bits(self):
        for linear in self.RECIPES:
            for mesh, (ranks, overrides) in self.MESHES.items():
                everything = self.run_mode(linear, ranks, overrides, ["mode=none"])
                for mode in self.MODES:
                    with self.subTest(linear=linear, mesh=mesh, mode=mode):
                        self.assertEqual(self.run_mode(linear, ranks, overrides, mode), everything)

    def test_row_and_block_scales_on_tensor_parallel_ranks(self):
        model = self.MODEL | {"hidden_size": 256, "intermediate_size": 256, "num_layers": 2, "num_heads": 8,
                              "num_kv_heads": 4}
        for linear in ("fp8_rowwise", "fp8_blockwise"):
            runs = [self.run_mesh(f"precision.linear={linear}", f"activation_checkpointing.mode={mode}",
                                  "parallel.tensor_parallel=2", "data.seq_len=128", ranks=2, steps=2, model=model)
                    for mode in ("none", "selective", "full")]
            with self.subTest(linear=linear):
                self.assertEqual(runs[1], runs[0])
                self.assertEqual(runs[2], runs[0])

    def test_row_scales_on_ranks_that_share_sequences(self):
        runs = [self.run_mesh("precision.linear=fp8_rowwise", f"activation_checkpointing.mode={mode}",
                              "parallel.context_parallel=2", ranks=2, steps=2, model=self.MODEL)
                for mode in ("none", "selective", "full")]
        self.assertEqual(runs[1], runs[0])
        self.assertEqual(runs[2], runs[0])

    def test_weights_of_rows_gathered_anew(self):
        runs = [self.run_mesh("precision.linear=fp8_rowwise", f"activation_checkpointing.mode={mode}",
                              "parallel.reshard_after_forward=true", ranks=2, steps=2, model=self.MODEL)
                for mode in ("none", "full")]
        self.assertEqual(runs[1], runs[0])

    def test_auto_keeps_all_where_there_is_room(self):
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
        # A block takes 1 GiB in float32, all of them with their optimizer state 400.
        deep = {"hidden_size": 2**12, "intermediate_size": 2**14, "num_layers": 100}
        config = self.config(self.corpus, training={"steps": 1}, model=deep)
        message = self.refused("train", config, mentions=["GiB", "master weights"])
        self.assertRegex(message, r"would fit with \d+ ranks and training.global_batch_size=\d+")
