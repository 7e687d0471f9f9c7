"""Tests that training with context parallelism gives the results of one rank, for any number of ranks that share sequences."""

from sharding_test import Meshes

CONTEXT_2 = "parallel.context_parallel=2"


class ContextParallelTest(Meshes):
    MODEL = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32,
             "vocab_size": 276}

    def run_mesh(self, *overrides, **sections):
        return super().run_mesh(*overrides, **({"model": self.MODEL, "data": {"seq_len": 48}} | sections))

    def test_every_mesh_equals_one_rank(self):
        self.assert_meshes_equal_one_rank({
            "two ranks": (2, [CONTEXT_2]),
            "three": (3, ["parallel.context_parallel=3"]),
            "four": (4, ["parallel.context_parallel=4"]),
            "two copies": (4, [CONTEXT_2, "parallel.data_parallel_replicate=2"]),
            "that divide the layers": (4, [CONTEXT_2, "parallel.tensor_parallel=2"]),
        })

    def test_with_shards(self):
        one = self.run_mesh()
        for keeping, kept in self.KEEPING.items():
            with self.subTest(keeping=keeping):
                self.assert_same_run(self.run_mesh(CONTEXT_2, *kept, ranks=4), one)

    def test_documents_and_several_sequences_at_once(self):
        data = {"seq_len": 48, "document_mask": True, "eos_id": 257}
        batch = ["training.micro_batch_size=2"]
        one = self.run_mesh(*batch, data=data)
        self.assert_same_run(self.run_mesh(*batch, CONTEXT_2, ranks=2, data=data), one)
        self.assert_same_run(self.run_mesh("parallel.context_parallel=3", ranks=3, data=data), one)

    def test_muon_and_a_moving_average(self):
        keys = ["optimizer.type=muon", "optimizer.ema_decay=0.9"]
        one = self.run_mesh(*keys, steps=4)
        self.assert_same_run(self.run_mesh(*keys, CONTEXT_2, "parallel.tensor_parallel=2", ranks=4, steps=4), one)

    def test_validation_and_evaluation(self):
        sections = {"data": {"validation": [{"path": str(self.corpus)}], "allow_overlap": True, "seq_len": 48}, "model": self.MODEL,
                    "validation": {"every": 2, "batches": 2}, "training": {"steps": 2}}
        config = self.config(self.corpus, **sections)
        losses = []
        for i, (ranks, overrides) in enumerate([(1, []), (4, [CONTEXT_2])]):
            self.train(config, f"logging.dir=log{i}", f"checkpoint.dir=saved{i}", *overrides, ranks=ranks)
            losses.append(self.metrics(f"log{i}")[2]["validation_loss"])
            for evaluated_ranks, evaluated in ((1, []), (3, ["parallel.context_parallel=3"])):
                printed = self.run_octavo("evaluate", config, f"checkpoint.dir=saved{i}", *evaluated,
                                          ranks=evaluated_ranks).out
                loss = float(printed.split("validation_loss ")[1].split()[0])
                self.assertLess(abs(loss - losses[i]), 1e-5)
        self.assertLess(abs(losses[1] - losses[0]), 1e-6 * losses[0])

    def test_a_checkpoint_of_one_mesh_resumes_on_another(self):
        config = self.config(self.corpus, model=self.MODEL, data={"seq_len": 48}, checkpoint={"every": 4},
                             training={"steps": 8, "micro_batch_size": 1})
        meshes = [(2, [CONTEXT_2]), (1, []), (4, [CONTEXT_2, "parallel.tensor_parallel=2"]),
                  (3, ["parallel.context_parallel=3"])]
        self.assert_meshes_resume_each_other(config, meshes)

    def test_stages_of_longer_sequences(self):
        def stages(first):
            return [{"steps": 2, "data": {"seq_len": first}}, {"steps": 2, "data": {"seq_len": 48}}]
        one = self.run_mesh(steps=4, stages=stages(16))
        self.assert_same_run(self.run_mesh(CONTEXT_2, ranks=2, steps=4, stages=stages(16)), one)
        config = self.config(self.corpus, model=self.MODEL, training={"steps": 4}, stages=stages(18))
        self.refused("train", config, CONTEXT_2, ranks=2,
                     mentions=["stage 1: data.seq_len is 18", "a multiple of 4", "16 or 20 would work"])

    def test_wps_is_of_each_rank(self):
        """Both ranks together process the tokens of a step, so each token counts once."""
        config = self.config(self.corpus, model=self.MODEL, data={"seq_len": 48}, logging={"every": 1},
                             training={"steps": 3, "global_batch_size": 4})
        self.train(config, CONTEXT_2, ranks=2)
        for step, line in self.metrics().items():
            self.assertEqual(line["tokens"], step * 4 * 48)
            if step > 1:  # The interval of a line begins with the step before.
                tokens = line["wps"] * line["step_ms"] / 1e3 * 2
                self.assertLess(abs(tokens / (4 * 48) - 1), 0.5)


class ContextParallelFp8Test(Meshes):
    """The scales are those of all tokens that ranks share. Results differ only where sums in another order change a cast."""

    FP8 = {"model": {"hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32,
                     "vocab_size": 276},
           "data": {"seq_len": 128}, "optimizer": {"lr": 1e-6}}

    def run_recipe(self, recipe, *overrides, ranks=1):
        blocks = ["data.seq_len=512"] if recipe == "fp8_blockwise" else []
        return self.run_mesh(f"precision.linear={recipe}", "training.global_batch_size=2", *blocks, *overrides,
                             ranks=ranks, steps=3, **self.FP8)

    def test_every_mesh_is_close_to_one_rank(self):
        for recipe in ("fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_blockwise"):
            one = self.run_recipe(recipe)
            for mesh, (ranks, overrides) in {"two ranks": (2, []), "two shards": (4, [])}.items():
                with self.subTest(recipe=recipe, mesh=mesh):
                    run = self.run_recipe(recipe, CONTEXT_2, *overrides, ranks=ranks)
                    self.assert_close(run, one, 2e-3)
                    for step, (loss, _) in run.items():
                        self.assertLess(abs(loss - one[step][0]), 5e-5 * one[step][0])

    def test_blocks_of_tokens_lie_within_chunks(self):
        config = self.config(self.corpus, **(self.FP8 | {"data": {"seq_len": 384}}))
        self.refused("train", config, CONTEXT_2, "precision.linear=fp8_blockwise", ranks=2,
                     mentions=["data.seq_len is 384", "a multiple of 512", "fp8_blockwise scales 128 tokens at a time"])
