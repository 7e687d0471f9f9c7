"""Tests that training with pipeline stages gives the results of one rank. tests/app/run/mesh_draws_ranks.cpp compares every mesh."""

import json

from sharding_test import Meshes

STAGES_2 = "parallel.pipeline_parallel=2"
ZERO_BUBBLE = "parallel.pipeline_schedule=zero_bubble"
CHUNKS_2 = ["parallel.pipeline_schedule=interleaved", "parallel.pipeline_chunks=2"]


class PipelineParallelTest(Meshes):
    MODEL = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32,
             "vocab_size": 276}

    def run_mesh(self, *overrides, **sections):
        return super().run_mesh(*overrides, **({"model": self.MODEL} | sections))

    def test_every_mesh_equals_one_rank(self):
        self.assert_meshes_equal_one_rank({
            "two stages": (2, [STAGES_2]),
            "without bubbles": (2, [STAGES_2, ZERO_BUBBLE]),
            "two stages of two chunks": (2, [STAGES_2, *CHUNKS_2]),
            "three uneven stages": (3, ["parallel.pipeline_parallel=3", "parallel.pipeline_layers=[1, 1, 2]"]),
            "stages of two replicas": (4, [STAGES_2, "parallel.data_parallel_replicate=2"]),
            "stages that divide the layers": (4, [STAGES_2, ZERO_BUBBLE, "parallel.tensor_parallel=2"]),
        })

    def test_with_shards(self):
        one = self.run_mesh()
        for keeping, kept in self.KEEPING.items():
            with self.subTest(keeping=keeping):
                self.assert_same_run(self.run_mesh(STAGES_2, *kept, ranks=4), one)
                self.assert_same_run(self.run_mesh(STAGES_2, *CHUNKS_2, *kept, ranks=4), one)

    def test_tied_embeddings_muon_z_loss_and_a_moving_average(self):
        keys = ["optimizer.type=muon", "optimizer.ema_decay=0.9", "training.z_loss=0.01"]
        model = self.MODEL | {"tie_word_embeddings": True}
        one = self.run_mesh(*keys, steps=4, model=model)
        self.assert_same_run(self.run_mesh(*keys, STAGES_2, ranks=4, steps=4, model=model), one)

    def test_silent_corruption_is_looked_for(self):
        keys = ["training.corruption_check_every=2", "training.on_corruption=stop"]
        one = self.run_mesh(*keys)
        mesh = [STAGES_2, "parallel.data_parallel_replicate=2"]
        self.assert_same_run(self.run_mesh(*keys, *mesh, ranks=4), one)
        self.assert_same_run(self.run_mesh(*keys, *mesh, *CHUNKS_2, ranks=4), one)

    def test_validation_and_evaluation(self):
        sections = {"data": {"validation": [{"path": str(self.corpus)}], "allow_overlap": True}, "model": self.MODEL,
                    "validation": {"every": 2, "batches": 2}, "training": {"steps": 2, "micro_batch_size": 1}}
        config = self.config(self.corpus, **sections)
        losses = []
        for i, (ranks, overrides) in enumerate([(1, []), (4, [STAGES_2]), (2, [STAGES_2, *CHUNKS_2])]):
            self.train(config, f"logging.dir=log{i}", f"checkpoint.dir=saved{i}", *overrides, ranks=ranks)
            losses.append(self.metrics(f"log{i}")[2]["validation_loss"])
            for evaluated_ranks, evaluated in ((1, []), (3, ["parallel.pipeline_parallel=3", "training.global_batch_size=3"])):
                printed = self.run_octavo("evaluate", config, f"checkpoint.dir=saved{i}", "validation.batches=2", *evaluated,
                                          ranks=evaluated_ranks).out
                loss = float(printed.split("validation_loss ")[1].split()[0])
                if evaluated_ranks == 1:
                    self.assertLess(abs(loss - losses[i]), 1e-5)
                self.assertGreater(loss, 1)
        for loss in losses[1:]:
            self.assertLess(abs(loss - losses[0]), 1e-6 * losses[0])

    def test_metrics_and_a_trace_show_the_stages(self):
        config = self.config(self.corpus, model=self.MODEL, training={"steps": 5, "micro_batch_size": 1})
        uneven = [STAGES_2, "parallel.pipeline_layers=[3, 1]", "parallel.data_parallel_shard=2"]
        result = self.train(config, *uneven, "logging.dir=log", "logging.every=1", "logging.trace.step=5", ranks=4)
        metrics = self.metrics("log")
        for step in (2, 3, 4):
            self.assertGreater(metrics[step]["pipeline_bubble"], 0)
            self.assertLess(metrics[step]["pipeline_bubble"], 1)
            self.assertIn(metrics[step]["pipeline_slowest_stage"], (0, 1))
        self.assertRegex(result.out + result.err, r"step 2/5 .*  bubble \d+\.\d%, pipeline stage [01] is the slowest")
        trace = json.loads((self.dir / "log" / "trace_step_00000005.json").read_text())["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in trace if event["name"] == "process_name"}
        for rank, name in names.items():
            self.assertIn(f"rank {rank} of pipeline stage {rank // 2} on ", name)
        waits = [event["name"] for event in trace if event["name"].startswith("wait ")]
        self.assertIn("wait activations of pipeline stage 0 for stage 1", waits)
        self.train(config, "logging.dir=one", "logging.every=1", "checkpoint.dir=saved_one")
        self.assertNotIn("pipeline_bubble", self.metrics("one")[2])

    def test_a_checkpoint_of_one_mesh_resumes_on_another(self):
        config = self.config(self.corpus, model=self.MODEL | {"tie_word_embeddings": True}, checkpoint={"every": 4},
                             training={"steps": 8, "micro_batch_size": 1})
        meshes = [(2, [STAGES_2]), (1, []), (4, ["parallel.pipeline_parallel=4"]),
                  (2, [STAGES_2, *CHUNKS_2, "parallel.pipeline_layers=[1, 1, 1, 1]"]), (4, [STAGES_2, "parallel.tensor_parallel=2"])]
        self.assert_meshes_resume_each_other(config, meshes)

    def test_what_does_not_fit_is_refused(self):
        config = self.config(self.corpus, model=self.MODEL, training={"steps": 2, "micro_batch_size": 1, "global_batch_size": 2})
        self.refused("train", config, "parallel.pipeline_parallel=4", ranks=4,
                     mentions=["training.global_batch_size is 2", "2 micro-batches", "the 4 pipeline stages", "; 4 would work"])
        self.refused("train", config, "parallel.pipeline_parallel=5", "training.global_batch_size=5", ranks=5,
                     mentions=["parallel.pipeline_parallel is 5", "at most the 4 blocks"])
        self.refused("train", config, STAGES_2, "parallel.pipeline_layers=[1, 2]", ranks=2,
                     mentions=["parallel.pipeline_layers is [1, 2], which has 3 blocks", "[2, 2] would work"])
        self.refused("train", config, STAGES_2, *CHUNKS_2[:1], ranks=2,
                     mentions=["parallel.pipeline_schedule is interleaved, but parallel.pipeline_chunks is 1, expected at least 2"])
        self.refused("train", config, ZERO_BUBBLE, mentions=["parallel.pipeline_parallel is 1, expected at least 2 stages"])


class PipelineFp8Test(Meshes):
    """The blocks of all stages share one table of amaxes, so FP8 has the bits of one rank."""

    FP8 = {"model": {"hidden_size": 128, "intermediate_size": 256, "num_layers": 3, "num_heads": 2, "num_kv_heads": 2, "head_dim": 64},
           "data": {"seq_len": 128}, "optimizer": {"lr": 1e-6}, "logging": {"fp8_stats_every": 1}}

    def test_every_recipe(self):
        for recipe in ("fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_blockwise"):
            keys = [f"precision.linear={recipe}", "training.global_batch_size=4"]
            one = self.run_mesh(*keys, steps=3, **self.FP8)
            with self.subTest(recipe=recipe):
                stages = self.run_mesh(*keys, "parallel.pipeline_parallel=3", ranks=3, steps=3, **self.FP8)
                self.assert_close(stages, one, 1e-4)
                statistics = self.metrics(f"log{self.runs}")[3]["fp8"]
                self.assertEqual({entry["layer"] for entry in statistics}, {0, 1, 2})
