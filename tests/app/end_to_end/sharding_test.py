"""Tests that sharded training gives the results of one rank on every mesh."""

from support import checkpoint_tensors, numbers, relative_distance
from training_test import Corpus


class Meshes(Corpus):
    # Results must not depend on the activations that a rank saves.
    KEEPING = {
        "gathered again": ["parallel.reshard_after_forward=true"],
        "kept": ["parallel.reshard_after_forward=false"],
        "gradients kept": ["parallel.reshard_after_forward=true", "parallel.accumulate_unsharded=true"],
    }

    def setUp(self):
        super().setUp()
        self.runs = 0

    def run_mesh(self, *overrides, ranks=1, steps=10, **sections):
        """Trains a run and returns its losses and gradient norms."""
        self.runs += 1
        log = f"log{self.runs}"
        config = self.config(self.corpus, training={"steps": steps, "micro_batch_size": 1}, **sections)
        self.train(config, f"logging.dir={log}", f"checkpoint.dir={log}_checkpoints", "logging.every=1", *overrides,
                   ranks=ranks)
        return self.losses(log)

    def assert_same_run(self, actual, expected):
        """Sums in another order change the last bits. Adam's first updates are nearly the signs of the gradients, which amplifies the
        differences. With eight seeds, later gradient norms differed by up to 1.1e-5."""
        first = min(expected)
        self.assert_close({first: actual[first]}, {first: expected[first]}, 1e-6)
        self.assert_close(actual, expected, 2e-5)
        losses = [{step: values[:1] for step, values in run.items()} for run in (actual, expected)]
        self.assert_close(*losses, 1e-6)

    def assert_meshes_equal_one_rank(self, meshes):
        """Expects that a run on each mesh has the results of a run on one rank. `meshes` maps a name to (ranks, overrides)."""
        one = self.run_mesh()
        for mesh, (ranks, overrides) in meshes.items():
            with self.subTest(mesh=mesh):
                self.assert_same_run(self.run_mesh(*overrides, ranks=ranks), one)

    def assert_meshes_resume_each_other(self, config, meshes):
        """Takes eight steps on each mesh. Then each mesh repeats the last four steps from the checkpoint of the next mesh."""
        for i, (ranks, overrides) in enumerate(meshes):
            self.train(config, f"logging.dir=whole{i}", f"checkpoint.dir=whole{i}_checkpoints", *overrides, ranks=ranks)
        for i, (ranks, overrides) in enumerate(meshes):
            written = f"whole{(i + 1) % len(meshes)}_checkpoints/step_00000004"
            self.train(config, f"logging.dir=rest{i}", f"checkpoint.dir=rest{i}_checkpoints",
                       f"checkpoint.resume={written}", *overrides, ranks=ranks)
            whole = {step: values for step, values in self.losses(f"whole{i}").items() if step > 4}
            self.assert_close(self.losses(f"rest{i}"), whole, 1e-6)
            ends = [checkpoint_tensors(self.dir / f"{name}{i}_checkpoints/step_00000008") for name in ("rest", "whole")]
            self.assertEqual(sorted(ends[0]), sorted(ends[1]))
            for key, tensor in ends[0].items():
                self.assertLess(relative_distance(numbers(tensor), numbers(ends[1][key])), 2e-3, key)


class ShardingTest(Meshes):
    """Tests a few meshes. tests/app/run/mesh_draws_ranks.cpp compares every mesh with every way to keep weights and gradients."""

    def test_meshes_equal_one_rank(self):
        self.assert_meshes_equal_one_rank({
            "two shards": (2, ["parallel.reshard_after_forward=true"]),
            "four shards": (4, ["parallel.reshard_after_forward=true", "parallel.accumulate_unsharded=true"]),
            "two copies of two shards": (4, ["parallel.data_parallel_replicate=2", "parallel.reshard_after_forward=false"]),
            "two copies": (2, ["parallel.data_parallel_replicate=2"]),
        })

    def test_without_accumulation(self):
        one = self.run_mesh("training.global_batch_size=4", "training.micro_batch_size=4")
        four = self.run_mesh("training.global_batch_size=4", ranks=4)
        self.assert_same_run(four, one)

    def test_gradients_reduced_in_bfloat16_are_close(self):
        one = self.run_mesh()
        for ranks in (2, 8):
            with self.subTest(ranks=ranks):
                reduced = self.run_mesh("precision.reduce=bfloat16", ranks=ranks)
                self.assertNotEqual(reduced, one)
                self.assert_close(reduced, one, 2e-3)

    def test_gradients_summed_over_replicas_in_bfloat16_are_close(self):
        """The replicas also stay equal bit for bit, which corruption_check_every verifies."""
        one = self.run_mesh()
        for ranks, copies in ((2, 2), (3, 3), (4, 2), (8, 4)):
            keys = [f"parallel.data_parallel_replicate={copies}", "training.global_batch_size=12" if ranks == 3 else "training.global_batch_size=8"]
            expected = self.run_mesh(keys[1]) if ranks == 3 else one
            with self.subTest(ranks=ranks, copies=copies):
                reduced = self.run_mesh("precision.reduce=bfloat16", "training.corruption_check_every=2", *keys, ranks=ranks)
                self.assertNotEqual(reduced, expected)
                self.assert_close(reduced, expected, 2e-3)
                again = self.run_mesh("precision.reduce=bfloat16", "training.corruption_check_every=2", *keys, ranks=ranks)
                self.assertEqual(again, reduced, "it does not depend on who comes first")

    def test_a_checkpoint_of_one_mesh_resumes_on_another(self):
        config = self.config(self.corpus, training={"steps": 8, "micro_batch_size": 1}, checkpoint={"every": 4})
        meshes = [(4, ["parallel.data_parallel_replicate=2"]), (2, []), (1, []), (4, [])]
        self.assert_meshes_resume_each_other(config, meshes)


class ShardedFp8Test(Meshes):
    """Tests FP8 on several ranks. Matmuls on one rank use other threads, so they round differently. Such a difference sometimes changes a
    quantized value by a sixteenth, and the runs diverge. Small updates keep the weights equal."""

    FP8 = {"model": {"hidden_size": 128, "intermediate_size": 128, "num_heads": 2, "num_kv_heads": 2, "head_dim": 64},
           "data": {"seq_len": 128}, "optimizer": {"lr": 1e-6}}

    def run_recipe(self, recipe, *overrides, ranks=1):
        return self.run_mesh(f"precision.linear={recipe}", "training.global_batch_size=4", *overrides, ranks=ranks, steps=5, **self.FP8)

    def test_recipes_on_two_replicas_of_two_shards_equal_one_rank(self):
        for recipe, lm_head in (("fp8_delayed", "bfloat16"), ("fp8_blockwise", "bfloat16"), ("bfloat16", "fp8")):
            key = f"precision.lm_head={lm_head}"
            with self.subTest(recipe=recipe, lm_head=lm_head):
                one = self.run_recipe(recipe, key)
                self.assert_close(self.run_recipe(recipe, key, "parallel.data_parallel_replicate=2", ranks=4), one, 5e-4)
