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

    def test_wrong_directories_are_refused(self):
        case = GOLDEN[0]
        self.run_octavo("import", case, "kept")
        before = snapshot(self.dir / "kept")
        broken = copy_tree(case, self.dir / "broken")
        (broken / "model.safetensors").write_bytes((case / "model.safetensors").read_bytes()[:-4])
        for folder in (broken, self.dir, self.dir / "nowhere"):
            with self.subTest(folder.name):
                self.refused("import", folder, "kept", mentions=[folder.name])
        # The target is neither empty nor a checkpoint, the model is not a checkpoint, or the target is not a directory.
        (self.dir / "file").write_text("")
        for line in (("import", case, self.dir), ("export", "nowhere", "exported"), ("export", case, "exported"), ("export", "kept", "kept"),
                     ("export", "kept", "file")):
            self.refused(*line)
        self.assertEqual(snapshot(self.dir / "kept"), before)

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

    def changed(self, case, tensors):
        """Returns a Hugging Face directory with the tensors of the case and these ones, and the config of a run that begins there."""
        hf = self.dir / "hf"
        hf.mkdir(exist_ok=True)
        shutil.copyfile(case / "config.json", hf / "config.json")
        write_safetensors(hf / "model.safetensors", read_safetensors(case / "model.safetensors") | tensors)
        return hf, (self.config_of(case, json.loads((case / "golden.json").read_text())), f"model.init_from={hf}")

    def test_a_head_of_its_own_is_not_tied(self):
        case = next(case for case in GOLDEN if case.name == "tied_ropescaled")
        dtype, shape, content = read_safetensors(case / "model.safetensors")["model.embed_tokens.weight"]
        for name, head, tied in (("same", content, True), ("other", content[4:] + content[:4], False)):
            hf, run = self.changed(case, {"lm_head.weight": (dtype, shape, head)})
            out = self.run_octavo("import", hf, name).out
            self.assertEqual(len(out.splitlines()), 1 if tied else 2, out)
            out = self.run_octavo("train", *run, "training.steps=1", f"checkpoint.dir={name}1", f"logging.dir={name}_log").out
            self.assertEqual(out.count("tie_word_embeddings"), 0 if tied else 1, out)
            self.assertEqual("lm_head.weight" in checkpoint_tensors(self.dir / f"{name}1/step_00000001"), not tied)
        self.refused("train", *run, "model.tie_word_embeddings=true", "checkpoint.dir=none",
                     mentions=["lm_head.weight differs", "model.tie_word_embeddings is true"])

    def test_weights_that_are_not_finite_are_refused(self):
        case = GOLDEN[0]
        dtype, shape, content = read_safetensors(case / "model.safetensors")["model.norm.weight"]
        hf, run = self.changed(case, {"model.norm.weight": (dtype, shape, content[:8] + struct.pack("<f", -math.inf) + content[12:])})
        for line, ranks in ((("import", hf, "imported"), 1), (("train", *run, "training.micro_batch_size=1"), 2)):
            self.refused(*line, ranks=ranks, mentions=(hf, "model.norm.weight", "-inf", "[2]"))


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

    def test_checkpoints_have_their_tokenizer_attached(self):
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
        self.refused("export", "kept", "foreign", mentions=["foreign: holds ", "--overwrite"])
        self.assertEqual(snapshot(foreign), before)
        out = self.run_octavo("export", "kept", "foreign", "--force", "--shard-size", "0.02MB", "--dtype", "bfloat16").out
        self.assertRegex(out, r"^foreign: step 0, [\d,]+ parameters in bfloat16, 0\.\d+ GB, \d+ files\n$")
        shards = [read_safetensors(path) for path in foreign.glob("model-*.safetensors")]
        self.assertGreater(len(shards), 3)
        self.assertEqual({dtype for shard in shards for dtype, *_ in shard.values()}, {"BF16"})
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
