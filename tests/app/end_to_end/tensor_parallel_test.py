"""Tests that tensor-parallel training gives the results of one rank."""

from sharding_test import Meshes


class TensorParallelTest(Meshes):
    MODEL = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32,
             "vocab_size": 276}

    def run_mesh(self, *overrides, **sections):
        return super().run_mesh(*overrides, **({"model": self.MODEL} | sections))

    def test_every_mesh_equals_one_rank(self):
        self.assert_meshes_equal_one_rank({
            "tensor parallel 2": (2, ["parallel.tensor_parallel=2"]),
            "tensor parallel 4, copies of kv heads": (4, ["parallel.tensor_parallel=4"]),
        })

    def test_with_shards(self):
        one = self.run_mesh()
        for keeping, kept in self.KEEPING.items():
            with self.subTest(keeping=keeping):
                self.assert_same_run(self.run_mesh("parallel.tensor_parallel=2", *kept, ranks=4), one)
        with self.subTest("copies of kv heads in shards"):
            model = self.MODEL | {"num_kv_heads": 1}
            one = self.run_mesh(model=model)
            for keeping, kept in self.KEEPING.items():
                self.assert_same_run(self.run_mesh("parallel.tensor_parallel=2", *kept, ranks=4, model=model), one)

    def test_with_replicas(self):
        one = self.run_mesh()
        two = self.run_mesh("parallel.tensor_parallel=2", "parallel.data_parallel_replicate=2", ranks=4)
        self.assert_same_run(two, one)

    def test_without_accumulation(self):
        batch = ["training.global_batch_size=4", "training.micro_batch_size=4"]
        one = self.run_mesh(*batch)
        self.assert_same_run(self.run_mesh(*batch, "parallel.tensor_parallel=4", ranks=4), one)

    def test_heads_that_do_not_fit_into_each_other(self):
        """Divides 6 query heads and 2 key/value heads among 3 ranks. Ranks 0 and 2 have two replicas of one key/value head, and
        rank 1 has both heads."""
        model = self.MODEL | {"num_heads": 6, "hidden_size": 96}
        one = self.run_mesh(model=model, data={"seq_len": 36})
        three = self.run_mesh("parallel.tensor_parallel=3", ranks=3, model=model, data={"seq_len": 36})
        self.assert_same_run(three, one)

    def test_tied_table(self):
        sections = {"model": self.MODEL | {"tie_word_embeddings": True}}
        one = self.run_mesh(**sections)
        self.assert_same_run(self.run_mesh("parallel.tensor_parallel=2", ranks=4, **sections), one)

    def test_validation_and_evaluation(self):
        sections = {"data": {"validation": [{"path": str(self.corpus)}], "allow_overlap": True}, "validation": {"every": 2, "batches": 2},
                    "training": {"steps": 2}, "model": self.MODEL}
        config = self.config(self.corpus, **sections)
        losses = []
        for i, (ranks, overrides) in enumerate([(1, []), (4, ["parallel.tensor_parallel=2"])]):
            self.train(config, f"logging.dir=log{i}", f"checkpoint.dir=saved{i}", *overrides, ranks=ranks)
            losses.append(self.metrics(f"log{i}")[2]["validation_loss"])
            for evaluated_ranks, evaluated in ((1, []), (2, ["parallel.tensor_parallel=2"]), (2, [])):
                printed = self.run_octavo("evaluate", config, f"checkpoint.dir=saved{i}", *evaluated,
                                          ranks=evaluated_ranks).out
                loss = float(printed.split("validation_loss ")[1].split()[0])
                self.assertLess(abs(loss - losses[i]), 1e-5)
        self.assertLess(abs(losses[1] - losses[0]), 1e-6 * losses[0])

    def test_a_checkpoint_of_one_mesh_resumes_on_another(self):
        config = self.config(self.corpus, model=self.MODEL, training={"steps": 8, "micro_batch_size": 1},
                             checkpoint={"every": 4})
        meshes = [(4, ["parallel.tensor_parallel=4"]), (4, ["parallel.tensor_parallel=2"]), (2, []),
                  (2, ["parallel.tensor_parallel=2"])]
        self.assert_meshes_resume_each_other(config, meshes)


class TensorParallelFp8Test(Meshes):
    """Tests that FP8 with tensor parallelism is close to one rank. Partial sums round in another order, so some inputs of casts differ in
    the last bit, which sometimes changes a quantized value. tests/model/linear_layer_ranks.cpp tests bit for bit, on exact sums, that the
    scales are those of whole tensors."""

    FP8 = {"model": {"hidden_size": 128, "intermediate_size": 512, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64,
                     "vocab_size": 276},
           "data": {"seq_len": 128}, "optimizer": {"lr": 1e-6}}

    def run_recipe(self, recipe, *overrides, ranks=1):
        return self.run_mesh(f"precision.linear={recipe}", *overrides, ranks=ranks, steps=5, **self.FP8)

    def test_lm_head_is_close_to_one_rank(self):
        """Tests sizes 2 and 3. Size 3 also has tied embeddings, and it divides the heads and the vocabulary."""
        for lm_head in ("fp8_backward", "fp8"):
            for tensor, tied in ((2, False), (3, True)):
                sections = {"model": {"hidden_size": 96, "intermediate_size": 192, "num_heads": 6, "num_kv_heads": 6, "head_dim": 32,
                                      "vocab_size": 288, "tie_word_embeddings": tied},
                            "data": {"seq_len": 96}, "optimizer": {"lr": 1e-6}}
                run = lambda *overrides, ranks=1: self.run_mesh(f"precision.lm_head={lm_head}", "training.global_batch_size=4", *overrides, ranks=ranks, steps=5, **sections)
                one = run()
                for ranks in (tensor, 2 * tensor):
                    with self.subTest(lm_head=lm_head, tensor=tensor, ranks=ranks):
                        divided = run(f"parallel.tensor_parallel={tensor}", ranks=ranks)
                        self.assert_close(divided, one, 2e-3)
                        for step, (loss, _) in divided.items():
                            self.assertLess(abs(loss - one[step][0]), 5e-5 * one[step][0])

    def test_every_mesh_is_close_to_one_rank(self):
        for recipe in ("fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_blockwise"):
            one = self.run_recipe(recipe)
            for mesh, (ranks, overrides) in {
                "tensor parallel 2": (2, []),
                "two shards of tensor parallel 2": (4, ["parallel.reshard_after_forward=true"]),
            }.items():
                with self.subTest(recipe=recipe, mesh=mesh):
                    run = self.run_recipe(recipe, "parallel.tensor_parallel=2", *overrides, ranks=ranks)
                    self.assert_close(run, one, 2e-3)
                    for step, (loss, _) in run.items():
                        self.assertLess(abs(loss - one[step][0]), 5e-5 * one[step][0])
