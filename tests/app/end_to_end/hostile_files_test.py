"""Tests of malicious files, and of paths that are not regular files: the program ends with exit code 2 and one short sentence, within
seconds and with little memory."""

import json
import math
import os
import resource
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from support import FAILED, environment, write_megatron, write_safetensors
from bad_input_test import BadInput

# Limit of the address space. The program maps 1 GiB in any run.
MEMORY_BYTES = 3 << 30
SECONDS = 20
LONGEST_SENTENCE = 700
DEEP = 100_000  # The lists are nested more deeply than any stack allows.

# These 300 bytes expand to 9^8 = 43 million lists.
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + chr(ord(name) - 1)] * 9)}]\n" for name in "bcdefgh"
)

HF_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 272,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
HF_SHAPES = {"model.embed_tokens.weight": [272, 64], "model.norm.weight": [64], "lm_head.weight": [272, 64]} | {
    f"model.layers.{layer}.{name}.weight": shape
    for layer in range(2)
    for name, shape in {
        "self_attn.q_proj": [64, 64], "self_attn.k_proj": [32, 64], "self_attn.v_proj": [32, 64], "self_attn.o_proj": [64, 64],
        "mlp.gate_proj": [96, 64], "mlp.up_proj": [96, 64], "mlp.down_proj": [64, 96],
        "input_layernorm": [64], "post_attention_layernorm": [64],
    }.items()
}


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def runs_within_limits():
    """Returns whether the program runs with limited memory. Sanitizers reserve terabytes, so they cannot be limited."""
    line = [os.environ["OCTAVO"], "--version"]
    return subprocess.run(line, env=environment(), preexec_fn=limit_memory, capture_output=True, check=False).returncode == 0


class Hostile(BadInput):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.limits = {"preexec_fn": limit_memory} if runs_within_limits() else {}

    def refused_soon(self, *arguments, mentions=(), **options):
        began = time.monotonic()
        sentence = self.refused(*arguments, mentions=mentions, **self.limits, **options)
        self.assertLess(time.monotonic() - began, SECONDS, str(arguments)[:200])
        self.assertLessEqual(len(sentence), LONGEST_SENTENCE, arguments)
        self.assertTrue(sentence.isprintable(), sentence)
        for raw in ("json.exception", "filesystem error", "basic_", "std::", "stoll"):
            self.assertNotIn(raw, sentence, arguments)
        return sentence

    def write(self, name, content):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def weights(self, name="hf", **changes):
        """Writes a Hugging Face directory with all weights of HF_CONFIG, which are zeros, and a config with `changes`. Returns its path."""
        write_safetensors(self.write(f"{name}/model.safetensors", ""),
                          {key: ("F32", shape, bytes(4 * math.prod(shape))) for key, shape in HF_SHAPES.items()})
        self.write(f"{name}/config.json", json.dumps(HF_CONFIG | changes))
        return self.dir / name


