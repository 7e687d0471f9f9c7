"""Tests of octavo import, export and generate, and of the golden cases through the command line."""

import json
import math
import os
import re
import shutil
import struct
import sys
import textwrap
from itertools import accumulate
from pathlib import Path
from unittest import mock

from support import ALLOW_SCHEDULE, FAILED, ROOT, SPEED, TINY_MODEL, Scratch, checkpoint_tensors, checkpoints, numbers
from support import read_safetensors
from support import copy_tree, relative_distance, snapshot, text_documents, write_megatron, write_safetensors
from training_test import Corpus

FOLDERS = [ROOT / "tests/golden", *map(Path, filter(None, [os.environ.get("OCTAVO_GOLDEN")]))]
GOLDEN = [path.parent for folder in FOLDERS for path in sorted(folder.glob("*/golden.json"))]


class GoldenTest(Scratch):
    """Compares import, training, evaluation and export with the results of transformers."""

    def documents_of(self, case, golden, steps):
        """Returns the tokens of the first `steps` steps, divided into the documents of the case."""
        tensors = read_safetensors(case / "golden.safetensors")
        tokens = list(map(int, numbers(tensors["train_tokens"])))[: steps * golden["batch"] * (golden["seq"] + 1)]
        lengths = tensors.get("document_lengths")
        ends = [min(end, len(tokens)) for end in accumulate(map(int, numbers(lengths)))] if lengths else [len(tokens)]
        return [tokens[begin:end] for begin, end in zip([0, *ends], ends) if begin < end]

    def config_of(self, case, golden):
        data = write_megatron(self.dir / "tokens", self.documents_of(case, golden, golden["steps"]), "i32")
        order = {"shuffle": "none", "bos_id": None, "eos_id": None, "document_mask": golden.get("document_mask", False)}
        return self.config(
            data,
            model={"init_from": str(case)},
            data=order | {"train": [{"path": data}], "seq_len": golden["seq"]},
            training={"steps": golden["steps"], "global_batch_size": golden["batch"], "micro_batch_size": golden["batch"]},
            optimizer=({"type": "muon", "momentum": golden["momentum"]} if golden.get("optimizer") == "muon" else {}) | {
                "lr": golden["lr"],
                "min_lr_ratio": golden["min_lr_ratio"],
                "warmup_steps": golden["warmup"],
                "betas": [golden["beta1"], golden["beta2"]],
                "eps": golden["eps"],
                "weight_decay": golden["weight_decay"],
                "grad_clip": golden["clip"],
            },
        )

    def config(self, *arguments, model, **sections):
        path = super().config(*arguments, **sections)
        content = json.loads(path.read_text()) | {"model": model}
        path.write_text(json.dumps(content))
        return path

    def test_trajectory_and_final_weights(self):
        for case in GOLDEN:
            with self.subTest(case):
                golden = json.loads((case / "golden.json").read_text())
                config = self.config_of(case, golden)
                name = f"{case.parent.parent.name}_{case.name}"
                self.run_octavo("train", config, f"logging.dir={name}", f"checkpoint.dir={name}_checkpoints")
                metrics = self.metrics(name)
                self.assertEqual(len(metrics), golden["steps"])
                self.assertAlmostEqual(metrics[1]["loss"] / golden["loss"], 1, delta=1e-5)
                for entry in golden["trajectory"]:
                    for key in ("loss", "grad_norm", "lr"):
                        self.assertAlmostEqual(metrics[entry["step"]][key] / entry[key], 1, delta=5e-4, msg=key)
                self.run_octavo("export", f"{name}_checkpoints", f"{name}_exported")
                exported = read_safetensors(self.dir / f"{name}_exported/model.safetensors")
                final = read_safetensors(case / "final.safetensors")
                self.assertEqual(sorted(exported), sorted(final))
                for key, tensor in final.items():
                    self.assertEqual(exported[key][1], tensor[1], key)
                    self.assertLess(relative_distance(numbers(exported[key]), numbers(tensor)), 1e-3, key)

    def test_import_and_export_give_the_weights_back(self):
        for case in GOLDEN:
            with self.subTest(case):
                name = f"{case.parent.parent.name}_{case.name}"
                self.run_octavo("import", case, name)
                self.assertTrue(json.loads(self.run_octavo("inspect", name).out)["intact"])
                self.run_octavo("export", name, f"{name}_exported")
                original = read_safetensors(case / "model.safetensors")
                self.assertEqual(read_safetensors(self.dir / f"{name}_exported/model.safetensors"), original)
                self.compare_configs(case, self.dir / f"{name}_exported")
                self.run_octavo("export", name, f"{name}_half", "--dtype", "bfloat16")
                half = read_safetensors(self.dir / f"{name}_half/model.safetensors")
                for key, tensor in original.items():
                    self.assertEqual(half[key][:2], ("BF16", tensor[1]))
                    for rounded, exact in zip(numbers(half[key]), numbers(tensor), strict=True):
                        self.assertLessEqual(abs(rounded - exact), abs(exact) / 256)
                # The exported directory is imported again.
                self.run_octavo("import", f"{name}_exported", f"{name}_again")
                self.assertEqual(checkpoint_tensors(self.dir / f"{name}_again"), checkpoint_tensors(self.dir / name))

    def compare_configs(self, original, exported):
        before, after = (json.loads((path / "config.json").read_text()) for path in (original, exported))
        architecture = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[before["model_type"]]
        self.assertEqual(after["architectures"], [architecture])
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                    "head_dim", "vocab_size", "rms_norm_eps", "tie_word_embeddings", "model_type", "bos_token_id",
                    "eos_token_id", "hidden_act", "max_position_embeddings"):
            self.assertEqual(after[key], before[key], key)
        rope = before["rope_parameters"]
        self.assertEqual(after["rope_parameters"], rope)  # transformers 5 reads this key.
        self.assertEqual(after["rope_theta"], rope["rope_theta"])  # transformers 4 reads this key.
        if rope["rope_type"] == "default":
            self.assertIsNone(after.get("rope_scaling"))
        else:
            scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
            self.assertEqual(after["rope_scaling"], scaling)

    def test_evaluate_gives_the_golden_loss(self):
        for case in GOLDEN:
            with self.subTest(case):
                golden = json.loads((case / "golden.json").read_text())
                config = self.config_of(case, golden)
                data = write_megatron(self.dir / "held_out", self.documents_of(case, golden, 1), "i32")
                name = f"{case.parent.parent.name}_{case.name}"
                self.run_octavo("import", case, name)
                for source in (f"model.init_from={name}", f"model.init_from={case}", f"checkpoint.resume={name}"):
                    out = self.run_octavo("evaluate", config, f"data.validation=[{data}]", source).out
                    loss = float(out.split("validation_loss ")[1].split()[0])
                    self.assertAlmostEqual(loss / golden["loss"], 1, delta=1e-5)

    def test_sharded_and_half_precision_directories(self):
        case = GOLDEN[0]
        original = read_safetensors(case / "model.safetensors")
        sharded = self.dir / "sharded"
        sharded.mkdir()
        shutil.copyfile(case / "config.json", sharded / "config.json")
        names = sorted(original)
        parts = {f"model-0000{i + 1}-of-00003.safetensors": names[i::3] for i in range(3)}
        for file, keys in parts.items():
            write_safetensors(sharded / file, {key: original[key] for key in keys})
        index = {"metadata": {"total_size": 1}, "weight_map": {key: f for f, keys in parts.items() for key in keys}}
        (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
        self.run_octavo("import", case, "whole")
        self.run_octavo("import", sharded, "parts")
        self.assertEqual(checkpoint_tensors(self.dir / "parts"), checkpoint_tensors(self.dir / "whole"))
        (sharded / "model-00002-of-00003.safetensors").unlink()
        self.refused("import", sharded, "missing_part", mentions=["model-00002-of-00003"])
        self.assertFalse((self.dir / "missing_part").exists())

    def test_wrong_directories_are_refused(self):
        case = GOLDEN[0]
        original = read_safetensors(case / "model.safetensors")
        self.run_octavo("import", case, "kept")
        before = snapshot(self.dir / "kept")

        def variant(name, change_config=None, tensors=None):
            folder = self.dir / name
            folder.mkdir()
            config = json.loads((case / "config.json").read_text()) | (change_config or {})
            (folder / "config.json").write_text(json.dumps(config))
            write_safetensors(folder / "model.safetensors", original if tensors is None else tensors)
            return folder

        first = "model.layers.0.mlp.up_proj.weight"
        variants = [
            variant("no_tensor", tensors={key: value for key, value in original.items() if key != first}),
            variant("more_tensors", tensors=original | {"model.layers.7.mlp.up_proj.weight": original[first]}),
            variant("other_shape", {"intermediate_size": 73}),
            variant("other_type", {"model_type": "mistral"}),
            variant("bias", {"attention_bias": True}),
            variant("activation", {"hidden_act": "gelu"}),
            variant("rope", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2}}),
            self.dir,
            self.dir / "nowhere",
        ]
        broken = variant("broken")
        (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:-4])
        json_broken = variant("json_broken")
        (json_broken / "config.json").write_text("{")
        for folder in [*variants, broken, json_broken]:
            with self.subTest(folder.name):
                self.refused("import", folder, "kept")
                self.assertEqual(snapshot(self.dir / "kept"), before)
        # The directory is neither empty nor a checkpoint.
        self.refused("import", case, self.dir)
        self.refused("export", "nowhere", "exported")
        self.refused("export", case, "exported")
        self.refused("export", "kept", "kept")
        self.assertEqual(snapshot(self.dir / "kept"), before)
        (self.dir / "file").write_text("")
        self.refused("export", "kept", "file")

    def test_a_config_json_is_a_model_for_plans(self):
        shutil.copyfile(GOLDEN[0] / "config.json", self.dir / "config.json")
        config = json.loads((self.dir / "config.json").read_text())
        (self.dir / "config.json").write_text(json.dumps(config | {"a_new_key": 1}))
        for model in (self.dir, self.dir / "config.json"):
            out = self.run_octavo("plan", model, "device=cpu", "data.seq_len=32", "model.rope_theta=4e6").out
            self.assertIn("x 32 tokens", out)
            self.assertIn("Octavo ignores a_new_key", out)
            self.assertIn("model.rope_theta is 4000000.0, which replaces 500000.0 of", out)
        (self.dir / "config.json").write_text(json.dumps(config | {"is_causal": False}))
        self.refused("plan", self.dir, mentions=["config.json: is_causal is false, expected true"])

    def test_a_head_of_its_own_is_not_tied(self):
        case = next(case for case in GOLDEN if case.name == "tied_ropescaled")
        tensors = read_safetensors(case / "model.safetensors")
        dtype, shape, content = tensors["model.embed_tokens.weight"]
        hf = self.dir / "hf"
        hf.mkdir()
        shutil.copyfile(case / "config.json", hf / "config.json")
        config = self.config_of(case, json.loads((case / "golden.json").read_text()))
        for name, head, tied in (("same", content, True), ("other", content[4:] + content[:4], False)):
            write_safetensors(hf / "model.safetensors", tensors | {"lm_head.weight": (dtype, shape, head)})
            out = self.run_octavo("import", hf, name).out
            self.assertEqual(len(out.splitlines()), 1 if tied else 2, out)
            self.assertRegex(out.splitlines()[-1], rf"^{name}: step 0, [\d,]+ parameters, without a tokenizer$")
            self.assertEqual(json.loads(self.run_octavo("inspect", name).out)["model"]["tie_word_embeddings"], tied)
            out = self.run_octavo("train", config, f"model.init_from={hf}", "training.steps=1", "checkpoint.dir=" + name + "1",
                                  f"logging.dir={name}_log").out
            self.assertEqual(out.count("tie_word_embeddings"), 0 if tied else 1, out)
            self.assertEqual("lm_head.weight" in checkpoint_tensors(self.dir / f"{name}1/step_00000001"), not tied)
        self.refused("train", config, f"model.init_from={hf}", "model.tie_word_embeddings=true", "checkpoint.dir=none",
                     mentions=["lm_head.weight differs", "model.tie_word_embeddings is true"])

    def test_weights_that_are_not_finite_are_refused(self):
        case = GOLDEN[0]
        tensors = read_safetensors(case / "model.safetensors")
        dtype, shape, content = tensors["model.norm.weight"]
        hf = self.dir / "hf"
        hf.mkdir()
        shutil.copyfile(case / "config.json", hf / "config.json")
        config = self.config_of(case, json.loads((case / "golden.json").read_text()))
        for value in (math.nan, -math.inf):
            broken = content[:8] + struct.pack("<f", value) + content[12:]
            write_safetensors(hf / "model.safetensors", tensors | {"model.norm.weight": (dtype, shape, broken)})
            mentions = (hf, "model.norm.weight", str(value), "[2]")
            self.refused("import", hf, "imported", mentions=mentions)
            for ranks in (1, 2):
                self.refused("train", config, f"model.init_from={hf}", "training.micro_batch_size=1", "checkpoint.dir=none",
                             ranks=ranks, mentions=mentions)


