"""Tests that bad input ends with exit code 2 and one sentence on stderr, and leaves existing files unchanged."""

import json
import os
import shutil
import subprocess
import unittest
from pathlib import Path

from support import AT_ONCE, BAD_INPUT, FAILED, HANG_S, ROOT, environment, snapshot, text_documents, write_llm_c, write_megatron
from training_test import Corpus


class BadInput(Corpus):
    def setUp(self):
        super().setUp()
        self.path = self.config(self.corpus, checkpoint={"every": 0})

    def refused_untouched(self, *overrides, config=None, command="train", **options):
        """Expects that the command is refused and that the directory of the test is unchanged."""
        before = snapshot(self.dir)
        sentence = self.refused(command, config or self.path, *overrides, **options)
        after = snapshot(self.dir)
        self.assertEqual(sorted(after), sorted(before), overrides)
        self.assertEqual(after, before, overrides)
        return sentence


class BadConfigTest(BadInput):
    def test_values(self):
        """Each case is an override and the words that the refusal must contain."""
        cases = [
            # These cases have unknown keys, for which the message suggests a key.
            ("training.step=5", ("training.step", "training.steps")),
            ("trainning.steps=5", ("trainning", "training")),
            ("optimizer.learning_rate=1", ("optimizer.learning_rate",)),
            ("training.batch_size=8", ("training.batch_size", "training.global_batch_size")),
            ("optimizer.warmup=1", ("optimizer.warmup", "optimizer.warmup_steps")),
            ("model.hiden_size=64", ("model.hiden_size", "model.hidden_size")),
            ("data.train=[{pth: x}]", ("pth", "path")),
            ("model.rope_scaling={faktor: 2}", ("faktor", "factor")),
            ("steps=5", ("steps", "training.steps")),
            # These cases have values of a wrong type.
            ("training.steps=many", ("training.steps", "many")),
            ("training.steps=1.5", ("training.steps", "1.5")),
            ("training.steps='5'", ("training.steps",)),
            ("training.steps=[5]", ("training.steps", "list")),
            ("training.steps={a: 1}", ("training.steps",)),
            ("training.deterministic=maybe", ("training.deterministic", "maybe")),
            ("optimizer.lr=fast", ("optimizer.lr", "fast")),
            ("optimizer.lr=.nan", ("optimizer.lr",)),
            ("optimizer.lr=1e999", ("optimizer.lr",)),
            ("optimizer.betas=0.9", ("optimizer.betas",)),
            ("optimizer.betas=[0.9]", ("optimizer.betas",)),
            ("optimizer.betas=[0.9, 1.0]", ("optimizer.betas",)),
            ("data.train=5.5.5", ("5.5.5",)),
            ("data.train=[[x]]", ("data.train",)),
            ("model=llama", ("model", "llama")),
            ("training=[]", ("training",)),
            # These values are out of range.
            ("training.steps=0", ("training.steps",)),
            ("training.steps=-5", ("training.steps", "-5")),
            ("training.steps=99999999999999999999", ("training.steps",)),
            ("training.global_batch_size=0", ("training.global_batch_size",)),
            ("training.micro_batch_size=-1", ("training.micro_batch_size",)),
            ("training.seed=-1", ("training.seed",)),
            ("optimizer.lr=-0.1", ("optimizer.lr", "-0.1")),
            ("optimizer.lr=0", ("optimizer.lr",)),
            ("optimizer.min_lr_ratio=1.5", ("optimizer.min_lr_ratio",)),
            ("optimizer.warmup_steps=-1", ("optimizer.warmup_steps",)),
            ("optimizer.eps=0", ("optimizer.eps",)),
            ("optimizer.weight_decay=-1", ("optimizer.weight_decay",)),
            ("optimizer.grad_clip=-1", ("optimizer.grad_clip",)),
            ("data.seq_len=0", ("data.seq_len",)),
            ("data.skip=[[2,1]]", ("data.skip",)),
            ("data.bos_id=-1", ("data.bos_id",)),
            ("data.bos_id=272", ("data.bos_id", "272")),
            ("data.eos_id=99999", ("data.eos_id", "99999")),
            ("data.train=[{path: x, weight: -1}]", ("weight",)),
            ("checkpoint.every=-1", ("checkpoint.every",)),
            ("checkpoint.keep=-1", ("checkpoint.keep",)),
            ("logging.every=0", ("logging.every",)),
            ("validation.batches=0", ("validation.batches",)),
            ("parallel.data_parallel_shard=0", ("parallel.data_parallel_shard",)),
            # These values are not among the choices.
            ("optimizer.schedule=cosin", ("optimizer.schedule", "cosin", "cosine")),
            ("optimizer.decay_steps=5", ("optimizer.decay_steps", "wsd")),
            ("optimizer.state_dtype=float16", ("optimizer.state_dtype", "float16")),
            ("data.shuffle=random", ("data.shuffle", "random", "lcg")),
            ("device=gpu", ("device", "gpu")),
            ("device=tpu0", ("device",)),
            ("precision.compute=fp16", ("precision.compute", "fp16")),
            ("model.preset=llama3_9b", ("model.preset", "llama3_9b", "llama3_8b")),
            # These shapes are impossible.
            ("model.hidden_size=65", ("model.hidden_size", "65", "model.num_heads", "2")),
            ("model.num_kv_heads=3", ("num_kv_heads", "3")),
            ("model.head_dim=33", ("head_dim", "33")),
            ("model.hidden_size=0", ("model.hidden_size",)),
            ("model.vocab_size=0", ("model.vocab_size",)),
            ("model.num_layers=-2", ("model.num_layers",)),
            ("model.rope_theta=-1", ("model.rope_theta",)),
            # These batch sizes do not divide each other.
            ("training.micro_batch_size=3", ("training.global_batch_size", "8", "training.micro_batch_size", "3")),
            ("training.micro_batch_size=16", ("training.global_batch_size", "16")),
            # This version does not support these values.
            ("precision.linear=fp8_blockwise", ("fp8_blockwise", "multiples of 128")),
            ("precision.reduce=float16", ("precision.reduce", "float16")),
            ("parallel.tensor_parallel=2", ("parallel.tensor_parallel", "2", "1 rank")),
            ("activation_checkpointing.mode=some", ("activation_checkpointing.mode", "some", "selective")),
            ("parallel.reshard_after_forward=never", ("parallel.reshard_after_forward", "never")),
            # These meshes do not fit the number of ranks.
            ("parallel.data_parallel_shard=2", ("parallel.data_parallel_shard",)),
            ("parallel.data_parallel_replicate=2", ("parallel.data_parallel_replicate",)),
            # These overrides are malformed.
            ("training.steps", ("training.steps",)),
            ("=5", ("=5",)),
            (".steps=5", (".steps",)),
            ("training..steps=5", ("training",)),
            ("training.steps.more=5", ("training.steps",)),
            ("training.steps=[5", ("training.steps",)),
        ]
        for override, mentions in cases:
            with self.subTest(override):
                self.refused_untouched(override, mentions=mentions)

    def test_head_size_without_a_kernel(self):
        self.refused_untouched("model.head_dim=36", mentions=["head_dim", "36"])
        self.refused_untouched("model.head_dim=512", mentions=["head_dim", "512"])

    def test_files(self):
        cases = {
            "empty.yaml": "",
            "list.yaml": "- a\n- b\n",
            "text.yaml": "just text\n",
            "syntax.yaml": "model:\n  hidden_size: [1, 2\ntraining: {\n",
            "tab.yaml": "model:\n\thidden_size: 5\n",
            "twice.yaml": "training: {steps: 1, steps: 2}\n",
            "two.yaml": "training: {steps: 1}\n---\ntraining: {steps: 2}\n",
            "anchor.yaml": "training: &a {steps: *a}\n",
            "binary.yaml": "\0\1\2\xff",
            "nomodel.yaml": "data: {train: x}\n",
            "json.yaml": '{"model": ',
        }
        for name, content in cases.items():
            with self.subTest(name):
                path = self.dir / name
                path.write_bytes(content.encode("latin-1"))
                self.refused_untouched(config=path, mentions=[name])
        self.refused_untouched(config="not_there.yaml", mentions=["not_there.yaml"])
        self.refused_untouched(config=self.dir, mentions=[self.dir])
        self.refused("train", "")
        line = self.refused_untouched(config=self.dir / "syntax.yaml")
        self.assertRegex(line, r"line \d|:\d")

    def test_model_with_missing_fields(self):
        for field in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "vocab_size"):
            with self.subTest(field):
                content = json.loads(self.path.read_text())
                del content["model"][field]
                path = self.dir / "partial.yaml"
                path.write_text(json.dumps(content))
                self.refused_untouched(config=path, mentions=[field])

    def test_quickstart_config_is_sound(self):
        """The config is valid, so the refusal must only name the missing data."""
        self.assertIn("runs/quickstart/data", self.refused("train", ROOT / "configs/quickstart.yaml"))


