"""Tests of scripts/import_checkpoint.py: a model that PyTorch trained on two ranks continues in Octavo and back with the losses that it would
have had, and what cannot be converted is refused.

The tests need the program (OCTAVO_BINARY or build/octavo), torch, numpy and xxhash. They are skipped if one is missing.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import python_packages  # noqa: E402

OCTAVO = Path(os.environ.get("OCTAVO_BINARY", ROOT / "build/octavo"))
PYTHON = next((python for python in (os.environ.get("OCTAVO_PYTHON"), sys.executable)
               if python and python_packages.has_packages(python, ("torch", "numpy", "xxhash"))), None)
MODEL = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "vocab_size": 272,
         "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
OPTIMIZER = {"lr": 5e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0}
CONFIG = {
    "model": MODEL, "data": {"train": [{"path": "text"}], "seq_len": 64, "tokenizer": "byte"},
    "training": {"steps": 12, "global_batch_size": 4, "micro_batch_size": 2},
    "optimizer": OPTIMIZER | {"schedule": "constant", "warmup_steps": 0},
    "checkpoint": {"every": 4}, "logging": {"dir": "run", "every": 1, "tensorboard": False}, "device": "cpu",
}
# Works on a list of requests in one process, because PyTorch takes seconds to start: ["convert", ARGUMENTS...] runs the script and answers with
# its exit code and output, and ["change", SOURCE, TARGET, CODE] writes a checkpoint of PyTorch that the code has changed.
REQUESTS = """
import contextlib, copy, io, json, sys
sys.path.insert(0, sys.argv[1])
import torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
import import_checkpoint
answers = []
for kind, *request in json.loads(sys.argv[2]):
    if kind == "change":
        dcp_to_torch_save(request[0], "whole.pt")
        scope = {"state": torch.load("whole.pt", weights_only=True), "torch": torch, "folder": request[1]}
        exec(request[2], scope)
        dcp.save(scope["state"], checkpoint_id=request[1], no_dist=True)
        continue
    sys.argv[:] = ["import_checkpoint.py", *request]
    code, output = 0, io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            import_checkpoint.main()
        except SystemExit as error:
            code = error.code
    answers.append([code, output.getvalue()])
print(json.dumps(answers))
"""
Q = "model.layers.1.self_attn.q_proj.weight"
# Code of a change: makes the state of a checkpoint with Hugging Face's names that of Megatron-Core. A change of it may stand before MEGATRON_END.
MEGATRON = """
import json, os
from argparse import Namespace
def layer(read, prefix):
    q, k, v = (read(f"{prefix}.self_attn.{part}_proj.weight") for part in "qkv")
    groups = [rows for i in range(2) for rows in (q[64 * i:64 * i + 64], k[32 * i:32 * i + 32], v[32 * i:32 * i + 32])]
    return {"self_attention.linear_qkv.layer_norm_weight": read(prefix + ".input_layernorm.weight"),
            "self_attention.linear_qkv.weight": torch.cat(groups), "self_attention.linear_proj.weight": read(prefix + ".self_attn.o_proj.weight"),
            "mlp.linear_fc1.layer_norm_weight": read(prefix + ".post_attention_layernorm.weight"),
            "mlp.linear_fc1.weight": torch.cat([read(f"{prefix}.mlp.{part}_proj.weight") for part in ("gate", "up")]),
            "mlp.linear_fc2.weight": read(prefix + ".mlp.down_proj.weight")}
def tensors(read):
    layers = [layer(read, f"model.layers.{i}") for i in range(2)]
    outside = {"embedding.word_embeddings": "model.embed_tokens", "decoder.final_layernorm": "model.norm", "output_layer": "lm_head"}
    stacked = {f"decoder.layers.{name}": torch.stack([tensors[name] for tensors in layers]) for name in layers[0]}
    return {f"{theirs}.weight": read(f"{ours}.weight") for theirs, ours in outside.items()} | stacked