class DamagedWeightsTest(Corpus):
    def test_every_reader_finds_a_flipped_bit(self):
        config = self.config(self.corpus, data={"validation": [{"path": self.held_out}]})
        self.train(config)
        step = self.dir / "checkpoints" / checkpoints(self.dir / "checkpoints")[-1]
        shard = step / "rank_00000.safetensors"
        raw = bytearray(shard.read_bytes())
        (size,) = struct.unpack_from("<Q", raw)
        begin, end = json.loads(raw[8 : 8 + size])["lm_head.weight"]["data_offsets"]
        raw[8 + size + (begin + end) // 2] ^= 1
        shard.write_bytes(raw)
        mentions = (shard.name, "lm_head.weight is damaged")
        more = ("checkpoint.dir=more", "logging.dir=more")
        for ranks in (1, 2, 3):
            batch = ("training.global_batch_size=24",)
            self.refused("evaluate", config, *batch, ranks=ranks, mentions=mentions)
            self.refused("evaluate", config, *batch, f"model.init_from={step}", "checkpoint.dir=more", ranks=ranks,
                         mentions=mentions)
            self.refused("train", config, *batch, "training.steps=9", "checkpoint.allow_changes=[schedule]", ranks=ranks, mentions=mentions)
            self.refused("train", config, *batch, f"model.init_from={step}", *more, ranks=ranks, mentions=mentions)
            self.refused("generate", "checkpoints", "--prompt", "x", ranks=ranks, mentions=mentions)
        self.refused("export", "checkpoints", "exported", mentions=mentions)


class GenerateTest(Corpus):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained = None

    def checkpoint(self):
        self.train(self.config(self.corpus, training={"steps": 30}))
        return "checkpoints"

    def generate(self, *options, prompt="octavo ", **more):
        line = ("generate", "checkpoints", "--prompt", prompt, *options)
        result = self.run_octavo(*line, **more)
        self.assertTrue(result.out_bytes.startswith(prompt.encode()), result.out)
        return result.out_bytes

    def test_generates_bytes(self):
        self.checkpoint()
        greedy = self.generate("--temperature", "0", "--max-tokens", "40")
        self.assertEqual(self.generate("--temperature", "0", "--max-tokens", "40", "--seed", "5"), greedy)
        shorter = self.generate("--temperature", "0", "--max-tokens", "10")
        self.assertTrue(greedy.startswith(shorter.rstrip(b"\n")))
        self.assertLessEqual(len(greedy), len("octavo ") + 40 + 1)
        self.assertEqual(self.generate("--top-k", "1", "--max-tokens", "40"), greedy)
        self.assertEqual(self.generate("--top-p", "0", "--max-tokens", "40"), greedy)
        one, again, other = (self.generate("--max-tokens", "40", "--seed", seed) for seed in ("1", "1", "2"))
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)
        for prompt in ('"quoted" \\ and\nlines', "ümläut", "a" * 300, "{}", "", "[a,b]"):
            with self.subTest(prompt):
                self.generate("--max-tokens", "3", prompt=prompt)
        out = self.run_octavo("generate", "checkpoints/step_00000030", "--prompt=--flag-like", "--max-tokens", "3").out
        self.assertTrue(out.startswith("--flag-like"), out)
        self.assertEqual(self.generate("--temperature", "0", "--max-tokens", "40", ranks=2), greedy)
        for options in (("--temperature", "-1"), ("--temperature", "nan"), ("--top-p", "nan"), ("--max-tokens", "0"), ("--top-k", "-1"), ("--top-p", "1.5"),
                        ("--min-p", "2"), ("--samples", "0"), ("--samples", "257"), ("--stop", ""),
                        ("--device", "cuda"), ("--device", "tpu"), ("--seed", "x"), ("--max-tokens", "many"),
                        ("--max-tokens", "9223372036854775807"), ("--max-tokens", str(2**24))):
            with self.subTest(options):
                self.assertLess(len(self.refused("generate", "checkpoints", "--prompt", "x", *options)), 200)
        self.refused("generate", "checkpoints")
        self.refused("generate", "nowhere", "--prompt", "x", mentions=["nowhere"])
        self.refused("generate", self.corpus + ".bin", "--prompt", "x")
        with open("/dev/full", "wb") as full:
            for line in (("generate", "checkpoints", "--prompt", "x", "--max-tokens", "3"), ("inspect", "checkpoints")):
                self.refused(*line, code=FAILED, stdout=full)

    def test_samples_and_stop_strings(self):
        self.checkpoint()
        line = ("generate", "checkpoints", "--prompt", "octavo ", "--max-tokens", "30")
        greedy = self.run_octavo(*line, "--temperature", "0")
        # The prompt has 8 tokens with bos.
        self.assertEqual([int(n) for n in re.match(SPEED, greedy.err).groups()], [8, 30])
        text = greedy.out.removesuffix("\n")
        self.assertEqual(self.run_octavo(*line, "--min-p", "1").out, greedy.out)
        same = self.run_octavo(*line, "--temperature", "0", "--samples", "3")
        self.assertEqual(same.out, "\n---\n".join([text] * 3) + "\n")
        self.assertEqual(int(re.match(SPEED, same.err).group(2)), 90)
        # Each sample equals a separate run with its own seed.
        alone = [self.run_octavo(*line, "--seed", seed).out for seed in (7, 8, 9)]
        self.assertEqual(len(set(alone)), 3)
        self.assertEqual(self.run_octavo(*line, "--seed", "7", "--samples", "3").out, "---\n".join(alone))
        # The stop strings are in the middle of the generated text. The first one in the text counts.
        added = text[len("octavo "):]
        stop, later = added[10:13], added[-3:]
        stopped = self.run_octavo(*line, "--temperature", "0", "--stop", later, "--stop", stop)
        self.assertEqual(stopped.out, "octavo " + added[:min(added.find(stop), added.find(later))] + "\n")
        self.assertLess(int(re.match(SPEED, stopped.err).group(2)), 30)
        self.assertEqual(self.run_octavo(*line, "--temperature", "0", "--stop", "octavo \x7f").out, greedy.out)
        # The limit is the memory for a forward of the longest text, not a number of positions.
        self.refused("generate", "checkpoints", "--prompt", "x", "--max-tokens", str(2**24 - 9),
                     mentions=["a sequence of 16,777,209 tokens", "GiB are free"])

    # A replacement of the tokenizers package. Its tokens are bytes.
    TOKENIZERS = """
        class Encoding:
            def __init__(self, ids):
                self.ids = ids

        class Tokenizer:
            @classmethod
            def from_file(cls, path):
                assert open(path).read() == '{"model": {"type": "bytes"}}', path
                with open("starts", "a") as starts:
                    starts.write("started\\n")
                return cls()
            def no_truncation(self):
                pass
            no_padding = no_truncation
            def encode(self, text, add_special_tokens):
                return Encoding(list(text.encode()))
            def decode(self, ids, skip_special_tokens):
                return bytes(i for i in ids if i < 256).decode(errors="replace").upper()
            def get_vocab_size(self, with_added_tokens):
                return 256
    """

    def test_checkpoints_carry_their_tokenizer(self):
        (self.dir / "tokenizers.py").write_text(textwrap.dedent(self.TOKENIZERS))
        tokenizer = self.dir / "somewhere/llama.json"
        tokenizer.parent.mkdir()
        tokenizer.write_text('{"model": {"type": "bytes"}}')
        (tokenizer.parent / "tokenizer_config.json").write_text("{}")
        config = self.config(self.corpus, data={"tokenizer": str(tokenizer)}, model={"vocab_size": 258})
        self.train(config, ranks=2)
        # Another tokenizer is refused, wherever the first one is now.
        other = self.dir / "other.json"
        other.write_text('{"model": {"type": "words"}}')
        tokenizer.parent.rename(self.dir / "elsewhere")
        self.refused("train", config, "training.steps=9", ALLOW_SCHEDULE, f"data.tokenizer={other}", ranks=2,
                     mentions=["other.json", "was trained with another tokenizer"])
        for wrong in (self.dir / "missing", self.corpus + ".bin"):
            for more in ([], ["--dry-run"]):
                self.refused("train", config, *more, "checkpoint.resume=never", f"data.tokenizer={wrong}", mentions=[str(wrong)])
        shutil.rmtree(self.dir / "elsewhere")
        # The run resumes without the tokenizer's files.
        self.train(config, "training.steps=9", ALLOW_SCHEDULE)
        self.assertEqual(sorted(path.name for path in (self.dir / "checkpoints/step_00000009").glob("token*")),
                         ["tokenizer.json", "tokenizer_config.json"])
        (self.dir / "checkpoints").rename(self.dir / "moved")
        self.run_octavo("export", "moved", "exported")
        self.assertEqual((self.dir / "exported/tokenizer.json").read_text(), '{"model": {"type": "bytes"}}')
        self.assertEqual((self.dir / "exported/tokenizer_config.json").read_text(), "{}")
        line = ("generate", "moved", "--max-tokens", "3", "--prompt")
        with mock.patch.dict(os.environ, {"PYTHONPATH": str(self.dir), "TMPDIR": "/nowhere", "OCTAVO_PYTHON": sys.executable,
                                          "PATH": os.path.dirname(os.environ["OCTAVO"])}):
            for prompt in ("octavo", "ümläut 'quoted' " * 12):
                self.assertTrue(self.run_octavo(*line, prompt).out.startswith(prompt))
            # The tokenizer starts once per run.
            self.assertEqual((self.dir / "starts").read_text().count("started"), 2)
            self.refused(*line, "octavo \udcff", mentions=["UTF-8", "tokenizer.json"])
        with mock.patch.dict(os.environ, {"OCTAVO_PYTHON": "/nowhere/python3"}):
            self.refused(*line, "octavo", mentions=["tokenizer.json", "OCTAVO_PYTHON"])
        (self.dir / "moved/step_00000009/tokenizer.json").write_text("{}")
        self.refused(*line, "octavo", mentions=["tokenizer.json: is damaged"])
        self.refused("export", "moved", "exported", mentions=["tokenizer.json: is damaged"])

    def test_a_checkpoint_is_evaluated_by_its_own_config(self):
        held_out = write_megatron(self.dir / "held_out", text_documents(8, 250, seed=2))
        config = self.config(self.corpus, data={"validation": [{"path": held_out}]}, training={"steps": 4},
                             parallel={"data_parallel_replicate": 2}, checkpoint={"every": 2})
        self.train(config, ranks=2)
        by_config = self.run_octavo("evaluate", config, "parallel.data_parallel_replicate=1").out.splitlines()[-1]
        self.assertIn("step_00000004  validation_loss", by_config)
        for source in ("checkpoints", "checkpoints/step_00000004", "log"):
            line = self.run_octavo("evaluate", source).out.splitlines()[-1]
            self.assertEqual(line[line.index("checkpoints/step"):], by_config[by_config.index("checkpoints/step"):])
        self.assertIn("step_00000002  validation_loss", self.run_octavo("evaluate", "checkpoints/step_00000002").out)
        fewer = ("validation.batches=1", "training.global_batch_size=2", "training.micro_batch_size=2")
        self.assertIn("tokens 64", self.run_octavo("evaluate", "checkpoints", *fewer).out)
        self.run_octavo("export", "checkpoints", "exported")
        self.run_octavo("import", "exported", "imported")
        # A model without a config needs only the data keys. The given weights are used even if the run has others.
        data = (f"data.validation=[{held_out}]", "data.seq_len=32", "data.bos_id=256", "data.eos_id=257", "parallel.data_parallel_replicate=1",
                "device=cpu", *fewer)
        losses = [self.run_octavo("evaluate", *line, *data).out.splitlines() for line in (
            ("checkpoints",), ("imported",), ("exported",), (config, "model.init_from=exported", "checkpoint.dir=none"),
            (config, "model.init_from=checkpoints"))]
        self.assertEqual([lines[0] for lines in losses], ["weights of " + name for name in (
            "checkpoints/step_00000004, step 4", "imported, step 0", "exported", "exported", "checkpoints/step_00000004, step 4")])
        self.assertEqual(len({lines[-1].split("  ", 1)[1] for lines in losses}), 1, losses)
        older = self.run_octavo("evaluate", config, "model.init_from=checkpoints/step_00000002", *data).out
        self.assertIn("step_00000002  validation_loss", older, "not the newest of checkpoint.dir")
        for name in ("imported", "exported"):
            self.refused("evaluate", name, mentions=["data.validation"])
        for other in ("model.init_from=exported", "checkpoint.dir=exported"):
            self.refused("evaluate", "checkpoints", other, mentions=["checkpoints and exported are both given"])
        self.refused("train", config, "model.init_from=exported", "parallel.data_parallel_replicate=1", mentions=["model.init_from=exported is given, but the run resumes"])
        self.assertEqual(json.loads(self.run_octavo("inspect", "exported").out)["format"], "Hugging Face")
        # The byte tokenizer is exported as files for transformers, and import recognizes them. bos and eos are kept.
        vocabulary = json.loads((self.dir / "exported/tokenizer.json").read_text())["model"]["vocab"]
        self.assertEqual(sorted(vocabulary.values()), list(range(256)))
        self.assertFalse((self.dir / "imported/tokenizer.json").exists())
        line = ("--prompt", "octavo ", "--temperature", "0", "--max-tokens", "9")
        texts = [self.run_octavo("generate", model, *line).out for model in ("imported", "checkpoints", "log", "exported")]
        self.assertEqual(len(set(texts)), 1, texts)
        self.run_octavo("export", "log", "of_run")
        self.assertEqual(read_safetensors(self.dir / "of_run/model.safetensors"), read_safetensors(self.dir / "exported/model.safetensors"))
        self.refused("train", "checkpoints", mentions=["checkpoints"])
        # A model without a tokenizer gets no other one.
        (self.dir / "exported/tokenizer.json").rename(self.dir / "exported/tokenizer.model")
        self.refused("generate", "exported", *line, mentions=["exported", "tokenizer.model, but no tokenizer.json", "save_pretrained"])

    def test_another_model_is_exported_over_when_told_to(self):
        self.run_octavo("import", GOLDEN[0], "kept")
        foreign = copy_tree(GOLDEN[0], self.dir / "foreign")
        before = snapshot(foreign)
        self.refused("export", "kept", "foreign", mentions=["foreign: holds ", "which is not of an earlier export", "--overwrite"])
        self.assertEqual(snapshot(foreign), before)
        for path in before:
            if path.name not in ("config.json", "model.safetensors"):
                path.unlink()
        self.refused("export", "kept", "foreign", mentions=["foreign: holds model.safetensors"])
        out = self.run_octavo("export", "kept", "foreign", "--force", "--shard-size", "0.05MB").out
        self.assertRegex(out, r"^foreign: step 0, [\d,]+ parameters in float32, 0\.\d+ GB, \d+ files\n$")
        self.assertGreater(len(list(foreign.glob("model-*.safetensors"))), 3)
        self.run_octavo("export", "kept", "foreign")  # This replaces an earlier export.
        self.assertEqual([path.name for path in foreign.glob("model*")], ["model.safetensors"])
        self.refused("export", "kept", "other", "--shard-size", "5", mentions=["--shard-size is 5"])

    def test_export_of_a_trained_checkpoint(self):
        self.train(self.config(self.corpus), ranks=2)
        name = checkpoints(self.dir / "checkpoints")[-1]
        trained = checkpoint_tensors(self.dir / "checkpoints" / name)
        self.run_octavo("export", "checkpoints", "exported")
        exported = read_safetensors(self.dir / "exported/model.safetensors")
        weights = {key: value for key, value in trained.items() if not key.startswith("exp_avg")}
        self.assertEqual(exported, weights)
        expected = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
        for layer in range(TINY_MODEL["num_layers"]):
            for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                         "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"):
                expected.add(f"model.layers.{layer}.{part}.weight")
        self.assertEqual(set(exported), expected)
        for key in expected:
            for moment in ("exp_avg.", "exp_avg_sq."):
                self.assertEqual(trained[moment + key][1], trained[key][1])
        config = json.loads((self.dir / "exported/config.json").read_text())
        self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (256, 257))
        # A new run starts from the exported weights, so its loss continues where the old one ended.
        further = (self.config(self.corpus, model={"init_from": "exported"}), "checkpoint.dir=more", "logging.dir=more")
        self.train(*further)
        first = self.metrics("more")[1]["loss"]
        self.assertLess(first, math.log(272) - 0.2)
        # A resumed run does not need the weights that it started from.
        (self.dir / "exported").rename(self.dir / "gone")
        self.assertIn("resuming more/step_00000006 ", self.train(*further, "training.steps=7", ALLOW_SCHEDULE).out)
        given = (*further, "model.init_from=exported", "training.steps=8", ALLOW_SCHEDULE)
        self.assertIn("resuming more/step_00000007 ", self.train(*given).out)

    def test_init_from_with_another_shape_is_refused(self):
        self.train(self.config(self.corpus))
        line = self.refused("train", self.config(self.corpus, model={"init_from": "checkpoints", "num_layers": 3}),
                            "checkpoint.dir=more")
        self.assertIn("num_layers", line)
        self.refused("train", self.config(self.corpus, model={"init_from": "nowhere"}), "checkpoint.dir=more",
                     mentions=["nowhere"])