class HostileTextTest(Hostile):
    def test_yaml(self):
        cases = {
            "bomb": BOMB,
            "lists": "[" * DEEP,
            "maps": "{a: " * DEEP,
            "closed": "a: " + "[" * DEEP + "]" * DEEP,
            "dashes": "- " * DEEP,
            "indented": "".join(" " * i + "a:\n" for i in range(700)),
            "long": "a: b\n" * 1_000_000,
            "keys": "".join(f"key_{i}: {i}\n" for i in range(70_000)),
            "documents": "--- a\n" * DEEP,
            "one_key": "k" * 900_000 + ": 1\n",
            "control": '"\\e[31mred\\n": 1\n',
            "behind": "{device: cpu}, x",
        }
        for name, content in cases.items():
            with self.subTest(name):
                path = self.write(f"{name}.yaml", content)
                self.refused_soon("train", path, mentions=[f"{name}.yaml"])

    def test_overrides(self):
        bomb = "{" + BOMB.strip().replace("\n", ", ") + "}"
        for override in (f"model={bomb}", "model=" + "[" * DEEP, "k" * DEEP + "=1", "a." * 50_000 + "a=1", "x\n\33[2J=1",
                         "training.steps=" + "9" * DEEP, f"data.train=[{'a, ' * 2_000}]"):
            with self.subTest(override[:40]):
                self.refused_soon("train", self.path, override)

    def test_deep_json(self):
        for name, deep in {
            "lists": "[" * DEEP,
            "closed": "[" * DEEP + "]" * DEEP,
            "objects": '{"a":' * DEEP + "1" + "}" * DEEP,
            "model_type": '{"model_type": ' + "[" * DEEP + "]" * DEEP + "}",
            "format": '{"format": "octavo checkpoint", "version": 1, "x": ' + "[" * DEEP + "]" * DEEP + "}",
        }.items():
            with self.subTest(name):
                config = self.write(f"{name}/config.json", deep)
                self.refused_soon("import", config.parent, "out", mentions=["config.json"])
                self.refused_soon("train", self.path, f"model.init_from={config.parent}", mentions=["config.json"])
                manifest = self.write(f"checkpoint_{name}/manifest.json", deep)
                for line in (("inspect", manifest.parent), ("generate", manifest.parent, "--prompt", "x"),
                             ("train", self.path, f"checkpoint.resume={manifest.parent}")):
                    self.refused_soon(*line, mentions=["manifest.json"])
                self.refused_soon("import", self.weights(f"hf_{name}"), manifest.parent)
                machine = self.write(f"machine_{name}.json", deep)
                self.refused_soon("plan", self.path, "--machine", machine, mentions=["machine_"])
                lines = self.write(f"{name}.jsonl", '{"text": "sound"}\n' + deep + "\n")
                self.refused_soon("pack", "--input", lines, "--output", "packed", mentions=[f"{name}.jsonl:2"])
                index = self.weights(f"sharded_{name}")
                (index / "model.safetensors").unlink()
                (index / "model.safetensors.index.json").write_text(deep)
                self.refused_soon("import", index, "out", mentions=["index.json"])
                header = deep.encode()
                (index / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
                self.refused_soon("import", index, "out", mentions=["model.safetensors"])
                prefix = write_megatron(self.dir / f"tokens_{name}", [[1, 2, 3]])
                Path(prefix + ".json").write_text(deep)
                result = self.run_octavo("inspect", prefix, code=2, **self.limits)
                self.assertIn(".json", result.out)
                self.assertFalse(json.loads(result.out)["intact"])

    def test_models_of_impossible_sizes(self):
        self.run_octavo("import", self.weights(), "sound", **self.limits)
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                    "head_dim", "vocab_size"):
            for value in (0, -1, 255, 10**6, 2**31 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 1.5, 1e300, "2", [2], True):
                with self.subTest(key=key, value=value):
                    self.refused_soon("import", self.weights(**{key: value}), "out")
        self.refused_soon("train", self.path, f"model.init_from={self.weights(num_hidden_layers=10**6)}", mentions=["1000000"])
        for changes in ({"rope_theta": -1}, {"rope_theta": "x"}, {"rms_norm_eps": 0}, {"rms_norm_eps": 1e400},
                        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                          "high_freq_factor": 4.0, "original_max_position_embeddings": 2**63}},
                        {"model_type": "l\33[31m\n" * 9000}, {"head_dim": 48}, {"num_attention_heads": 3, "head_dim": 64}):
            with self.subTest(str(changes)[:60]):
                self.refused_soon("import", self.weights(**changes), "out", mentions=["config.json"])

    def test_numbers_of_the_command_line(self):
        huge = "99999999999999999999"
        self.refused_soon("bench", self.path, "--warmup", huge, mentions=["--warmup", huge])
        self.refused_soon("bench", self.path, "--steps", huge, mentions=["--steps", huge])
        self.refused_soon("bench", self.path, "--warmup", "-" + huge, mentions=["--warmup"])
        self.refused_soon("plan", self.path, "--gpus", huge, mentions=["--gpus", huge])
        self.refused_soon("pack", "--input", "x", "--output", "y", "--hold-out-every", huge, mentions=["--hold-out-every", huge])
        self.refused_soon("no\nsuch\33[31mcommand")


