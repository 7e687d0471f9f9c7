"""Tests of octavo train and octavo evaluate: what they log, and which options must not change the results."""

import json
import math
import re
import socket

from support import ALLOW_SCHEDULE, TINY_MODEL, Scratch, checkpoint_tensors, snapshot, text_documents, write_megatron

CONSOLE_LINE = re.compile(
    r"step (\d+)/(\d+)  loss (\d+\.\d{4})  grad_norm (\d+\.\d{3})  lr (\d\.\d\de-\d\d)  wps ([\d,]+)  "
    r"mem (\d+\.\d) GiB  step ([\d,.]+) ms  eta (\d+[smh]|\d+h \d+m|\d+d \d+h)(  validation_loss (\d+\.\d{4}))?"
)


class Corpus(Scratch):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.corpus = write_megatron(cls.root / "corpus", text_documents(40, 300))
        cls.held_out = write_megatron(cls.root / "held_out", text_documents(8, 250, seed=2))

    def train(self, config, *overrides, **options):
        return self.run_octavo("train", config, *overrides, **options)


class LoggingTest(Corpus):
    def test_metrics_and_console(self):
        config = self.config(
            self.corpus,
            data={"validation": [{"path": self.held_out}]},
            training={"steps": 7},
            validation={"every": 3, "batches": 2},
            logging={"every": 2},
        )
        result = self.train(config)
        lines = [json.loads(line) for line in (self.dir / "log/metrics.jsonl").read_text().splitlines()]
        steps = [entry["step"] for entry in lines]
        self.assertEqual(steps, [1, 2, 3, 4, 6, 7])
        self.assertEqual([e["step"] for e in lines if "validation_loss" in e], [3, 6, 7])
        fields = "step loss grad_norm lr tokens wps tflops step_ms data_ms memory_gib".split()
        model = TINY_MODEL
        h, f, n, head = model["hidden_size"], model["intermediate_size"], model["num_layers"], model["head_dim"]
        attention = h * head * (2 * model["num_heads"] + 2 * model["num_kv_heads"])
        parameters = n * (attention + 3 * h * f + 2 * h) + h + model["vocab_size"] * h
        flops = 6 * parameters + 12 * n * model["num_heads"] * head * 32
        for entry in lines:
            self.assertEqual([key for key in fields if key not in entry], [])
            self.assertNotIn("mfu", entry)  # A CPU has no MFU.
            for key in fields:
                self.assertIs(type(entry[key]), int if key in ("step", "tokens") else float, key)
                self.assertTrue(math.isfinite(entry[key]) and entry[key] >= 0, key)
            self.assertEqual(entry["tokens"], entry["step"] * 8 * 32)
            self.assertAlmostEqual(entry["tflops"] * 1e12 / (entry["wps"] * flops), 1, delta=1e-9)
            self.assertAlmostEqual(entry["wps"] * entry["step_ms"] / 1000 / (8 * 32), 1, delta=1e-6)
        self.assertAlmostEqual(lines[0]["loss"], math.log(272), delta=0.2)
        printed = [match for match in map(CONSOLE_LINE.fullmatch, result.out.splitlines()) if match]
        self.assertEqual([int(match[1]) for match in printed], steps, result.out)
        for match, entry in zip(printed, lines):
            self.assertEqual(match[2], "7")
            self.assertEqual(match[3], f"{entry['loss']:.4f}")
            self.assertEqual(match[4], f"{entry['grad_norm']:.3f}")
            self.assertEqual(match[5], f"{entry['lr']:.2e}")
            self.assertEqual(match[6], f"{round(entry['wps']):,}")
            validation = entry.get("validation_loss")
            self.assertEqual(match[11], None if validation is None else f"{validation:.4f}")

    def test_says_where_the_start_went(self):
        """tests/app/process/startup_timer_test.cpp tests that the phases add up to the time since the launch."""
        names = ("program", "MPI", "config", "device", "data", "reading", "memory", "weights")
        phases = r"started in \d+\.\d s: " + ", ".join(rf"{name} \d+\.\d" for name in names) + r"\n"
        config = self.config(self.corpus, training={"steps": 2})
        for steps, ranks in ((2, 2), (3, 1)):
            out = self.train(config, f"training.steps={steps}", ALLOW_SCHEDULE, ranks=ranks).out
            self.assertEqual(len(re.findall(phases, out)), 1, out)
            self.assertLess(out.index("started in "), out.index(f"step {steps - 1 if ranks == 2 else steps}/{steps} "))
        self.assertNotIn("started in", self.train(config, "training.steps=3").out, "there was nothing to do")

    def test_the_last_step_for_prometheus(self):
        held_out = [{"path": self.held_out, "name": 'a "b"'}, {"path": self.corpus, "name": "c"}]
        config = self.config(self.corpus, data={"validation": held_out, "allow_overlap": True}, validation={"every": 2, "batches": 1},
                             training={"steps": 4}, logging={"prometheus": "octavo.prom"})
        self.train(config, ranks=2)
        last = self.metrics()[4]
        lines = (self.dir / "octavo.prom").read_text().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        for key in ("step", "loss", "grad_norm", "lr", "wps", "validation_loss"):
            self.assertAlmostEqual(float(values[f'octavo_{key}{{run="log"}}']) / last[key], 1, delta=1e-12, msg=key)
        self.assertEqual(float(values['octavo_steps{run="log"}']), 4)
        self.assertIn('octavo_time_seconds{run="log"}', values)
        self.assertIn('octavo_validation_loss_by_dataset{run="log",dataset="a \\"b\\""}', values)
        self.assertEqual([line.split()[2] for line in lines if line.startswith("#")], sorted({name.split("{")[0] for name in values}))
        result = self.train(config, "logging.prometheus=no/such/directory.prom", "checkpoint.dir=other", "logging.dir=other")
        self.assertEqual(result.out.count("no/such/directory.prom"), 1, "a warning, once")

    def test_the_folder_tells_the_run(self):
        """The folder of the run has its config, a record of every start, and the console output with times."""
        for ranks in (1, 2):
            log = self.dir / f"log{ranks}"
            config = self.config(self.corpus, training={"steps": 3}, checkpoint={"dir": f"saved{ranks}"},
                                 logging={"dir": log.name}, optimizer={"schedule": "constant"})
            first = self.train(config, "optimizer.lr=0.001", ranks=ranks).out.splitlines()
            with open(log / "starts.jsonl", "a") as file:
                file.write('{"time": "20')  # A crash can leave such an incomplete line.
            self.train(config, "optimizer.lr=0.001", "training.steps=5", ranks=ranks)
            lines = (log / "log.txt").read_text().splitlines()
            stamped = [re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3})  (.*)", line) for line in lines]
            self.assertEqual([match[2] for match in stamped][: len(first)], first)
            self.assertEqual([match[1] for match in stamped], sorted(match[1] for match in stamped))
            self.assertEqual(sum("step 5/5 " in line for line in lines), 1)
            starts = [json.loads(line) for line in (log / "starts.jsonl").read_text().splitlines() if line.endswith("}")]
            self.assertEqual([start["ranks"] for start in starts], [ranks, ranks])
            self.assertEqual(starts[0]["command"][1:], ["train", str(config), "optimizer.lr=0.001"])
            self.assertEqual(starts[1]["command"][-1], "training.steps=5")
            self.assertEqual((starts[0]["hosts"], starts[0]["directory"]), ([socket.gethostname()], str(self.dir)))
            self.assertRegex(starts[0]["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            self.assertRegex(starts[0]["commit"], r"^([0-9a-f]{7,40}(-dirty)?|unknown)$")
            # The config of the last start is a valid config with the values that were used.
            again = self.run_octavo("config", log / "config.yaml").out
            self.assertEqual(again, (log / "config.yaml").read_text())
            self.assertIn("lr: 0.001", again)
            self.assertIn("steps: 5", again)
        before = snapshot(log)
        self.refused("train", config, "data.train=[{path: nowhere}]", "checkpoint.resume=never")
        self.assertEqual(snapshot(log), before, "of a start that is refused")

    def test_default_log_directory_and_tensorboard(self):
        config = self.config(self.corpus, name="my_run.yaml", training={"steps": 2}, logging=None)
        self.train(config)
        files = [path.name for path in (self.dir / "runs/my_run").iterdir()]
        self.assertIn("metrics.jsonl", files)
        self.assertTrue(any(name.startswith("events.out.tfevents") for name in files), files)
        self.assertEqual(sorted(self.metrics("runs/my_run")), [1, 2])

    def test_validation_loss_is_that_of_evaluate(self):
        validation = {"validation": [{"path": self.held_out}]}
        config = self.config(self.corpus, data=validation, training={"steps": 6}, validation={"every": 2, "batches": 3},
                             checkpoint={"every": 2, "keep": 0})
        self.train(config)
        metrics = self.metrics()
        for step in (2, 4, 6):
            expected = metrics[step]["validation_loss"]
            for ranks, extra in ((1, ()), (2, ("training.micro_batch_size=1",))):
                if ranks == 2 and step != 4:
                    continue
                path = f"checkpoint.resume=checkpoints/step_{step:08}"
                out = self.run_octavo("evaluate", config, path, *extra, ranks=ranks).out
                loss, perplexity = re.search(r"validation_loss ([\d.]+)  perplexity ([\d.]+)", out).groups()
                self.assertAlmostEqual(float(loss), expected, delta=2e-6)
                self.assertAlmostEqual(float(perplexity) / math.exp(expected), 1, delta=1e-4)
        newest = self.run_octavo("evaluate", config).out
        self.assertIn(f"validation_loss {metrics[6]['validation_loss']:.6f}", newest)
        moved = self.run_octavo(
            "evaluate", config, "checkpoint.dir=none", "model.init_from=checkpoints/step_00000002"
        ).out
        self.assertIn(f"validation_loss {metrics[2]['validation_loss']:.6f}", moved)
        self.assertFalse((self.dir / "none").exists(), "evaluate makes no directories")
        self.refused("evaluate", config, "checkpoint.dir=none", mentions=["none"])
        self.refused("evaluate", config, "data.validation=[]", mentions=["data.validation"])

    def test_one_validation_sample_counts_once(self):
        """There are fewer held-out tokens than the requested batches need. Every sample counts exactly once."""
        small = write_megatron(self.dir / "small", [list(range(97, 123)) * 5])
        config = self.config(self.corpus, data={"validation": [{"path": small}], "bos_id": None, "eos_id": None},
                             training={"steps": 1}, validation={"every": 1, "batches": 50})
        self.train(config)
        # 130 tokens make 3 samples of 33 tokens.
        self.assertIn("tokens 96\n", self.run_octavo("evaluate", config).out)


class EqualityTest(Corpus):
    """Tests that equal samples give equal losses."""

    def losses_of(self, name, *overrides, ranks=1, **sections):
        config = self.config(self.corpus, **sections)
        log = f"logging.dir={name}"
        self.train(config, log, f"checkpoint.dir={name}_checkpoints", *overrides, ranks=ranks)
        return self.losses(name)

    def test_same_run_twice_is_bit_identical(self):
        self.assertEqual(self.losses_of("a"), self.losses_of("b"))
        self.assertEqual(self.losses_of("a2", "training.micro_batch_size=2", ranks=2),
                         self.losses_of("b2", "training.micro_batch_size=2", "training.deterministic=true", ranks=2))

    def test_trains_on_what_inspect_shows(self):
        config = self.config(self.corpus, training={"steps": 3, "global_batch_size": 4, "micro_batch_size": 4})
        samples = [json.loads(line)["tokens"] for line in
                   self.run_octavo("inspect", config, "--samples", "0:12").out.splitlines()]
        self.train(config)
        expected = self.losses()
        # Equal samples, stored as documents of a file that is read in order, give the same losses.
        data = write_megatron(self.dir / "as_read", samples, "i32")
        config = self.config(data, data={"shuffle": "none", "bos_id": None, "eos_id": None},
                             training={"steps": 3, "global_batch_size": 4, "micro_batch_size": 4})
        self.train(config, "logging.dir=again", "checkpoint.dir=again_checkpoints")
        self.assertEqual(self.losses("again"), expected)


class VariantsTest(Corpus):
    """Tests that every key that is parsed has an effect."""

    def losses_of(self, name, *overrides, **sections):
        config = self.config(self.corpus, **sections)
        self.train(config, f"logging.dir={name}", f"checkpoint.dir={name}_checkpoints", *overrides)
        return self.losses(name)

    def test_document_mask(self):
        """With a document mask, a sample of two documents gives the losses of two samples of one document each, because rope is relative.
        The last token of a document has no target, even at the end of a sample."""
        tokens = sum(text_documents(16, 300), [])
        pairs = [(tokens[i : i + 16], tokens[i + 16 : i + 33]) for i in range(0, 33 * 48, 33)]
        joined = write_megatron(self.dir / "joined", [document for pair in pairs for document in pair])
        apart = write_megatron(self.dir / "apart", [d for a, b in pairs for d in (a, b[:1], b)])
        order = {"shuffle": "none", "bos_id": None, "eos_id": None}
        masked = self.losses_of("masked", "data.document_mask=true", data=order | {"train": [{"path": joined}]})
        crossing = self.losses_of("crossing", data=order | {"train": [{"path": joined}]})
        alone = self.losses_of("alone", "data.document_mask=true", "data.seq_len=16", "training.global_batch_size=16",
                               data=order | {"train": [{"path": apart}]})
        self.assert_close(masked, alone, 1e-5)
        self.assertNotEqual(crossing[1], masked[1])

    def test_steps_without_targets(self):
        """Every document has one token, so no token has a target."""
        path, held_out = (write_megatron(self.dir / name, [[token % 256] for token in range(first, first + 200)])
                          for name, first in (("single", 0), ("held_out", 7)))
        config = self.config(path, data={"train": [{"path": path}], "bos_id": None, "eos_id": None, "document_mask": True})
        masked = f"{{path: {held_out}, name: masked}}"
        result = self.train(config, "training.steps=3", "logging.every=1", "validation.every=2",
                            f"data.validation=[{masked}, {{path: {self.held_out}, name: text}}]")
        self.assertEqual(len(re.findall("step 1: all targets of samples 0 to \\d+ are masked", result.out + result.err)), 1)
        self.assertEqual((result.out + result.err).count("all targets of samples"), 1)
        self.assertIn("data.validation masked: all targets are masked", result.out + result.err)
        validated = self.metrics()[2]
        self.assertEqual(validated["validation_loss_by_dataset"], {"text": validated["validation_loss"]})
        self.refused("evaluate", config, f"data.validation=[{masked}]", mentions=["data.document_mask", "data.validation"])
        self.assertEqual(self.losses(), {step: (0.0, 0.0) for step in (1, 2, 3)})

    def test_bfloat16_compute(self):
        exact = self.losses_of("float32")
        rounded = self.losses_of("bfloat16", "precision.compute=bfloat16")
        self.assertNotEqual(rounded, exact)
        for step, (loss, grad_norm) in exact.items():
            self.assertAlmostEqual(rounded[step][0] / loss, 1, delta=5e-3)
            self.assertAlmostEqual(rounded[step][1] / grad_norm, 1, delta=5e-2)

    def test_bfloat16_moments(self):
        exact = self.losses_of("float32")
        rounded = self.losses_of("bfloat16", "optimizer.state_dtype=bfloat16")
        self.assertNotEqual(rounded, exact)
        for step, (loss, _) in exact.items():
            self.assertAlmostEqual(rounded[step][0] / loss, 1, delta=5e-3)
        tensors = checkpoint_tensors(self.dir / "bfloat16_checkpoints/step_00000006")
        for name, (dtype, _, _) in tensors.items():
            self.assertEqual(dtype, "BF16" if name.startswith("exp_avg") else "F32", name)

    def test_other_keys_change_what_they_should(self):
        base = self.losses_of("base")
        for key, value, first_loss_changes in (
            ("model.rope_theta", 100.0, True),
            ("model.rms_norm_eps", 0.1, True),
            ("model.rope_scaling", "{factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
             "original_max_position_embeddings: 16}", True),
            ("data.shuffle", "none", True),
            ("data.seed", 7, True),
            ("training.seed", 1, True),
            ("optimizer.betas", "[0.5, 0.6]", False),
            ("optimizer.eps", 1e-3, False),
            ("optimizer.weight_decay", 5, False),
            ("optimizer.grad_clip", 0.01, False),
            ("optimizer.lr", 1e-4, False),
        ):
            with self.subTest(key):
                losses = self.losses_of(key, f"{key}={value}")
                self.assertNotEqual(losses, base)
                self.assertEqual(losses[1] != base[1], first_loss_changes)
        unclipped = self.losses_of("unclipped", "optimizer.grad_clip=0")
        self.assertEqual(unclipped[1], base[1])
