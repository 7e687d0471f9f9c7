"""Tests that bad input ends with exit code 2 and one sentence on stderr, and leaves existing files unchanged."""

import json
import os
import shutil
import subprocess
import unittest

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
        """One override of each kind of error. The tests of app/config have the others."""
        for override, mentions in (
            ("training.step=5", ("training.step", "training.steps")),  # An unknown key.
            ("training.steps=many", ("training.steps", "many")),
            ("optimizer.lr=-0.1", ("optimizer.lr", "-0.1")),
            ("optimizer.schedule=cosin", ("optimizer.schedule", "cosin", "cosine")),
            ("training.steps", ("training.steps", "=")),  # Not an override.
            ("model.num_kv_heads=3", ("num_kv_heads", "3")),
            ("model.head_dim=36", ("head_dim", "36")),
            ("training.micro_batch_size=3", ("training.global_batch_size", "8", "training.micro_batch_size", "3")),
            ("precision.linear=fp8_blockwise", ("fp8_blockwise", "multiples of 128")),
            ("parallel.tensor_parallel=2", ("parallel.tensor_parallel", "2", "1 rank")),
        ):
            with self.subTest(override):
                self.refused_untouched(override, mentions=mentions)

    def test_files(self):
        for name, content in {"syntax.yaml": "training: {\n", "binary.yaml": "\0\1\2\xff", "nomodel.yaml": "data: {train: x}\n"}.items():
            with self.subTest(name):
                path = self.dir / name
                path.write_bytes(content.encode("latin-1"))
                self.refused_untouched(config=path, mentions=[name])
        self.refused_untouched(config="not_there.yaml", mentions=["not_there.yaml"])
        self.refused_untouched(config=self.dir, mentions=[self.dir])
        self.refused("train", "")

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

    def test_token_files(self):
        """Three files that cannot be read. The tests of data/tokens have the other kinds of damage."""
        write_megatron(self.dir / "cut", text_documents(5, 100))
        os.truncate(self.dir / "cut.bin", 99)
        (self.dir / "foreign.bin").write_bytes(b"something else entirely" * 100)
        for name in ("missing", "cut", "foreign.bin"):
            self.case(name, [name])

    def test_empty_datasets(self):
        write_megatron(self.dir / "no_documents", [])
        write_megatron(self.dir / "empty_documents", [[], [], []])
        write_llm_c(self.dir / "no_tokens.bin", [])
        self.case("no_documents", ["no_documents"])
        self.case("empty_documents", ["empty_documents"])
        self.case("no_tokens.bin", ["no_tokens"])

    def test_tokens_outside_the_vocabulary(self):
        for dtype, token in (("u16", 272), ("i32", -1)):
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
        for line in (("train",), ("train", "--steps", "5", self.path), ("evaluate",), ("inspect", "a", "b"), ("import", "a"), ("export", "a"),
                     ("generate",), ("pack",), ("help", "tran"), ("--nonsense",)):
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
        """The refusal names the option, what was found, what was expected and the help of the command."""
        bench, generate, train = ("bench", self.path), ("generate", "nowhere", "--prompt", "x"), ("train", self.path)
        for line, mentions in (
            *(((*bench, "--steps", text), (f"--steps is '{text}'", "integer from 1 to 1000000 ")) for text in ("many", "1e3", "0", "010", "+5")),
            *(((*generate, "--seed", text), (f"--seed is '{text}'", "from 0 to 18446744073709551615 ")) for text in ("-1", "18446744073709551616")),
            ((*generate, "--device", "tpu"), ("--device is 'tpu'", "auto, cpu, cuda")),
            ((*generate, "--stop", ""), ("--stop is empty",)),
            ((*generate, "--prompt", "y"), ("--prompt is given several times",)),
            ((*bench, "--steps"), ("--steps has no value",)),
            ((*bench, "--json=5"), ("--json has a value",)),
            ((*bench, "--stpes", "5"), ("no option --stpes", "did you mean --steps?")),
            ((*train, "--global-batch-size", "8"), ("no option --global-batch-size", "training.global_batch_size=VALUE")),
            ((*train, "--learning-rate", "1e-4"), ("no option --learning-rate", "optimizer.lr=VALUE")),
            ((*train, "--optimizer.min-lr=1e-5"), ("no option --optimizer.min-lr", "optimizer.min_lr_ratio=VALUE", "relative to optimizer.lr")),
            ((*train, "--dropout", "0.1"), ("no option --dropout", "without dropout")),
            ((*train, "--json"), ("no option --json", "--help, --dry-run")),
            (("train", "--config", self.path), ("no option --config", "write the config without an option")),
            (("generate", "--model-path=x", "--prompt", "y"), ("no option --model-path", "write the model without an option")),
            (("import", "a", "b", "c"), ("'c' is one too many",)),
            (("config", ""), ("config is empty",)),
            (("report", "log", "--output", ""), ("--output is empty",)),
            (("--json", *bench), ("no option --json", "--help, --version")),
        ):
            with self.subTest(line):
                command = line[1] if line[0].startswith("-") else line[0]
                self.refused(*line, mentions=[*mentions, f"(see octavo {command} --help)"])
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
        for override, field in (("model.num_layers=3", "num_layers"), ("model.rope_theta=500", "rope_theta")):
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