class BadDataTest(BadInput):
    def case(self, name, mentions=(), **options):
        train = f"data.train=[{{path: {self.dir / name}}}]"
        with self.subTest(name):
            self.refused_untouched(train, mentions=mentions, **options)
            held_out = f"data.validation=[{{path: {self.dir / name}}}]"
            self.refused_untouched(held_out, mentions=mentions, **options)

    def damaged(self, name, change_idx=None, change_bin=None):
        write_megatron(self.dir / name, text_documents(5, 100))
        for suffix, change in ((".idx", change_idx), (".bin", change_bin)):
            if change is not None:
                path = self.dir / (name + suffix)
                path.write_bytes(change(path.read_bytes()))
        return name

    def test_token_files(self):
        def patch(offset, content):
            return lambda data: data[:offset] + content + data[offset + len(content) :]

        self.case("missing", ["missing"])
        self.case(self.damaged("cut_bin", change_bin=lambda data: data[:-2]), ["cut_bin.bin"])
        self.case(self.damaged("odd_bin", change_bin=lambda data: data[:-1]), ["odd_bin.bin"])
        self.case(self.damaged("long_bin", change_bin=lambda data: data + b"ab"), ["long_bin"])
        self.case(self.damaged("empty_bin", change_bin=lambda data: b""), ["empty_bin"])
        self.case(self.damaged("cut_idx", change_idx=lambda data: data[:-1]), ["cut_idx.idx"])
        self.case(self.damaged("cut_header", change_idx=lambda data: data[:20]), ["cut_header.idx"])
        self.case(self.damaged("long_idx", change_idx=lambda data: data + b"x"), ["long_idx.idx"])
        self.case(self.damaged("empty_idx", change_idx=lambda data: b""), ["empty_idx.idx"])
        self.case(self.damaged("magic", change_idx=patch(0, b"MMIDIDY")), ["magic.idx"])
        self.case(self.damaged("version", change_idx=patch(9, b"\2")), ["version"])
        self.case(self.damaged("dtype", change_idx=patch(17, b"\5")), ["dtype"])
        self.case(self.damaged("huge_count", change_idx=patch(18, b"\xff" * 8)), ["huge_count.idx"])
        self.case(self.damaged("negative_length", change_idx=patch(34, b"\xff\xff\xff\xff")), ["negative_length"])
        self.case(self.damaged("far_offset", change_idx=patch(34 + 5 * 4 + 8, b"\xff\xff\xff\x7f")), ["far_offset"])
        self.case(self.damaged("index", change_idx=patch(34 + 5 * 12 + 8, b"\x09")), ["index"])
        (self.dir / "only_idx.idx").write_bytes((self.dir / "magic.idx").read_bytes())
        self.case("only_idx", ["only_idx"])
        (self.dir / "foreign.bin").write_bytes(b"something else entirely" * 100)
        self.case("foreign.bin", ["foreign.bin"])
        (self.dir / "tiny.bin").write_bytes(b"abc")
        self.case("tiny.bin", ["tiny.bin"])
        (self.dir / "nothing.bin").write_bytes(b"")
        self.case("nothing.bin", ["nothing.bin"])
        path = write_llm_c(self.dir / "cut_shard.bin", [50256, 1, 2, 3])
        Path(path).write_bytes(Path(path).read_bytes()[:-2])
        self.case("cut_shard.bin", ["cut_shard.bin"])
        (self.dir / "folder").mkdir()
        self.case("folder", ["folder"])

    def test_empty_datasets(self):
        write_megatron(self.dir / "no_documents", [])
        write_megatron(self.dir / "empty_documents", [[], [], []])
        write_llm_c(self.dir / "no_tokens.bin", [])
        self.case("no_documents", ["no_documents"])
        self.case("empty_documents", ["empty_documents"])
        self.case("no_tokens.bin", ["no_tokens"])
        self.refused_untouched("data.train=[]", mentions=["data.train"])
        self.refused_untouched("data.train=", mentions=["data.train"])
        self.refused_untouched("data.train=[{weight: 1}]", mentions=["path"])
        self.refused_untouched(f"data.train=[{{path: {self.corpus}, weight: 0}}]", mentions=["data.train"])

    def test_tokens_outside_the_vocabulary(self):
        for dtype, token in (("u16", 272), ("u16", 65535), ("i32", 300), ("i32", -1)):
            name = f"{dtype}_{token}"
            write_megatron(self.dir / name, [[1, 2, 3] * 50, [4] * 90 + [token] + [5] * 9], dtype)
            self.case(name, [name, token, "272"])
        write_llm_c(self.dir / "shard.bin", [50256, *range(200)])
        self.case("shard.bin", ["shard.bin", 50256])

    def test_too_little_for_one_window(self):
        write_megatron(self.dir / "short", [[1] * 10])
        short = f"[{{path: {self.dir}/short}}]"
        later = f"stages=[{{steps: 2}}, {{steps: 2, data: {{train: {short}}}}}]"
        for overrides in ((f"data.validation={short}",), (f"data.train={short}",), (later, "training.steps=4")):
            with self.subTest(overrides):
                self.refused_untouched(*overrides, mentions=["short", "data.seq_len + 1 = 33"])

    def test_unreadable_file(self):
        if os.geteuid() == 0:
            self.skipTest("root can read every file")
        write_megatron(self.dir / "locked", text_documents(5, 100))
        (self.dir / "locked.bin").chmod(0)
        with self.subTest("locked"):
            self.refused("train", self.path, f"data.train=[{{path: {self.dir}/locked}}]", mentions=["locked.bin"])


