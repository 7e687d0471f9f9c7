"""Tests of traces of a step: octavo bench --trace and logging.trace."""

import collections
import json

from support import Scratch, TINY_MODEL, write_megatron

# The model is so large that ops take most of a step.
MODEL = TINY_MODEL | {"hidden_size": 128, "intermediate_size": 384, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2}
RANGES = {"step", "micro-batch", "forward", "backward", "embedding", "head", "attention", "mlp", "block 0", "block 1", "block 2",
          "gradient norm", "optimizer"}


class TraceTest(Scratch):
    def spans(self, path, ranks):
        """Returns the spans of a trace by rank and thread, ordered by their beginnings. Checks the names of the threads."""
        trace = json.loads((self.dir / path).read_text())
        events = trace["traceEvents"]
        named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.assertEqual({e["pid"] for e in events if e["name"] == "process_name"}, set(range(ranks)))
        threads = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                threads[event["pid"], named[event["pid"], event["tid"]]].append(event)
        for spans in threads.values():
            spans.sort(key=lambda e: (e["ts"], -e["dur"]))
        return threads

    def check_nesting(self, spans):
        open_until = []
        for span in spans:
            end = span["ts"] + span["dur"]
            while open_until and open_until[-1] <= span["ts"]:
                open_until.pop()
            if open_until:
                self.assertLessEqual(end, open_until[-1] + 0.01, span)  # The times are in microseconds.
            open_until.append(end)

    def check_rank(self, threads, rank, communication):
        compute = threads[rank, "compute"]
        names = {span["name"] for span in compute}
        self.assertLessEqual(RANGES, names)
        for spans in (compute, threads[rank, "host"], threads[rank, communication]):
            self.assertTrue(spans)
            self.check_nesting(spans)
        (step,) = [span for span in compute if span["name"] == "step"]
        ops = [span for span in compute + threads[rank, communication] if span["cat"] not in ("range", "host")]
        # On the CPU, ops do not overlap.
        took = sum(span["dur"] for span in ops)
        self.assertLessEqual(took, 1.01 * step["dur"])
        self.assertGreater(took, 0.6 * step["dur"])
        for block in ("block 0", "block 1", "block 2"):
            passes = [span for span in compute if span["name"] == block]
            forward, backward = passes[0], passes[-1]
            for pass_, products in ((forward, {"qkv", "o", "gate_up", "down", "sdpa_forward"}), (backward, {"qkv_d_w", "down_d_x", "sdpa_backward"})):
                inside = {s["name"] for s in compute if pass_["ts"] <= s["ts"] and s["ts"] + s["dur"] <= pass_["ts"] + pass_["dur"] + 0.01}
                self.assertLessEqual(products, inside)
        return step

    def test_bench(self):
        config = self.config("nowhere", model=MODEL, data={"seq_len": 128}, parallel={"data_parallel_shard": 2})
        run = self.run_octavo("bench", config, "--steps", 1, "--warmup", 1, "--json", "--trace", "trace.json", ranks=2)
        threads = self.spans("trace.json", 2)
        timed = {op["op"] for op in json.loads(run.out)["ops"]}
        for rank in (0, 1):
            self.check_rank(threads, rank, "sharding communication")
            compute = {span["name"].split(" ")[0] for span in threads[rank, "compute"] if span["cat"] != "range"}
            self.assertLessEqual(timed, compute)
            gathers = {span["name"] for span in threads[rank, "sharding communication"]}
            self.assertLessEqual({"all_gather block 1", "reduce_scatter block 1"}, gathers)
        product = next(span for span in threads[0, "compute"] if span["name"] == "qkv")
        self.assertEqual(product["cat"], "product")
        self.assertGreater(product["args"]["flops"], 0)
        self.assertGreater(product["args"]["TFLOP/s"], 0)

    def test_train(self):
        tokens = write_megatron(self.dir / "tokens", [list(range(200)) * 30])
        config = self.config(tokens, model=MODEL, data={"seq_len": 128}, parallel={"tensor_parallel": 2}, logging={"trace": {"step": 3}},
                             training={"steps": 4})
        out = self.run_octavo("train", config, ranks=2).out
        self.assertIn("a trace of step 3 is in log/trace_step_00000003.json", out)
        threads = self.spans("log/trace_step_00000003.json", 2)
        for rank in (0, 1):
            step = self.check_rank(threads, rank, "tensor-parallel communication")
            host = {span["name"]: span["dur"] for span in threads[rank, "host"]}
            self.assertLessEqual({"next batch", "queue step", "wait for the result"}, set(host))
            self.assertLessEqual(host["queue step"], step["dur"])
        untraced = self.config(tokens, "untraced.yaml", model=MODEL, data={"seq_len": 128}, parallel={"tensor_parallel": 2},
                               logging={"dir": "untraced"}, checkpoint={"dir": "others"}, training={"steps": 4})
        self.run_octavo("train", untraced, ranks=2)
        self.assertEqual([m["loss"] for m in self.metrics().values()], [m["loss"] for m in self.metrics("untraced").values()])

    def test_refused(self):
        config = self.config("nowhere")
        self.refused("bench", config, "--trace", "no/such/trace.json", mentions=["no/such/trace.json"])
        self.refused("train", config, "logging.trace.step=7", mentions=["logging.trace.step is 7", "training.steps"])
