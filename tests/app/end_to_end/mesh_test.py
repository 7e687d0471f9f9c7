"""Tests that training on a mesh gives the results of one rank. These tests show that the loader, the trainer, checkpoints and evaluations
know every axis. tests/app/run/mesh_draws_ranks.cpp compares every mesh, recipe and way to keep weights and gradients."""

import json

from support import checkpoint_tensors, numbers, read_safetensors, relative_distance
from training_test import Corpus

REPLICAS_2, TENSOR_2, CONTEXT_2, STAGES_2 = (
    f"parallel.{axis}=2" for axis in ("data_parallel_replicate", "tensor_parallel", "context_parallel", "pipeline_parallel"))
CHUNKS_2 = ["parallel.pipeline_schedule=interleaved", "parallel.pipeline_chunks=2"]
ZERO_BUBBLE = "parallel.pipeline_schedule=zero_bubble"

# Number of ranks and overrides of the meshes.
MESHES = {
    "two shards": (2, ["parallel.reshard_after_forward=true"]),
    "two replicas of two shards": (4, [REPLICAS_2, "parallel.reshard_after_forward=false"]),
    "tensor-parallel ranks that share kv heads": (4, ["parallel.tensor_parallel=4"]),
    "tensor-parallel shards": (4, [TENSOR_2, "parallel.reshard_after_forward=true", "parallel.accumulate_unsharded=true"]),
    "three context ranks": (3, ["parallel.context_parallel=3"]),
    "context ranks that divide the layers": (4, [CONTEXT_2, TENSOR_2]),
    "uneven stages": (3, ["parallel.pipeline_parallel=3", "parallel.pipeline_layers=[1, 1, 2]"]),
    "stages of two chunks, in replicas": (4, [STAGES_2, *CHUNKS_2, REPLICAS_2]),
    "stages that divide the layers": (4, [STAGES_2, ZERO_BUBBLE, TENSOR_2]),
}