class BadPlaceTest(BadInput):
    def test_command_lines(self):
        for line in (
            ("trian",),
            ("train",),
            ("train", "--steps", "5", self.path),
            ("train", self.path, "--fast"),
            ("evaluate",),
            ("bench", self.path, "--steps", "0"),
            ("bench", self.path, "--steps", "x"),
            ("inspect",),
            ("inspect", "a", "b"),
            ("import", "a"),
            ("import", "a", "b", "c"),
            ("export", "a"),
            ("generate",),
            ("pack",),
            ("help", "tran"),
            ("--nonsense",),
        ):
            with self.subTest(line):
                self.refused(*line)
        self.refused("tran", self.path, mentions=["there is no command tran; did you mean train?"])
        self.refused("tokenize", mentions=["octavo pack", "scripts/tokenize_hf.py"])
        self.refused("conf", mentions=["did you mean config?"])
        self.refused("frobnicate", mentions=["there is no command frobnicate, expected train, evaluate"])
        for line in (("--help",), ("train", "--help"), ("help",), ("help", "train"), ("--version",)):
            with self.subTest(line):
                self.assertIn("octavo", self.run_octavo(*line).out.lower())
                with open("/dev/full", "wb") as full:
                    self.refused(*line, code=FAILED, stdout=full, mentions=["standard output cannot be written"])

        self.assertEqual(self.run_octavo("help", "train").out, self.run_octavo("train", "--help").out)
        self.assertEqual(self.run_octavo(code=BAD_INPUT).out, self.run_octavo("--help").out)

    def test_all_errors_are_printed_one_per_line(self):
        result = self.run_octavo("train", self.path, "training.step=5", "optimizer.lr=fast", code=BAD_INPUT)
        self.assertEqual(len(result.octavo_lines()), 2, result.err)

    def test_options(self):
        """The refusal names the option, what was found and what was expected."""
        steps = "--steps is '{}', expected an integer from 1 to 1000000 (see octavo bench --help)"
        seed = "--seed is '{}', expected an integer from 0 to 18446744073709551615 (see octavo generate --help)"
        generate = ("generate", "nowhere", "--prompt", "x")
        for line, sentence in (
            *((("bench", self.path, "--steps", text), steps.format(text))
              for text in ("many", "1.5", "1e3", "0", "010", "0x10", "+5", "", "99999999999999999999")),
            *(((*generate, "--seed", text), seed.format(text)) for text in ("x", "-1", "18446744073709551616")),
            ((*generate, "--device", "tpu"), "--device is 'tpu', expected one of auto, cpu, cuda (see octavo generate --help)"),
            ((*generate, "--stop", ""), "--stop is empty, expected a text (see octavo generate --help)"),
            ((*generate, "--prompt", "y"), "--prompt is given several times, expected once (see octavo generate --help)"),
            (("bench", self.path, "--steps"), "--steps has no value, expected one (see octavo bench --help)"),
            (("bench", self.path, "--json=5"), "--json has a value, expected none (see octavo bench --help)"),
            (("bench", self.path, "--stpes", "5"), "there is no option --stpes; did you mean --steps? (see octavo bench --help)"),
            (("train", self.path, "--global-batch-size", "8"),
             "there is no option --global-batch-size; did you mean the config key training.global_batch_size=VALUE? (see octavo train --help)"),
            (("train", self.path, "--learning-rate", "1e-4"),
             "there is no option --learning-rate; write the config key optimizer.lr=VALUE (see octavo train --help)"),
            (("train", self.path, "--optimizer.min-lr=1e-5"),
             "there is no option --optimizer.min-lr; write the config key optimizer.min_lr_ratio=VALUE, which is relative to optimizer.lr (see octavo train --help)"),
            (("train", self.path, "--dropout", "0.1"),
             "there is no option --dropout; Octavo trains without dropout (see octavo train --help)"),
            (("train", self.path, "--json"),
             "there is no option --json, expected --help, --dry-run, --gpus, --gpus-per-node, --machine (see octavo train --help)"),
            (("train", "--config", self.path), "there is no option --config; write the config without an option, directly after octavo train (see octavo train --help)"),
            (("generate", "--model-path=x", "--prompt", "y"),
             "there is no option --model-path; write the model without an option, directly after octavo generate (see octavo generate --help)"),
            (("import", "a", "b", "c"), "the argument 'c' is one too many (see octavo import --help)"),
            (("config", ""), "config is empty, expected a text (see octavo config --help)"),
            (("report", "log", "--output", ""), "--output is empty, expected a text (see octavo report --help)"),
            (("--json", "bench", self.path), "there is no option --json, expected --help, --version (see octavo bench --help)"),
        ):
            with self.subTest(line):
                self.assertEqual(self.refused(*line), "octavo: " + sentence)
        # The largest allowed seed is accepted, so the refusal is about the path.
        self.refused(*generate, "--seed", "18446744073709551615", mentions=["nowhere"])

    @unittest.skipIf(shutil.which("nvidia-smi"), "this machine may have a GPU")
    def test_cuda_without_a_gpu(self):
        self.refused_untouched("device=cuda", mentions=["cuda"])

    def test_places_that_cannot_be_written(self):
        (self.dir / "file").write_text("a file")
        for key in ("logging.dir", "checkpoint.dir"):
            for value in ("file", "file/below", "/proc/nowhere"):
                with self.subTest(key=key, value=value):
                    sentence = self.refused("train", self.path, f"{key}={value}", "checkpoint.resume=never")
                    self.assertIn(value, sentence)
        self.assertEqual((self.dir / "file").read_text(), "a file")

    def test_more_threads_than_openmp_can_start(self):
        self.refused_untouched(variables={"OMP_NUM_THREADS": "100000"},
                               mentions=["OMP_NUM_THREADS is 100000, expected an integer from 1 to 4096"])

    def test_files_are_not_put_in_the_place_of_others(self):
        self.train(self.path)
        os.mkfifo(self.dir / "fifo")
        (self.dir / "folder").mkdir()
        (self.dir / "stream").symlink_to("/proc/self/fd/1")  # /dev/stdout is such a link.
        for name, what in (("fifo", "is not a regular file"), ("folder", "is a directory"), ("stream", "is not a regular file")):
            with self.subTest(name):
                before = os.lstat(self.dir / name)
                for line in (("report", "log", "--output", name), ("bench", self.path, "--trace", name)):
                    self.refused(*line, mentions=[f"{name}: {what}, expected"])
                self.assertEqual(os.lstat(self.dir / name).st_ino, before.st_ino)
        metrics = (self.dir / "log/metrics.jsonl").read_bytes()
        for *line, option, kind in (
            ("report", "log", "--output", "a page of octavo report"),
            ("plan", ROOT / "configs/llama3_8b_8gpu.yaml", "--gpus", 8, "--html", "a page of octavo plan"),
            ("bench", self.path, "--trace", "a trace of an Octavo step"),
            ("doctor", "--save", "a machine file of octavo doctor"),
        ):
            self.refused(*line, option, "log/metrics.jsonl", mentions=[f"log/metrics.jsonl: is not {kind}, so it is not replaced"])
        new_run = ("checkpoint.dir=new", "logging.dir=new")
        self.refused("train", self.path, *new_run, "logging.prometheus=log/metrics.jsonl", mentions=["log/metrics.jsonl: is not a file of"])
        self.assertEqual((self.dir / "log/metrics.jsonl").read_bytes(), metrics)

    def test_checkpoints_of_another_model(self):
        self.train(self.path)
        for override, field in (
            ("model.hidden_size=128", "hidden_size"),
            ("model.num_layers=3", "num_layers"),
            ("model.vocab_size=288", "vocab_size"),
            ("model.tie_word_embeddings=true", "tie_word_embeddings"),
            ("model.rope_theta=500", "rope_theta"),
        ):
            with self.subTest(override):
                sentence = self.refused_untouched(override, "training.steps=9", mentions=[field])
                self.assertIn("step_00000006", sentence)
                held_out = f"data.validation=[{self.held_out}]"
                self.refused_untouched(override, held_out, command="evaluate", mentions=[field])
        self.refused_untouched("model.num_layers=3", "training.steps=9", ranks=2, mentions=["num_layers"])
        (self.dir / "empty").mkdir()
        self.refused_untouched("checkpoint.resume=empty", mentions=["empty"])
        self.refused_untouched("checkpoint.resume=config.yaml", mentions=["config.yaml"])

    def test_output_that_cannot_be_written(self):
        config, path = self.config(self.corpus), write_megatron(self.dir / "tokens", [[1] * 99])
        short = ("--steps", 1, "--warmup", 0)
        for line in (("plan", config, "--json"), ("plan", config), ("bench", config, *short, "--json"), ("bench", config, *short),
                     ("bench", config, *short, "--data"), ("config", config), ("inspect", path)):
            with self.subTest(line), open("/dev/full", "w") as full:
                self.refused(*line, code=FAILED, stdout=full, mentions=["standard output cannot be written"])

    def test_under_mpirun_an_error_is_printed_once(self):
        small = write_megatron(self.dir / "bad", [[1] * 99 + [300]] * 3)
        for override, mention in (
            ("training.step=5", "training.steps"),
            ("training.micro_batch_size=8", "training.global_batch_size"),
            (f"data.train=[{small}]", "300"),
            ("data.train=[nowhere]", "nowhere"),
            ("data.validation=[nowhere]", "nowhere"),
            ("checkpoint.dir=config.yaml", "config.yaml"),
            ("logging.dir=config.yaml", "config.yaml"),
            ("checkpoint.resume=nowhere", "nowhere"),
            ("model.init_from=nowhere", "nowhere"),
            ("parallel.tensor_parallel=3", "parallel.tensor_parallel"),
        ):
            with self.subTest(override):
                self.refused("train", self.path, override, ranks=2, mentions=[mention])
        for line in (("trian",), ("inspect", "nowhere"), ("generate", "nowhere", "--prompt", "x"), ("import", "a", "b")):
            with self.subTest(line):
                self.refused(*line, ranks=2)
        self.refused("train", self.path, "optimizer.lr=1e30", "optimizer.grad_clip=0", "training.steps=40", ranks=2,
                     code=FAILED)

    def test_ranks_with_different_configs(self):
        line = [os.environ["OCTAVO"], "train", str(self.path)]
        result = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "1", *line,
                                 ":", "-n", "1", *line, "training.steps=5"],
                                cwd=self.dir, env=environment() | AT_ONCE, capture_output=True, text=True, timeout=HANG_S)
        lines = [line for line in result.stderr.splitlines() if line.startswith("octavo: ")]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn("rank 1 has training.steps 5, but rank 0 has training.steps", lines[0])
        self.assertEqual(result.returncode, BAD_INPUT, result.stderr)

    def test_a_launcher_without_mpi(self):
        """Processes that do not know of each other would all write the same checkpoints."""
        for rank, lines in ((0, 1), (1, 0)):
            variables = environment() | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": str(rank)}
            result = subprocess.run([os.environ["OCTAVO"], "train", str(self.path)], cwd=self.dir, env=variables,
                                    capture_output=True, text=True, timeout=HANG_S)
            self.assertEqual(result.returncode, BAD_INPUT, result.stderr)
            self.assertEqual(result.stderr.count("the launcher started 4 processes"), lines, result.stderr)
            self.assertFalse((self.dir / "checkpoints").exists())

    def test_a_model_larger_than_the_memory(self):
        config = json.loads(self.path.read_text()) | {"model": {"preset": "llama3_405b"}}
        self.path.write_text(json.dumps(config))
        for ranks in (1, 2):
            # Sanitizers add their own warning.
            sentences = self.run_octavo("train", self.path, ranks=ranks, code=BAD_INPUT, variables=AT_ONCE).octavo_lines()
            self.assertEqual(len(sentences), 1, sentences)
            self.assertRegex(sentences[0], r"memory.*GiB")
            self.assertEqual([path.name for path in self.dir.iterdir() if path.is_dir()], [], "a refused start leaves nothing behind")
