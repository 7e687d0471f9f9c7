"""Tests of octavo plan: its memory plan compared with a run, predictions, searches, and refusals."""

import json
import math

from support import BAD_INPUT, ROOT, Scratch

CONFIGS = ROOT / "configs"
MODEL_8B = CONFIGS / "llama3_8b_8gpu.yaml"
GIB = 2**30


class PlanTest(Scratch):
    def plan(self, *arguments):
        return json.loads(self.run_octavo("plan", *arguments, "--json").out)

    def check_allocates(self, ranks, *overrides):
        config = self.config("none", training={"steps": 6, "global_batch_size": 8, "micro_batch_size": 2})
        run = self.run_octavo("bench", config, "--steps", 1, "--warmup", 0, "--json", *overrides, ranks=ranks)
        memory = self.plan(config, "--gpus", ranks, *overrides)["memory"]
        self.assertEqual(memory["allocated_bytes"], json.loads(run.out)["allocated_bytes"], overrides)
        self.assertEqual(sum(item["bytes"] for item in memory["items"]), memory["allocated_bytes"])
        self.assertEqual(memory["outside_bytes"], 0)

    def test_memory_is_what_a_run_allocates(self):
        self.check_allocates(1)
        self.check_allocates(1, "precision.linear=fp8_rowwise", "optimizer.state_dtype=bfloat16")
        self.check_allocates(2)
        self.check_allocates(2, "parallel.reshard_after_forward=true", "precision.linear=fp8_delayed")
        self.check_allocates(2, "parallel.tensor_parallel=2", "model.num_kv_heads=2")
        self.check_allocates(2, "parallel.context_parallel=2", "data.document_mask=true")
        self.check_allocates(2, "parallel.data_parallel_replicate=2", "parallel.accumulate_unsharded=true")
        self.check_allocates(2, "parallel.data_parallel_replicate=2", "precision.reduce=bfloat16")

    def test_validation_counts(self):
        config = self.config("none")
        without = self.plan(config)["memory"]["allocated_bytes"]
        with_it = self.plan(config, "data.validation=[{path: other}]")["memory"]
        self.assertIn("validation loss", [item["name"] for item in with_it["items"]])
        self.assertGreater(with_it["allocated_bytes"], without)

    def test_gpus_without_a_gpu(self):
        plan = self.plan(MODEL_8B, "--gpus", 2, "training.global_batch_size=4")
        self.assertEqual(plan["parameters"], 8030261248)
        self.assertEqual(plan["mesh"], {"pipeline": 1, "replicate": 1, "shard": 2, "context": 1, "tensor": 1})
        # A run was measured with 133.7 GiB in use.
        self.assertAlmostEqual(plan["memory"]["total_bytes"] / GIB, 133.7, delta=0.5)
        self.assertTrue(plan["memory"]["fits"])
        prediction = plan["prediction"]
        self.assertAlmostEqual(prediction["wps"] / 15752, 1, delta=0.08)
        self.assertAlmostEqual(sum(part["ms"] for part in prediction["parts"]), prediction["step_ms"], places=3)
        self.assertAlmostEqual(sum(prediction["ms_by_kind"].values()), prediction["step_ms"], places=3)
        self.assertLess(prediction["floor_ms"], prediction["step_ms"])
        range_ = prediction["range"]
        self.assertAlmostEqual(range_["low_wps"], prediction["wps"] / (1 + range_["largest_error"]), places=6)
        self.assertLess(range_["low_wps"], 15752)
        self.assertGreater(range_["high_wps"], 15752)
        self.assertEqual(range_["not_measured"], [])
        more = self.plan(MODEL_8B, "--gpus", 8, "training.global_batch_size=16")
        self.assertEqual(more["prediction"]["range"]["not_measured"], [f"more than {range_['measured_gpus']} GPUs"])
        self.assertLess(more["memory"]["total_bytes"], plan["memory"]["total_bytes"])

    def test_the_gpus_that_a_config_is_for(self):
        small = (self.config("none"), "device=cuda", "training.global_batch_size=32", "plan.gpus=8", "plan.machine=h100")
        plan = self.plan(*small)
        self.assertEqual((plan["ranks"], plan["device"]), (8, "NVIDIA H100"))
        self.assertIn("taken from an H200", plan["prediction"]["rates_not_measured"][0])
        self.assertIn("rates not measured on an NVIDIA H100: ", self.run_octavo("plan", *small).out)
        plan = self.plan(*small, "--gpus", 2, "--machine", "h200")
        self.assertEqual((plan["ranks"], plan["device"]), (2, "NVIDIA H200"))
        self.refused("plan", *small, "plan.machine=h300", mentions=["plan.machine h300: there is no such file"])
        self.assertEqual(self.plan(MODEL_8B), self.plan(MODEL_8B, "--gpus", 8))

    def test_time_and_gpu_hours_of_the_run(self):
        plan = self.plan(MODEL_8B, "--gpus", 8)
        self.assertEqual(plan["tokens"], plan["steps"] * plan["global_batch_size"] * plan["seq_len"])
        self.assertAlmostEqual(plan["run"]["seconds"], plan["steps"] * plan["prediction"]["step_ms"] / 1e3, places=3)
        self.assertAlmostEqual(plan["run"]["gpu_hours"], 8 * plan["run"]["seconds"] / 3600, places=6)
        out = self.run_octavo("plan", MODEL_8B, "--gpus", 8).out
        self.assertRegex(out, r"this run: [\d,]+ steps, [\d,]+ tokens in \d+d \d+h, [\d.]+ GPU-hours\n")

    def test_the_mesh_that_a_run_on_several_nodes_takes(self):
        arguments = (MODEL_8B, "--gpus", 64, "training.global_batch_size=128")
        plan = self.plan(*arguments)
        self.assertEqual(plan["mesh"], {"pipeline": 1, "replicate": 8, "shard": 8, "context": 1, "tensor": 1})
        self.assertEqual(plan["mesh_reason"], "a replica on each of 8 nodes, because it fits: gathers stay within nodes")
        self.assertIn(plan["mesh_reason"] + "\nreplicate 8 x shard 8 x tensor 1;", self.run_octavo("plan", *arguments).out)
        self.assertEqual(self.plan(*arguments, "--gpus-per-node", 64)["mesh"]["shard"], 64)

    def test_network(self):
        arguments = (MODEL_8B, "--gpus", 1024, "training.global_batch_size=2048", "parallel.data_parallel_replicate=4",
                     "parallel.data_parallel_shard=256")
        step_ms = lambda *options: self.plan(*arguments, *options)["prediction"]["communication_ms"]
        self.assertLess(step_ms(), step_ms("--network-latency-us", 40))

    def test_document_length(self):
        masked = (MODEL_8B, "data.document_mask=true")
        step_ms = lambda *options: self.plan(*masked, *options)["prediction"]["step_ms"]
        short, long, whole = step_ms("--document-length", 512), step_ms("--document-length", 1024), step_ms()
        self.assertEqual(sorted({short, long, whole}), [short, long, whole])
        self.assertEqual(self.plan(*masked, "--document-length", 512)["document_length"], 512)
        self.assertIn(" tokens in documents of 512 on average, ", self.run_octavo("plan", *masked, "--document-length", 512).out)
        self.refused("plan", MODEL_8B, "--document-length", 512,
                     mentions=["--document-length needs documents, and data.document_mask is false"])

    def test_numbers_of_the_command_line(self):
        for option, value, bounds in (("--network-gbps", "nan", "from 1e-06 to 1e+09"), ("--network-gbps", "0", "from 1e-06"),
                                      ("--network-latency-us", "nan", "from 0"),
                                      ("--network-gbps", "1e308", "to 1e+09"), ("--network-gbps", "fast", "from 1e-06")):
            with self.subTest(option, value=value):
                line = self.refused("plan", MODEL_8B, option, value, mentions=[f"{option} is '{value}', expected a number", bounds])
                self.assertLess(len(line), 120)

    def test_search(self):
        found = self.plan(MODEL_8B, "--gpus", 8, "--search")["search"]
        self.assertEqual(len(found), 10)
        self.assertEqual([row["wps"] for row in found], sorted((row["wps"] for row in found), reverse=True))
        for row in found:
            self.assertEqual(math.prod(row["mesh"].values()), 8)
            self.assertLess(row["total_bytes"], 140 * GIB)
        # A plan of the first result gives the same numbers as the search.
        again = self.plan(MODEL_8B, "--gpus", 8, *found[0]["changes"].split())
        self.assertAlmostEqual(again["prediction"]["wps"], found[0]["wps"], places=6)
        self.assertEqual(again["memory"]["total_bytes"], found[0]["total_bytes"])
        text = self.run_octavo("plan", MODEL_8B, "--gpus", 8, "--search").out
        self.assertEqual(len(text.splitlines()), 12)
        self.assertEqual(text.splitlines()[-1], f"the fastest: {found[0]['changes']}")

    def test_search_finds_the_number_of_blocks(self):
        """If not all activations fit, the search finds the smallest number of recomputed blocks that fits."""
        arguments = (MODEL_8B, "--gpus", 8, "--gpu-memory", "60GiB")
        found = self.plan(*arguments, "--search")["search"]
        blocks = [row for row in found if row["checkpointing"] == "block"]
        self.assertTrue(blocks)
        for row in blocks:
            changes = row["changes"].split()
            again = self.plan(*arguments, *changes)
            self.assertAlmostEqual(again["prediction"]["wps"], row["wps"], places=6)
            self.assertEqual(again["memory"]["total_bytes"], row["total_bytes"])
            fewer = [f"activation_checkpointing.ratio={row['ratio'] - 1 / 32}",
                     *(f"parallel.{key}={str(row[key]).lower()}" for key in ("reshard_after_forward", "accumulate_unsharded"))]
            plan = self.run_octavo("plan", *arguments, "--json", *changes, *fewer, code=BAD_INPUT)
            self.assertFalse(json.loads(plan.out)["memory"]["fits"])

    def test_search_reduces_gradients_once(self):
        arguments = (MODEL_8B, "--gpus", 4, "--gpus-per-node", 1, "--network-gbps", 50, "training.global_batch_size=64",
                     "parallel.pipeline_layers=[32]")
        key = "parallel.accumulate_unsharded"
        for configured, once_is_named, each_is_named in (("false", True, False), ("auto", False, True)):
            with self.subTest(configured):
                start = (*arguments, f"{key}={configured}")
                rows = self.plan(*start, "--search")["search"]
                pairs = [(once, each) for once in rows for each in rows if once["accumulate_unsharded"]
                         and not each["accumulate_unsharded"] and all(once[k] == each[k] for k in ("mesh", "micro_batch_size"))]
                once, each = pairs[0]
                self.assertEqual(f"{key}=true" in once["changes"].split(), once_is_named)
                self.assertEqual(f"{key}=false" in each["changes"].split(), each_is_named)
                for row in (once, each):
                    again = self.plan(*start, *row["changes"].split())
                    self.assertEqual(again["memory"]["accumulate_unsharded"], row["accumulate_unsharded"])
                    self.assertAlmostEqual(again["prediction"]["wps"], row["wps"], places=6)

    def test_pipeline_stages(self):
        arguments = (MODEL_8B, "--gpus", 16, "--network-gbps", 50, "parallel.pipeline_parallel=4")
        plan = self.plan(*arguments)
        stages = plan["pipeline"]["stages"]
        self.assertEqual([stage["blocks"] for stage in stages], [8, 9, 9, 6])
        self.assertEqual(max(stage["total_bytes"] for stage in stages), plan["memory"]["total_bytes"])
        step_ms = plan["prediction"]["step_ms"]
        for stage in stages:
            self.assertAlmostEqual(stage["busy_ms"] + stage["waiting_ms"], step_ms, places=6)
        slowest = stages[plan["pipeline"]["slowest_stage"]]
        self.assertEqual(slowest["busy_ms"], max(stage["busy_ms"] for stage in stages))
        self.assertAlmostEqual(plan["prediction"]["ms_by_kind"]["waiting for other pipeline stages"], slowest["waiting_ms"])
        self.assertAlmostEqual(plan["pipeline"]["bubble"], sum(stage["waiting_ms"] for stage in stages) / 4 / step_ms)
        self.assertIn("replicate 2", plan["prediction"]["range"]["not_measured"])
        text = self.run_octavo("plan", *arguments).out
        self.assertRegex(text, r"\npipeline stage \d is the slowest; a stage waits for [\d.]+% of a step on average")
        slow = (MODEL_8B, "--gpus", 4, "--gpus-per-node", 1, "--network-gbps", 50, "training.global_batch_size=64")
        found = [row for row in self.plan(*slow, "--search")["search"] if row["mesh"]["pipeline"] > 1]
        self.assertTrue(found)
        again = self.plan(*slow, *found[0]["changes"].split())
        self.assertAlmostEqual(again["prediction"]["wps"], found[0]["wps"], places=6)
        self.assertEqual(again["memory"]["total_bytes"], found[0]["total_bytes"])
        fixed = self.plan(*arguments, "parallel.pipeline_layers=[8, 8, 8, 8]", "--search")["search"]
        self.assertLessEqual({row["mesh"]["pipeline"] for row in fixed}, {2, 4})
        self.refused("plan", *arguments, "--html", self.dir / "memory.html", mentions=["--html", "parallel.pipeline_parallel is 4"])

    def test_text(self):
        out = self.run_octavo("plan", MODEL_8B, "--gpus", 8).out
        for text in ("8,030,261,248 parameters", "activations gate_up", "allocated at the start", "predicted: step", "matmuls",
                     "; full weights kept, gradients reduced once per step, "):
            self.assertIn(text, out)
        self.assertTrue(out.startswith("fits on 8 x NVIDIA H200: "), out)
        all_of_it = self.run_octavo("plan", MODEL_8B, "--gpus", 8, "--all").out
        for text, rows in ((out, 10), (all_of_it, 30)):
            table = text.split("\nmemory per rank ")[1].split("\n\n")[0].splitlines()
            items = [line for line in table if line.endswith(("whole run", "one step", "one block"))]
            (self.assertEqual if rows == 10 else self.assertGreater)(len(items), rows, text)
            self.assertEqual("more, with --all" in text, rows == 10)
        out = self.run_octavo("plan", self.config("none")).out
        self.assertTrue(out.splitlines()[0].endswith(" GiB per rank on 1 x cpu"), out)
        self.assertIn("no prediction", out)
        self.assertIn("float32 linears", out)

    def test_unfitting(self):
        arguments = (MODEL_8B, "--gpus", 8, "--gpu-memory", "76GiB", "activation_checkpointing.mode=none")
        result = self.run_octavo("plan", *arguments, "--json", code=BAD_INPUT)
        plan = json.loads(result.out)
        self.assertFalse(plan["memory"]["fits"])
        change = plan["advice"]
        self.assertIn(change, result.err)
        for text in ("76.0 GiB are available", "activations gate_up", "fit with"):
            self.assertIn(text, result.err)
        self.assertTrue(self.plan(*arguments, *change.split())["memory"]["fits"])
        auto = self.plan(*arguments[:-1])["memory"]
        self.assertTrue(auto["fits"])
        self.assertEqual(auto["activation_checkpointing"]["mode"], "selective")

    def test_bad_input(self):
        for memory in ("80", "80G", "-1GiB", "GiB", "nanGiB"):
            self.refused("plan", MODEL_8B, f"--gpu-memory={memory}", mentions=["--gpu-memory", memory, "80GiB"])
        self.refused("plan", MODEL_8B, "--gpus", 3, mentions=["training.global_batch_size"])
        self.refused("plan", MODEL_8B, "--gpus", 0, mentions=["--gpus"])
        self.refused("plan", MODEL_8B, "--machine", "h300", mentions=["h300", "h100, h200"])
        self.refused("plan", MODEL_8B, "--gpu", 3, mentions=["--gpu"])
        self.refused("plan", self.dir / "missing.yaml", mentions=["missing.yaml"])
        self.refused("plan", self.config("none"), "--search", mentions=["--machine"])
        (self.dir / "broken.json").write_text("{}")
        self.refused("plan", MODEL_8B, "--machine", "broken.json", mentions=["broken.json", "format"])
        self.refused("plan", MODEL_8B, ranks=2, mentions=["one process"])
