"""Tests of octavo train and octavo evaluate: what they log, and which options must not change the results."""

import json
import math
import re
import socket
import time

from support import ALLOW_SCHEDULE, TINY_MODEL, Scratch, checkpoint_tensors, checkpoints, numbers, relative_distance, snapshot
from support import text_documents, write_llm_c, write_megatron

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
        """The phases of the start, measured from the launch, add up to the total that is printed, and to no more than the time of the
        run."""
        for ranks in (1, 2):
            config = self.config(self.corpus, training={"steps": 2}, checkpoint={"dir": f"{ranks}_ranks"},
                                 logging={"dir": f"log{ranks}"})
            begin = time.monotonic()
            lines = self.train(config, ranks=ranks).out.splitlines()
            seconds = time.monotonic() - begin
            started = [i for i, line in enumerate(lines) if line.startswith("started in ")]
            first = [i for i, line in enumerate(lines) if line.startswith("step 1/2 ")]
            self.assertEqual(len(started), 1, lines)
            self.assertLess(started[0], first[0])
            total, parts = re.fullmatch(r"started in (\d+\.\d) s: (.*)", lines[started[0]]).groups()
            times = dict(part.rsplit(" ", 1) for part in parts.split(", "))
            self.assertEqual(", ".join(times), "program, MPI, config, device, data, reading, memory, weights")
            self.assertAlmostEqual(sum(map(float, times.values())), float(total), delta=0.05 * len(times) + 0.06)
            self.assertLessEqual(float(total), seconds + 0.1)
        resumed = self.train(config, "training.steps=3", ALLOW_SCHEDULE).out
        self.assertRegex(resumed, r"started in .* data \d+\.\d, reading \d+\.\d, memory \d+\.\d, weights \d+\.\d\n")
        again = self.train(config, "training.steps=3").out
        self.assertNotIn("started in", again, "there was nothing to do")

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
        self.assertLess(abs(float(values['octavo_time_seconds{run="log"}']) - time.time()), 60)
        self.assertIn('octavo_validation_loss_by_dataset{run="log",dataset="a \\"b\\""}', values)
        types = [line for line in lines if line.startswith("#")]
        self.assertEqual(len(types), len(set(types)))
        self.assertEqual({line.split()[2] for line in types}, {name.split("{")[0] for name in values})
        self.assertFalse((self.dir / "octavo.prom.tmp").exists())
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

    def test_appends(self):
        config = self.config(self.corpus, training={"steps": 2}, logging={"dir": "deep/er/log"})
        self.train(config)
        first = (self.dir / "deep/er/log/metrics.jsonl").read_bytes()
        self.train(config, "training.steps=4", ALLOW_SCHEDULE)
        self.assertTrue((self.dir / "deep/er/log/metrics.jsonl").read_bytes().startswith(first))
        self.assertEqual(sorted(self.metrics("deep/er/log")), [1, 2, 3, 4])

    def test_nothing_left_to_do(self):
        config = self.config(self.corpus, training={"steps": 2})
        self.train(config)
        before = (self.dir / "log/metrics.jsonl").read_bytes()
        self.train(config)
        self.assertEqual((self.dir / "log/metrics.jsonl").read_bytes(), before)

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


class ScheduleTest(Corpus):
    def rates(self, steps, **optimizer):
        # The learning rate is large enough to show the schedule, and the batch is so small that the run is short.
        config = self.config(self.corpus, training={"steps": steps, "global_batch_size": 1, "micro_batch_size": 1},
                             data={"seq_len": 8}, optimizer={"lr": 1e-3} | optimizer)
        self.train(config, "checkpoint.resume=never")
        rates = {step: entry["lr"] for step, entry in self.metrics().items()}
        (self.dir / "log/metrics.jsonl").unlink()
        self.assertEqual(sorted(rates), list(range(1, steps + 1)))
        return rates

    def check(self, rates, expected):
        for step, rate in rates.items():
            self.assertAlmostEqual(rate, expected(step), delta=1e-12, msg=f"step {step}")

    def test_cosine(self):
        def expected(s, w, n, r):
            return 1e-3 * (s / w if s <= w else r + (1 - r) * (1 + math.cos(math.pi * (s - w) / (n - w))) / 2)

        self.check(self.rates(20, warmup_steps=5, min_lr_ratio=0.2), lambda s: expected(s, 5, 20, 0.2))
        self.check(self.rates(6, warmup_steps=0, min_lr_ratio=0), lambda s: expected(s, 0, 6, 0))
        self.check(self.rates(4, warmup_steps=8), lambda s: 1e-3 * s / 8)

    def test_linear(self):
        self.check(self.rates(10, warmup_steps=2, schedule="linear", min_lr_ratio=0.1),
                   lambda s: 1e-3 * s / 2 if s <= 2 else 1e-3 * (1 - 0.9 * (s - 2) / 8))

    def test_constant(self):
        self.check(self.rates(6, warmup_steps=3, schedule="constant"), lambda s: 1e-3 * min(s / 3, 1))

    def test_wsd(self):
        self.check(self.rates(12, warmup_steps=2, schedule="wsd", decay_steps=4, min_lr_ratio=0.5),
                   lambda s: 1e-3 * s / 2 if s <= 2 else 1e-3 * (1 - 0.5 * max(0, s - 8) / 4))