class NoFileTest(Hostile):
    """Tests FIFOs, devices, directories and symbolic link loops in every place where a path is expected."""

    def places(self, path):
        """Yields pairs of a command line and the words that the refusal must contain. Each command has `path`, or a link to it, where it
        expects a file."""
        folder = Path(tempfile.mkdtemp(dir=self.dir))
        tokens = write_megatron(folder / "tokens", [[1, 2, 3] * 50])
        os.symlink(path, folder / "shard.bin")
        os.symlink(path, folder / "no_tokens.bin")
        shutil.copy(tokens + ".idx", folder / "no_tokens.idx")
        os.symlink(path, folder / "no_index.idx")
        yield ("train", self.path, f"data.train=[{folder}/shard.bin]"), "shard.bin"
        yield ("train", self.path, f"data.train=[{folder}/no_tokens]"), "no_tokens.bin"
        yield ("inspect", folder / "no_tokens"), "no_tokens.bin"
        yield ("train", self.path, f"data.train=[{folder}/no_index]"), "no_index.idx"
        yield ("train", path), path
        yield ("train", self.path, f"data.train=[{path}]"), path
        yield ("train", self.path, f"model.init_from={path}"), path
        yield ("train", self.path, f"checkpoint.resume={path}"), path
        yield ("evaluate", self.path, f"data.validation=[{tokens}]", f"model.init_from={path}"), path
        yield ("inspect", path), path
        yield ("generate", path, "--prompt", "x"), path
        yield ("plan", self.path, "--machine", path), path
        yield ("import", path, "out"), path
        yield ("export", path, "out"), path
        yield ("pack", "--input-list", path, "--output", "packed"), path
        for name in ("config.json", "model.safetensors", "model.safetensors.index.json"):
            weights = self.weights(folder / f"hf_{name}")
            if name.endswith("index.json"):
                (weights / "model.safetensors").unlink()
            (weights / name).unlink(missing_ok=True)
            os.symlink(path, weights / name)
            yield ("import", weights, "out"), name
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        os.symlink(path, checkpoint / "manifest.json")
        yield ("inspect", checkpoint), "manifest.json"

    def refused_everywhere(self, path):
        for line, mention in self.places(path):
            with self.subTest(line=list(map(str, line))):
                self.refused_soon(*line, mentions=[mention])

    def test_fifos(self):
        os.mkfifo(self.dir / "fifo")
        self.refused_everywhere(self.dir / "fifo")
        self.refused_soon("pack", "--input", "fifo", "--output", "packed", mentions=["fifo"])

    def test_devices(self):
        for device in ("/dev/zero", "/dev/tty"):
            self.refused_everywhere(Path(device))
        self.refused_soon("pack", "--input", "/dev/zero", "--output", "packed", mentions=["/dev/zero"])

    def test_directories(self):
        (self.dir / "folder").mkdir()
        self.refused_everywhere(self.dir / "folder")

    def test_symbolic_links_in_a_loop(self):
        os.symlink("loop", self.dir / "loop")
        self.refused_everywhere(self.dir / "loop")
        self.refused_everywhere(self.dir / "loop/below")
        for line in (("pack", "--input", "loop", "--output", "packed"), ("pack", "--input", self.path, "--output", "loop/x"),
                     ("train", self.path, "checkpoint.dir=loop/x", "checkpoint.every=1"),
                     ("train", self.path, "logging.dir=loop/x"), ("import", self.weights(), "loop/x"),
                     ("train", "loop/config.yaml")):
            with self.subTest(line=list(map(str, line))):
                self.refused_soon(*line, mentions=["loop"])

    def test_links_that_lead_out(self):
        weights = self.weights()
        (weights / "model.safetensors").rename(self.dir / "elsewhere")
        os.symlink("../elsewhere", weights / "shard")
        for name, part in (("shard", "shard: is a link that leads out of its directory"), ("../elsewhere", "in this directory"),
                           ("..", "in this directory"), ("shard\0x", "in this directory")):
            self.write("hf/model.safetensors.index.json", json.dumps({"weight_map": {"x": name}}))
            self.refused_soon("import", weights, "out", mentions=[part])

    def test_names_with_control_characters(self):
        name = "no\33[31msuch\nfile\u0085" + "x" * 200
        self.refused_soon("train", name + ".yaml", mentions=["no\\x1b[31msuch\\nfile\\u0085", ".yaml"])
        self.refused_soon("train", self.path, f"data.train=[{json.dumps(name)}]")
        self.refused_soon("inspect", "x/" * 50_000)
        self.refused_soon("inspect", b"\xff\xfe" * 40, mentions=["\\xff\\xfe"])

    def test_pack_skips_and_names_unreadable_files(self):
        tree = self.dir / "tree"
        tree.mkdir()
        (tree / "good.txt").write_text("good")
        os.mkfifo(tree / "fifo")
        os.symlink("loop", tree / "loop")
        unreadable = []
        if os.geteuid() != 0:
            (tree / "locked.txt").write_text("locked")
            (tree / "locked.txt").chmod(0)
            (tree / "locked").mkdir(mode=0)
            unreadable = ["locked.txt", "locked"]
        result = self.run_octavo("pack", "--input", tree, "--output", "packed")
        self.assertIn("1 documents", result.out)
        self.assertIn(f"{len(unreadable)} unreadable" if unreadable else "packed.bin", result.out)
        for name in unreadable:
            self.assertIn(name, result.out)
        # This file can be opened, but not read.
        self.refused_soon("pack", "--input", "/proc/self/mem", "--output", "other", mentions=["/proc/self/mem"])