states, weights = state["optimizer"]["state"], tensors(state["model"].get)
moments = {f"optimizer.state.{key}.{name}": tensor for key in ("exp_avg", "exp_avg_sq")
           for name, tensor in tensors(lambda name: states[name][key]).items()}
state = weights | moments | {"decoder.layers.mlp.linear_fc1._extra_state/shard_0_2": None}
groups = [{"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1 * factor, "wd_mult": factor} for factor in (1.0, 0.0)]
common = {"iteration": 5, "args": Namespace(rotary_interleaved=False, kv_channels=32, other=Namespace()),
          "optimizer": {"state": {"common_step": torch.tensor(5.0)}, "param_groups": groups}}
backend = "torch_dist"
"""
MEGATRON_END = """
os.makedirs(folder)
open(folder + "/metadata.json", "w").write(json.dumps({"sharded_backend": backend}))
torch.save(common, folder + "/common.pt")
"""


@unittest.skipUnless(OCTAVO.is_file(), f"{OCTAVO} is missing")
@unittest.skipUnless(PYTHON, "torch, numpy and xxhash are not installed")
class ImportCheckpointTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="octavo_import_")
        cls.addClassCleanup(scratch.cleanup)
        cls.root = Path(scratch.name)
        (cls.root / "text.txt").write_text("octavo folds a sheet three times; what is printed on it is a book of eight leaves.\n" * 60)
        (cls.root / "config.yaml").write_text(json.dumps(CONFIG))
        cls.run_here(OCTAVO, "pack", "--input", "text.txt", "--output", "text")
        (cls.root / "samples.jsonl").write_text(cls.run_here(OCTAVO, "inspect", "config.yaml", "--samples", "0:48"))
        cls.losses = cls.train(save="torch", save_at=5, steps=[0, 12])

    @classmethod
    def run_here(cls, *line, rc=0):
        environment = os.environ | {"OCTAVO": str(OCTAVO), "OMP_NUM_THREADS": "1"}
        result = subprocess.run(list(map(str, line)), cwd=cls.root, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == rc, f"{line}: {result.returncode} {result.stdout[-2000:]}{result.stderr[-4000:]}"
        return result.stdout if rc == 0 else result.stderr

    @classmethod
    def train(cls, model=MODEL, titan=False, flat=False, **settings):
        """Trains with PyTorch on two ranks and returns the losses."""
        settings |= {"model": model, "optimizer": OPTIMIZER, "titan": titan, "flat": flat, "batch": 4, "samples": "samples.jsonl"}
        (cls.root / "settings.json").write_text(json.dumps(settings))
        line = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
        return json.loads(cls.run_here(*line, ROOT / "tests/scripts/dcp_trainer.py", "settings.json").splitlines()[-1])

    @classmethod
    def request(cls, *requests):
        return json.loads(cls.run_here(PYTHON, "-c", REQUESTS, ROOT / "scripts", json.dumps(requests)).splitlines()[-1])

    @classmethod
    def convert(cls, *line):
        cls.run_here(PYTHON, ROOT / "scripts/import_checkpoint.py", *line)

    @classmethod
    def imports(cls, source, target, *overrides):
        """Returns the request to import a checkpoint."""
        return ("convert", source, target, "--config", "config.yaml", *overrides)

    def shard(self, name):
        return (self.root / name / "step_00000005/rank_00000.safetensors").read_bytes()

    def assert_refused(self, answer, *words):
        code, message = answer
        self.assertEqual((code, message.count("\n")), (2, 1), message)
        for word in words:
            self.assertIn(word, message)

    def continue_in_octavo(self, name, *overrides):
        """Imports the checkpoint of step 5 and returns the losses of the steps after it."""
        self.convert(name, f"{name}_imported", "--config", "config.yaml", *overrides)
        self.run_here(OCTAVO, "inspect", f"{name}_imported/step_00000005")
        self.run_here(OCTAVO, "train", "config.yaml", f"checkpoint.resume={name}_imported/step_00000005", "data.resume_from_sample=20",
                      f"logging.dir={name}_run", *overrides)
        return [json.loads(line)["loss"] for line in (self.root / f"{name}_run/metrics.jsonl").read_text().splitlines()]

    def assert_equal_losses(self, found, expected):
        for ours, theirs in zip(found, expected, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-5 * theirs)

    def test_hugging_face_names_there_and_back(self):
        self.assert_equal_losses(self.continue_in_octavo("torch"), self.losses[5:])
        self.convert("torch_run/checkpoints/step_00000008", "torch_back", "--to", "huggingface")
        self.assert_equal_losses(self.train(flat=True, load="torch_back", steps=[8, 12]), self.losses[8:])

    def test_torchtitan_there_and_back(self):
        losses = self.train(titan=True, flat=True, save="titan", save_at=5, steps=[0, 12])
        self.assertGreater(abs(losses[0] - self.losses[0]), 1e-4)  # Equal weights would mean that the order of rows has no effect.
        self.assert_equal_losses(self.continue_in_octavo("titan"), losses[5:])
        self.convert("titan_run/checkpoints/step_00000008", "titan_back", "--to", "torchtitan-0.2")
        self.assert_equal_losses(self.train(titan=True, flat=True, load="titan_back", steps=[8, 12]), losses[8:])

    def test_equal_checkpoints_in_other_layouts(self):
        """Torchtitan 0.3 has the moments of queries, keys and values in one matrix, and a tied model may have the head or the embedding."""
        tied = "model.tie_word_embeddings=true"
        split = "[key for key in list(state['optimizer']) if any(part in key for part in ('.wq.', '.wk.', '.wv.'))]"
        without = "del state['model']['lm_head.weight']; del state['optimizer']['state']['lm_head.weight']"
        renamed = ("for part in (state['model'], state['optimizer']['state']):\n"
                   "    part['lm_head.weight'] = part.pop('model.embed_tokens.weight')")
        self.request(self.imports("torch", "once"), ("convert", "once/step_00000005", "titan_3", "--to", "torchtitan"),
                     ("change", "titan_3", "fused", f"for key in {split}: del state['optimizer'][key]"),
                     self.imports("titan_3", "split_imported"), self.imports("fused", "fused_imported"),
                     ("change", "torch", "no_head", without), ("change", "no_head", "only_head", renamed), self.imports("torch", "tied", tied),
                     self.imports("no_head", "no_head_imported", tied), self.imports("only_head", "only_head_imported", tied))
        for same, others in (("once", ("split_imported", "fused_imported")), ("tied", ("no_head_imported", "only_head_imported"))):
            for other in others:
                self.assertEqual(self.shard(same), self.shard(other), other)

    def test_qk_norm(self):
        norms = ("for layer in (0, 1):\n    for part in ('q_norm', 'k_norm'):\n        name = f'model.layers.{layer}.self_attn.{part}.weight'\n"
                 "        state['model'][name] = torch.ones(32)\n        state['optimizer']['state'][name] = {'exp_avg': torch.zeros(32), "
                 "'exp_avg_sq': torch.zeros(32), 'step': torch.tensor(5.0)}")
        options = ("normed", "normed_imported", "model.qk_norm=true")
        answers = self.request(("change", "torch", "normed", norms), self.imports(*options),
                               ("convert", "normed_imported/step_00000005", "normed_back", "--to", "huggingface"),
                               self.imports("normed_back", "normed_again", "model.qk_norm=true"),
                               ("convert", "normed_imported/step_00000005", "refused", "--to", "torchtitan"), self.imports("normed", "refused"))
        self.assertEqual([code for code, _ in answers], [0, 0, 0, 2, 2], answers)
        self.assertEqual(self.shard("normed_imported"), self.shard("normed_again"))
        self.run_here(OCTAVO, "inspect", "normed_imported/step_00000005")

    def test_refused_contents(self):
        state = f"state['optimizer']['state']['{Q}']"
        cases = (
            ("unknown", "state['model']['model.layers.1.self_attn.q_proj.bias'] = torch.zeros(128)", "q_proj.bias"),
            ("weights", "del state['optimizer']", "moments of AdamW"),
            ("moment", f"del {state}['exp_avg_sq']", f"has no optimizer.state.{Q}.exp_avg_sq", "[128, 64]"),
            ("step", f"del {state}['step']", f"has no optimizer.state.{Q}.step"),
            ("steps", f"{state}['step'] += 1", f"{Q}.step is 6", "is 5"),
            ("shape", f"{state}['exp_avg'] = torch.zeros(64, 128)", "[64, 128]", "[128, 64]"),
            ("nan", f"state['model']['{Q}'][3, 4] = float('nan')", f"model.{Q}", "finite"),
            ("negative", f"{state}['exp_avg_sq'][0, 0] = -1", f"{Q}.exp_avg_sq", "negative"),
            ("integers", f"state['model']['{Q}'] = torch.zeros(128, 64, dtype=torch.int32)", f"model.{Q}", "int32"),
            ("other", "state = {'x': torch.zeros(2)}", "names of torchtitan or Hugging Face", "x"))
        configs = ((("model.num_heads=8", "model.num_kv_heads=4"), "[128, 64]"), (("model.num_layers=1",), "model.layers.1"),
                   (("optimizer.type=muon",), "optimizer.type muon"), (("nope=1",), "nope"))
        requests = [("change", "torch", name, code) for name, code, *_ in cases] + [self.imports(name, "refused") for name, *_ in cases]
        answers = self.request(*requests, *[self.imports("torch", "refused", *overrides) for overrides, _ in configs],
                               self.imports("text.txt", "refused"))
        for (case, *words), answer in zip([(name, *words) for name, _, *words in cases] + [*configs, ("text.txt", "has no .metadata")], answers):
            with self.subTest(case):
                self.assert_refused(answer, *words)
        self.assertEqual(list((self.root / "refused").glob("*")), [])

    def megatron(self, name, change=""):
        """Returns the request to write a checkpoint of Megatron-Core."""
        return ("change", "torch", name, MEGATRON + change + MEGATRON_END)

    def test_megatron_layouts(self):
        masters = ("for name, weight in weights.items():\n    state['optimizer.state.fp32_param.' + name] = weight\n"
                   "    state[name] = (2 * weight).bfloat16()\ncommon['optimizer'] = {'optimizer': common['optimizer']}")
        # The form that has the layers by name, norms of their own, gate and up apart, and a prefix.
        by_layer = """
for name, tensor in list(state.items()):
    before, found, inner = name.partition("decoder.layers.")
    if found and tensor is not None:
        del state[name]
        inner = {"mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
                 "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight"}.get(inner, inner)
        for i in range(2):
            parts = {"_w": tensor[i][:96], "_v": tensor[i][96:]} if inner == "mlp.linear_fc1.weight" else {"": tensor[i]}
            state |= {f"{before}decoder.layers.{i}.{inner}{end}": part for end, part in parts.items()}
for name in list(state):
    place = name.replace("optimizer.state.exp_avg_sq.", "").replace("optimizer.state.exp_avg.", "")
    state[name.removesuffix(place) + "module." + place] = state.pop(name)
common["optimizer"] = {"optimizer": {"param_groups": [group | {"step": 5} for group in groups]}, "param_state_sharding_type": "fully_reshardable"}
"""
        # The older form of the states, here of 2 x 4 shards, and of 2 shards of norms.
        shards = """
for name in [name for name in state if name.startswith("optimizer.")]:
    tensor, is_layer = state[name], "layers" in name
    counts = [2, 4][:tensor.dim() - is_layer]
    parts = [tensor]
    for axis, count in enumerate(counts):
        parts = [part for whole in parts for part in whole.chunk(count, axis + is_layer)]
    flat = torch.stack([part.flatten(1) if is_layer else part.flatten() for part in parts], int(is_layer))
    state[name] = flat.reshape(*tensor.shape[:is_layer], *counts, -1)
common["optimizer"]["param_state_sharding_type"] = "fully_sharded_model_space"
"""
        padding = ("for name in state:\n    if 'embed' in name or 'output' in name:\n"
                   "        state[name] = torch.cat([state[name], torch.ones(112, 64)])")
        cases = {"megatron": "", "masters": masters, "by_layer": by_layer, "shards": shards, "padded": padding}
        answers = self.request(*[self.megatron(name, change) for name, change in cases.items()], self.imports("torch", "plain"),
                               *[self.imports(name, f"{name}_megatron") for name in cases])
        self.assertEqual([code for code, _ in answers], [0] * 6, answers)
        for name, (_, said) in zip(cases, answers[1:], strict=True):
            self.assertEqual(self.shard("plain"), self.shard(f"{name}_megatron"), name)
            self.assertEqual("last 112 rows" in said, name == "padded", said)
            self.assertNotIn("trained with", said)

    def test_refused_contents_of_megatron(self):
        fc2 = "decoder.layers.mlp.linear_fc2.weight"
        cases = (
            ("buckets", "common['optimizer'] = {'param_state_sharding_type': 'dp_reshardable'}", "dp_reshardable", "-fully-reshardable"),
            ("backend", "backend = 'zarr'", "zarr", "torch_dist"),
            ("bias", "state['decoder.layers.mlp.linear_fc2.bias'] = torch.zeros(2, 64)", "linear_fc2.bias"),
            ("experts", f"state['decoder.layers.mlp.experts.linear_fc2.weight'] = state.pop('{fc2}')", f"neither {fc2}"),
            ("moment", f"del state['optimizer.state.exp_avg_sq.{fc2}']", f"has no optimizer.state.exp_avg_sq.{fc2}"),
            ("shape", f"state['{fc2}'] = torch.zeros(3, 64, 96)", f"{fc2} is [3, 64, 96]", "[2, 64, 96]"),
            ("shards", f"state['optimizer.state.exp_avg.{fc2}'] = torch.zeros(2, 1, 5, 1228)", "[2, 1, 5, 1228]", "[2, 64, 96]"),
            ("nan", f"state['{fc2}'][1, 2, 3] = float('nan')", fc2, "finite"),
            ("narrow", f"state['{fc2}'] = state['{fc2}'].bfloat16()", fc2, "master"),
            ("rope", "common['args'].rotary_interleaved = True", "args.rotary_interleaved is True"),
            ("heads", "common['args'].kv_channels = 64", "args.kv_channels is 64"),
            ("scaling", "common['args'].use_rope_scaling = True", "args.use_rope_scaling is True"),
            ("no_rope", "common['args'].no_rope_freq = [0, 1]", "args.no_rope_freq is [0, 1]"),
            ("steps", "common['iteration'] = 6", "iteration is 6", "common_step is 5"),
            ("stepless", "del common['optimizer']['state']", "has no step"),
            ("chain", "common['optimizer'] = {0: {}, 1: {}}", "common.pt"),
            ("rows", "for name in state:\n    if 'embed' in name or 'output' in name:\n"
             "        state[name] = torch.cat([state[name], torch.ones(128, 64)])", "has 400 rows", "model.vocab_size=400"),
            ("norm", "del state['decoder.final_layernorm.weight']", "final_layernorm"))
        names = [f"megatron_{name}" for name, *_ in cases]
        answers = self.request(*[self.megatron(name, change) for name, (_, change, *_) in zip(names, cases, strict=True)],
                               *[self.imports(name, "refused_megatron") for name in names])
        for (case, _, *words), answer in zip(cases, answers, strict=True):
            with self.subTest(case):
                self.assert_refused(answer, *words)
        self.assertEqual(list((self.root / "refused_megatron").glob("*")), [])

    def test_common_values_of_megatron_cannot_run_anything(self):
        code = ("class Planted:\n    def __reduce__(self):\n        return {}, ({!r},)\ncommon['other'] = Planted()")
        requests = [self.megatron(name, code.format(function, argument)) for name, function, argument in (
            ("megatron_exec", "exec", "open('planted_common', 'w')"), ("megatron_system", "os.system", "touch planted_common"))]
        answers = self.request(*requests, self.imports("megatron_exec", "megatron_exec_imported"), self.imports("megatron_system", "refused"))
        self.assertEqual(answers[0][0], 0, answers)
        self.assert_refused(answers[1], "common.pt")
        self.assertFalse((self.root / "planted_common").exists())

    def copy(self, name, file, change):
        """Copies the checkpoint of step 5 with a change of one file, and returns the request to import the copy."""
        shutil.copytree(self.root / "torch", self.root / name)
        path = self.root / name / file
        path.write_bytes(change(path.read_bytes()))
        return self.imports(name, "refused")

    def test_damaged_files(self):
        requests = [self.copy("truncated", "__1_0.distcp", lambda content: content[:-100]),
                    self.copy("zeros", "__0_0.distcp", lambda content: bytes(400) + content[400:])]
        requests += [self.copy(f"cut_{length}", ".metadata", lambda content, length=length: content[:length]) for length in (0, 100, 5000)]
        for words, answer in zip((["truncated"], ["zeros"], [".metadata"], [".metadata"], [".metadata"]), self.request(*requests), strict=True):
            self.assert_refused(answer, *words)

    def test_a_pickle_cannot_run_anything(self):
        payloads = (b"cposix\nsystem\n(S'touch planted'\ntR.", b"cbuiltins\neval\n(S'open(\"planted\", \"w\")'\ntR.",
                    b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x8c\x09os.system\x93\x8c\x0dtouch planted\x85R.")
        requests = [self.copy(f"planted_{i}", ".metadata", lambda _, payload=payload: payload) for i, payload in enumerate(payloads)]
        # A value in a .distcp, here the step of the trainer, is another pickle. Saving it calls __reduce__ only.
        code = ("class Planted:\n    def __reduce__(self):\n        return exec, ('open(\"planted\", \"w\")',)\n"
                "state['train_state'] = {'step': Planted()}")
        *refused, value = self.request(*requests, ("change", "torch", "value", code), self.imports("value", "refused"))
        for answer in refused:
            self.assert_refused(answer, "nothing was executed")
        self.assert_refused(value, "train_state.step")
        self.assertFalse((self.root / "planted").exists())

    def test_a_pickle_cannot_change_a_class(self):
        # The operation BUILD with the state (None, {"name": "x"}).
        change = b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadataIndex\nN}(X\4\0\0\0nameX\1\0\0\0xu\x86b"
        [answer] = self.request(self.copy("changing", ".metadata", lambda content: change + content))
        self.assert_refused(answer, "its pickle changes a type")

    def test_options_that_differ_are_named(self):
        code = "state['optimizer']['param_groups'][0]['weight_decay'] = 0.2"
        (_, said), again = self.request(("change", "torch", "options", code), self.imports("options", "named", "optimizer.betas=[0.9, 0.99]"),
                                        self.imports("options", "named"))
        self.assertIn("weight decay of 0.2 for norms", said)
        self.assertIn("betas (0.9, 0.95), and the config has (0.9, 0.99)", said)
        self.assert_refused(again, "exists already")

    def test_a_damaged_checkpoint_is_not_converted_back(self):
        self.request(self.imports("torch", "whole"))
        requests = []
        for file, place in (("rank_00000.safetensors", -1000), ("manifest.json", 1000)):
            shutil.copytree(self.root / "whole/step_00000005", self.root / f"damaged_{file}")
            content = bytearray((self.root / f"damaged_{file}" / file).read_bytes())
            content[place] ^= 1
            (self.root / f"damaged_{file}" / file).write_bytes(content)
            requests.append(("convert", f"damaged_{file}", "back", "--to", "torchtitan"))
        shard, manifest, none = self.request(*requests, ("convert", "torch", "back", "--to", "torchtitan"))
        self.assert_refused(shard, "rank_00000.safetensors", "damaged")
        self.assert_refused(manifest, "manifest.json")
        self.assert_refused(none, "has no manifest.json")
        self.assertFalse((self.root / "back").exists())


if __name__ == "__main__":
    unittest.main()