class EqualityTest(Corpus):
    """Tests that the division into micro-batches and ranks does not change the losses."""

    def losses_of(self, name, *overrides, ranks=1, **sections):
        config = self.config(self.corpus, **sections)
        log = f"logging.dir={name}"
        self.train(config, log, f"checkpoint.dir={name}_checkpoints", *overrides, ranks=ranks)
        return self.losses(name)

    def test_gradient_accumulation_equals_one_big_batch(self):
        big = self.losses_of("big", "training.micro_batch_size=8")
        for size in (1, 2, 4):
            small = self.losses_of(f"small{size}", f"training.micro_batch_size={size}")
            self.assert_close(small, big, 1e-6)

    def test_ranks_equal_one_rank(self):
        for name, sections in {
            "plain": {},
            "mask": {"data": {"document_mask": True}},
            "tied": {"model": {"tie_word_embeddings": True}, "data": {"shuffle": "none"}},
        }.items():
            one = self.losses_of(f"{name}1", **sections)
            two = self.losses_of(f"{name}2", "training.micro_batch_size=2", ranks=2, **sections)
            self.assert_close(two, one, 1e-6)
            if name != "plain":
                continue
            four = self.losses_of("plain4", "training.micro_batch_size=1", ranks=4)
            self.assert_close(four, one, 1e-6)
            weights = [checkpoint_tensors(self.dir / f"plain{n}_checkpoints/step_00000006") for n in (1, 2, 4)]
            for tensors in weights[1:]:
                self.assertEqual(sorted(tensors), sorted(weights[0]))
                for key, tensor in tensors.items():
                    self.assertEqual(tensor[:2], weights[0][key][:2])
                    self.assertLess(relative_distance(numbers(tensor), numbers(weights[0][key])), 2e-3, key)

    def test_same_run_twice_is_bit_identical(self):
        self.assertEqual(self.losses_of("a"), self.losses_of("b"))
        self.assertEqual(self.losses_of("a2", "training.micro_batch_size=2", ranks=2),
                         self.losses_of("b2", "training.micro_batch_size=2", "training.deterministic=true", ranks=2))

    def test_seeds_matter(self):
        base = self.losses_of("base")
        self.assertNotEqual(self.losses_of("weights", "training.seed=1"), base)
        self.assertNotEqual(self.losses_of("order", "data.seed=1"), base)

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

    def test_tied_embeddings(self):
        self.losses_of("tied", "model.tie_word_embeddings=true")
        names = checkpoint_tensors(self.dir / "tied_checkpoints/step_00000006")
        self.assertIn("model.embed_tokens.weight", names)
        self.assertNotIn("lm_head.weight", names)

    def test_other_keys_change_what_they_should(self):
        base = self.losses_of("base")
        for key, value, first_loss_changes in (
            ("model.rope_theta", 100.0, True),
            ("model.rms_norm_eps", 0.1, True),
            ("model.rope_scaling", "{factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
             "original_max_position_embeddings: 16}", True),
            ("data.shuffle", "none", True),
            ("data.seed", 7, True),
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

    def test_every_token_format_trains_alike(self):
        documents = text_documents(20, 200)
        expected = None
        for dtype in ("u8", "u16", "i32"):
            path = write_megatron(self.dir / dtype, documents, dtype)
            losses = self.losses_of(f"log_{dtype}", data={"train": [{"path": path}]})
            expected = expected or losses
            self.assertEqual(losses, expected)
        tokens = sum(documents, [])
        plain = {"shuffle": "none", "bos_id": None, "eos_id": None}
        shard = write_llm_c(self.dir / "shard.bin", tokens)
        joined = write_megatron(self.dir / "joined", [tokens])
        runs = [self.losses_of(f"log{i}", data={"train": [{"path": path}]} | plain)
                for i, path in enumerate((shard, joined))]
        self.assertEqual(runs[0], runs[1])

    def test_learns(self):
        losses = self.losses_of("learns", "training.steps=40", "optimizer.warmup_steps=4", "logging.every=20")
        self.assertLess(losses[40][0], 2.6)
        self.assertLess(losses[40][0], losses[20][0])

    def test_weights_that_blow_up_are_never_saved(self):
        config = self.config(self.corpus, checkpoint={"every": 1, "keep": 0}, training={"steps": 40})
        sentence = self.refused("train", config, "optimizer.lr=1e30", "optimizer.grad_clip=0", code=1)
        self.assertRegex(sentence, r"steps 2 to 12")
        for name in checkpoints(self.dir / "checkpoints"):
            for tensor in checkpoint_tensors(self.dir / "checkpoints" / name).values():
                self.assertTrue(all(map(math.isfinite, numbers(tensor))), name)
        entries = (self.dir / "log/metrics.jsonl").read_text()
        self.assertNotIn("NaN", entries)
        for line in entries.splitlines():
            json.loads(line)