class VanishingDataTest(Hostile):
    """Tests token files that change during a run. The run ends with one sentence on all ranks, and its checkpoints stay."""

    def ended_by(self, change, mention, ranks=1):
        log_dir = tempfile.mkdtemp(dir=self.dir)
        prefix = write_megatron(self.dir / "data", [[i % 250] * 3000 for i in range(400)])
        process = self.start("train", self.path, f"data.train=[{prefix}]", "training.steps=1000000", f"logging.dir={log_dir}",
                             ranks=ranks)
        log = self.dir / log_dir / "metrics.jsonl"
        self.wait_for(lambda: log.exists() and log.stat().st_size > 0, process)
        change(prefix)
        result = self.finish(process)
        self.assertEqual(result.code, FAILED, result.err)
        lines = result.octavo_lines()
        self.assertTrue(1 <= len(lines) <= ranks, result.err)
        self.assertIn(mention, lines[0])
        self.assertTrue(lines[0].isprintable() and len(lines[0]) <= LONGEST_SENTENCE, lines[0])

    def test_truncated_tokens(self):
        self.ended_by(lambda prefix: os.truncate(prefix + ".bin", 0), "data.bin")

    def test_truncated_tokens_under_mpirun(self):
        self.ended_by(lambda prefix: os.truncate(prefix + ".bin", 0), "data.bin", ranks=2)

    def test_truncated_index(self):
        self.ended_by(lambda prefix: os.truncate(prefix + ".idx", 0), "data.idx")

    def test_index_rewritten_in_place(self):
        for byte in (b"\xff", b"\x7f", b"\0", b"\1"):
            with self.subTest(byte):
                def overwrite(prefix, byte=byte):
                    with open(prefix + ".idx", "r+b") as file:
                        file.seek(34)
                        file.write(byte * (os.path.getsize(prefix + ".idx") - 34))

                self.ended_by(overwrite, "data.")
