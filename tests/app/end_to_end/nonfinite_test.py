"""Tests that the log explains a loss that is not finite, and that octavo inspect prints the samples."""

import array
import json
import re

from support import FAILED, ROOT, Scratch, copy_tree, numbers, read_safetensors, write_megatron, write_safetensors
from training_test import Corpus

MODEL = ROOT / "tests/golden/gqa"  # Two layers, a vocabulary of 112.


class NonfiniteTest(Scratch):
    def setUp(self):
        super().setUp()
        self.data = write_megatron(self.dir / "data", [[i * 7 % 112 for i in range(5000)]])

    def broken_model(self):
        """Returns a copy of the model in which a weight of layer 1 is too large."""
        model = copy_tree(MODEL, self.dir / "broken")
        tensors = read_safetensors(model / "model.safetensors")
        key = "model.layers.1.mlp.gate_proj.weight"
        tensors[key] = ("F32", tensors[key][1], array.array("f", [1e38] * len(numbers(tensors[key]))).tobytes())
        write_safetensors(model / "model.safetensors", tensors)
        return model

    def train(self, model, *overrides, ranks=1, **sections):
        config = self.config(self.data, data={"bos_id": None, "eos_id": None},
                             training={"steps": 6, "global_batch_size": 8, "micro_batch_size": 2, "max_skipped_steps": 1}, **sections)
        config.write_text(json.dumps(json.loads(config.read_text()) | {"model": {"init_from": str(model)}}))
        return self.run_octavo("train", config, *overrides, ranks=ranks, code=FAILED)

    def explained(self, result):
        """Returns operation, layer, pass, magnitudes, rank and samples that the log names."""
        found = re.findall(r"step 1 was computed again with the same weights, and the first result that is not finite is that of (\S+) in "
                           r"layer (\d+), (forward|backward) of micro-batch 0; largest magnitudes: (.+) in its result"
                           r"(?: \(rank (\d+) on \S+\))?; octavo inspect CONFIG.yaml --samples (\d+:\d+) --text prints the samples\n", result.out)
        self.assertEqual(len(found), 1, result.out)
        self.assertEqual(result.out.count("computed again"), 1, result.out)
        return found[0]

    def test_a_weight_that_overflows_is_named(self):
        model = self.broken_model()
        for number, (ranks, overrides) in enumerate(((1, []), (2, []), (2, ["parallel.tensor_parallel=2"]))):
            with self.subTest(ranks=ranks, overrides=overrides):
                result = self.train(model, *overrides, ranks=ranks, logging={"dir": f"log{number}"},
                                    checkpoint={"dir": f"checkpoints{number}"})
                op, layer, direction, magnitudes, rank, samples = self.explained(result)
                self.assertEqual((op, layer, direction), ("gate_up", "1", "forward"))
                self.assertRegex(magnitudes, r"^\d\.\d+ in its input, (1e\+38|9\.97e\+37) in its weight, (nan|inf)$")
                self.assertEqual((rank, samples), ("0" if ranks > 1 else "", "0:2"))

    def test_weights_that_diverge_are_named(self):
        """The first update makes weights of 1e30."""
        out = self.train(MODEL, "optimizer.lr=1e30", "optimizer.warmup_steps=0", "optimizer.grad_clip=0").out
        self.assertRegex(out, r"step [23] was computed again with the same weights, and the first result that is not finite is that of ")


class SampleTextsTest(Corpus):
    def test_documents_of_a_sample(self):
        text = ["Call me Ishmael.", "\x1b[31mred\n"]
        data = write_megatron(self.dir / "data", [list(document.encode()) for document in text])
        config = self.config(data, data={"seq_len": 31, "shuffle": "none"})
        out = self.run_octavo("inspect", config, "--samples", "0:2", "--text").out
        title = "sample 0 of data (epoch 0, window 0), tokens"
        self.assertEqual(out.splitlines()[:7], [f"{title} 0 to 17:", "Call me Ishmael.", f"{title} 18 to 28:", "\\x1b[31mred", "",
                                                f"{title} 29 to 31:", "Ca"])
        ids = [json.loads(line) for line in self.run_octavo("inspect", config, "--samples", "0:2").out.splitlines()]
        self.assertEqual(sum(len(line["tokens"]) for line in ids), 2 * 32)
        covered = sum(int(last) - int(first) + 1 for first, last in re.findall(r"^sample .* tokens (\d+) to (\d+):$", out, re.M))
        self.assertEqual(covered, 2 * 32)
        self.assertEqual(self.run_octavo("inspect", config, "--samples", "3:3", "--text").out, "")

    def test_wrong_arguments_are_refused(self):
        config = self.config(self.corpus)
        self.refused("inspect", config, "--text")
        self.refused("inspect", self.corpus, "--text")
        for samples in ("5", "3:2", "a:b"):
            self.refused("inspect", config, f"--samples={samples}", "--text", mentions=["--samples"])
        self.refused("inspect", config, "--samples=0:1", "--text", "data.tokenizer=missing.json",
                     mentions=["the tokenizer missing.json is not a file, expected a tokenizer.json"])