class MeshTest(Corpus):
    MODEL = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32,
             "vocab_size": 275}

    def mesh_config(self, **sections):
        training = {"micro_batch_size": 1} | sections.pop("training", {})
        # eps is far above the rounding error of a gradient, which would otherwise decide on the sign of updates.
        defaults = {"model": self.MODEL, "data": {"seq_len": 48}, "training": training, "optimizer": {"eps": 1e-3}}
        return self.config(self.corpus, **(defaults | sections))

    def run_mesh(self, name, *overrides, ranks=1, **sections):
        """Trains a run and returns its losses and gradient norms."""
        self.train(self.mesh_config(**sections), f"logging.dir={name}", f"checkpoint.dir={name}_checkpoints", *overrides, ranks=ranks)
        return self.losses(name)

    def assert_same_run(self, actual, expected):
        """Sums in another order change the last bits, and later steps amplify the differences."""
        first = min(expected)
        self.assert_close({first: actual[first]}, {first: expected[first]}, 1e-6)
        self.assert_close(actual, expected, 2e-5)
        losses = [{step: values[:1] for step, values in run.items()} for run in (actual, expected)]
        self.assert_close(*losses, 1e-6)

    def check_meshes(self, *overrides, **sections):
        one = self.run_mesh("one", *overrides, **sections)
        for mesh, (ranks, axes) in MESHES.items():
            with self.subTest(mesh=mesh):
                self.assert_same_run(self.run_mesh(mesh, *overrides, *axes, ranks=ranks, **sections), one)

    def test_every_mesh_equals_one_rank(self):
        self.check_meshes()

    def test_every_mesh_equals_one_rank_with_all_features(self):
        """The stages have sequences of other lengths. The check for silent corruption ends the run if replicas differ."""
        self.check_meshes("optimizer.type=muon", "optimizer.ema_decay=0.9", "training.z_loss=0.01", "training.corruption_check_every=2",
                          "training.on_corruption=stop", data={"seq_len": 48, "document_mask": True}, training={"steps": 4},
                          model=self.MODEL | {"tie_word_embeddings": True}, stages=[{"steps": 2, "data": {"seq_len": 24}}, {"steps": 2}])

    def test_gradient_accumulation_equals_one_big_batch(self):
        big = self.run_mesh("big", "training.micro_batch_size=8")
        for size in (1, 2):
            self.assert_same_run(self.run_mesh(f"small{size}", f"training.micro_batch_size={size}"), big)

    def test_gradients_reduced_in_bfloat16_are_close(self):
        """Replicas stay equal bit for bit, which corruption_check_every verifies."""
        one = self.run_mesh("one", "training.global_batch_size=12")
        for ranks, replicas in ((2, 1), (2, 2), (3, 3), (4, 2)):
            keys = ["precision.reduce=bfloat16", "training.corruption_check_every=2", "training.global_batch_size=12",
                    f"parallel.data_parallel_replicate={replicas}"]
            with self.subTest(ranks=ranks, replicas=replicas):
                first, second = (self.run_mesh(f"{ranks}_{replicas}_{name}", *keys, ranks=ranks) for name in ("first", "second"))
                self.assertNotEqual(first, one)
                self.assert_close(first, one, 2e-3)
                self.assertEqual(second, first, "it does not depend on who comes first")

    def test_validation_and_evaluation(self):
        config = self.mesh_config(data={"validation": [{"path": str(self.held_out)}], "seq_len": 48}, validation={"every": 2, "batches": 2},
                                  training={"steps": 2})
        losses = []
        for ranks, axes in ((1, []), (4, [TENSOR_2]), (4, [CONTEXT_2]), (2, [STAGES_2, *CHUNKS_2])):
            with self.subTest(axes):
                name = f"run{len(losses)}"
                self.train(config, f"logging.dir={name}", f"checkpoint.dir={name}_checkpoints", *axes, ranks=ranks)
                losses.append(self.metrics(name)[2]["validation_loss"])
                self.assertLess(abs(losses[-1] - losses[0]), 1e-6 * losses[0])
                for evaluated_ranks, evaluated in ((1, []), (ranks, axes)):
                    printed = self.run_octavo("evaluate", config, f"checkpoint.dir={name}_checkpoints", *evaluated,
                                              ranks=evaluated_ranks).out
                    self.assertLess(abs(float(printed.split("validation_loss ")[1].split()[0]) - losses[-1]), 1e-5)

    def test_exports_of_untrained_weights_have_the_same_bits(self):
        """The learning rate is too small to change a weight. No rank count divides the vocabulary."""
        meshes = [(1, []), (2, [TENSOR_2]), (4, ["parallel.tensor_parallel=4"]), (4, [TENSOR_2]), (4, [STAGES_2, TENSOR_2])]
        for i, (ranks, axes) in enumerate(meshes):
            self.run_mesh(f"run{i}", "optimizer.lr=1e-30", "training.steps=1", *axes, ranks=ranks)
            self.run_octavo("export", f"run{i}_checkpoints", f"exported{i}")
            exported = read_safetensors(self.dir / f"exported{i}/model.safetensors")
            if i == 0:
                first = exported
            self.assertEqual(exported, first)
        self.assertEqual(exported["lm_head.weight"][1], [275, 64])

    def test_a_checkpoint_of_one_mesh_resumes_on_another(self):
        """Takes eight steps on each mesh. Then each mesh repeats the last four steps from the checkpoint of the next mesh."""
        config = self.mesh_config(training={"steps": 8}, checkpoint={"every": 4})
        meshes = [(4, [REPLICAS_2]), (1, []), (4, ["parallel.tensor_parallel=4"]), (3, ["parallel.context_parallel=3"]),
                  (2, [STAGES_2, *CHUNKS_2]), (2, []), (4, [STAGES_2, TENSOR_2]), (4, [CONTEXT_2, TENSOR_2])]
        for i, (ranks, axes) in enumerate(meshes):
            self.train(config, f"logging.dir=whole{i}", f"checkpoint.dir=whole{i}_checkpoints", *axes, ranks=ranks)
        for i, (ranks, axes) in enumerate(meshes):
            written = f"whole{(i + 1) % len(meshes)}_checkpoints/step_00000004"
            self.train(config, f"logging.dir=rest{i}", f"checkpoint.dir=rest{i}_checkpoints", f"checkpoint.resume={written}", *axes,
                       ranks=ranks)
            whole = {step: values for step, values in self.losses(f"whole{i}").items() if step > 4}
            self.assert_close(self.losses(f"rest{i}"), whole, 2e-4)
            ends = [checkpoint_tensors(self.dir / f"{name}{i}_checkpoints/step_00000008") for name in ("rest", "whole")]
            self.assertEqual(sorted(ends[0]), sorted(ends[1]))
            for key, tensor in ends[0].items():
                self.assertEqual(tensor[:2], ends[1][key][:2])
                self.assertLess(relative_distance(numbers(tensor), numbers(ends[1][key])), 2e-3, key)

    def test_wps_is_of_each_rank(self):
        """Both ranks together process the tokens of a step, so each token counts once."""
        self.run_mesh("log", CONTEXT_2, "training.steps=3", "training.global_batch_size=4", ranks=2)
        for step, line in self.metrics().items():
            self.assertEqual(line["tokens"], step * 4 * 48)
            if step > 1:  # The interval of a line begins with the step before.
                self.assertLess(abs(line["wps"] * line["step_ms"] / 1e3 * 2 / (4 * 48) - 1), 0.5)

    def test_metrics_and_a_trace_show_the_stages(self):
        uneven = [STAGES_2, "parallel.pipeline_layers=[3, 1]", "parallel.data_parallel_shard=2"]
        result = self.train(self.mesh_config(training={"steps": 5}), *uneven, "logging.trace.step=5", ranks=4)
        metrics = self.metrics()
        for step in (2, 3, 4):
            self.assertTrue(0 < metrics[step]["pipeline_bubble"] < 1)
            self.assertIn(metrics[step]["pipeline_slowest_stage"], (0, 1))
        self.assertRegex(result.out + result.err, r"step 2/5 .*  bubble \d+\.\d%, pipeline stage [01] is the slowest")
        trace = json.loads((self.dir / "log" / "trace_step_00000005.json").read_text())["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in trace if event["name"] == "process_name"}
        for rank, name in names.items():
            self.assertIn(f"rank {rank} of pipeline stage {rank // 2} on ", name)
        waits = [event["name"] for event in trace if event["name"].startswith("wait ")]
        self.assertIn("wait activations of pipeline stage 0 for stage 1", waits)
        self.run_mesh("one", "training.steps=2")
        self.assertNotIn("pipeline_bubble", self.metrics("one")[2])


class ActivationCheckpointingTest(Corpus):
    """tests/app/run/mesh_draws_ranks.cpp shows that no mode changes the results."""

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
