"""Tests of checkpoints: exact resumption, crashes, full disks."""

import json
import math
import re
import shutil

from support import ALLOW_SCHEDULE, FAILED, checkpoint_tensors, checkpoints, copy_tree, metrics_lines, numbers
from support import read_safetensors, relative_distance
from support import snapshot, text_documents, write_megatron
from training_test import Corpus


class Resuming(Corpus):
    """Trains runs of ten steps. `self.reference` returns the results of an uninterrupted run."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.reference_losses = None

    def ten_steps(self, **sections):
        return self.config(self.corpus, **({"training": {"steps": 10}} | sections))

    def reference(self, config, *overrides, ranks=1):
        """Returns the losses and final tensors of an uninterrupted run."""
        where = ("logging.dir=whole", "checkpoint.dir=whole_checkpoints")
        self.train(config, *where, *overrides, ranks=ranks)
        return self.losses("whole"), checkpoint_tensors(self.dir / "whole_checkpoints/step_00000010")

    def remove_runs(self):
        for name in ("checkpoints", "log", "whole", "whole_log", "whole_checkpoints"):
            shutil.rmtree(self.dir / name, ignore_errors=True)

    def assert_same_run(self, reference, log="log", directory="checkpoints", first=1):
        losses, tensors = reference
        self.assertEqual(self.losses(log), {step: value for step, value in losses.items() if step >= first})
        found = checkpoint_tensors(self.dir / directory / "step_00000010")
        self.assertEqual(sorted(found), sorted(tensors))
        for name, tensor in tensors.items():
            self.assertEqual(found[name], tensor, f"{name} differs")


class ResumeTest(Resuming):
    def check_exact(self, *overrides, ranks=1, **sections):
        config = self.ten_steps(**sections)
        reference = self.reference(config, *overrides, ranks=ranks)
        self.train(config, "checkpoint.every=4", "checkpoint.keep=0", *overrides, ranks=ranks)
        shutil.rmtree(self.dir / "checkpoints/step_00000010")
        shutil.rmtree(self.dir / "checkpoints/step_00000008")
        (self.dir / "log/metrics.jsonl").unlink()
        result = self.train(config, "checkpoint.every=4", *overrides, ranks=ranks)
        self.assertIn("step_00000004", result.out)
        self.assert_same_run(reference, first=5)

    def test_what_was_logged_is_read_by_step(self):
        config = self.ten_steps(logging={"every": 5}, checkpoint={"every": 7, "keep": 0})
        self.train(config)
        shutil.rmtree(self.dir / "checkpoints/step_00000010")
        self.train(config)
        lines = (self.dir / "log/metrics.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["step"] for line in lines], [1, 5, 10, 8])
        self.assertEqual(json.loads(self.run_octavo("inspect", "log").out)["step"], 10)

    def test_is_bit_identical(self):
        self.check_exact()

    def test_is_bit_identical_with_all_features(self):
        other = write_megatron(self.dir / "other", [[97 + i % 20 for i in range(57)]] * 3)
        train = [{"path": self.corpus, "weight": 0.7}, {"path": other, "weight": 0.4}]
        self.check_exact(
            "optimizer.state_dtype=bfloat16",
            "precision.compute=bfloat16",
            "data.document_mask=true",
            "checkpoint.async=false",
            "model.tie_word_embeddings=true",
            data={"train": train, "skip": [[30, 41]]},
        )

    def test_is_bit_identical_on_two_ranks_and_file_order(self):
        self.check_exact("data.shuffle=none", ranks=2)

    def test_is_bit_identical_with_moments_in_float8(self):
        self.check_exact("optimizer.state_dtype=float8", ranks=2)

    def test_moments_in_float8_do_not_depend_on_the_mesh(self):
        """FP8 codes of moments may differ only where the order of a sum decides between two neighbouring codes."""
        config = self.ten_steps(optimizer={"state_dtype": "float8"}, training={"steps": 10, "micro_batch_size": 1})
        reference, _ = self.reference(config)
        for ranks, replicate in ((2, 1), (4, 2), (8, 1)):
            where = (f"logging.dir=on{ranks}", f"checkpoint.dir=on{ranks}_checkpoints")
            self.train(config, *where, f"parallel.data_parallel_replicate={replicate}", ranks=ranks)
            self.assert_close(self.losses(f"on{ranks}"), reference, 3e-4)

    def test_moments_in_float8_of_replicas_stay_equal(self):
        """The second of three ranks has one query head of each key/value head, at other positions than the other ranks."""
        model = {"hidden_size": 48, "num_heads": 6, "num_kv_heads": 2, "vocab_size": 275}
        config = self.ten_steps(model=model, data={"seq_len": 33}, optimizer={"state_dtype": "float8"},
                                training={"steps": 10, "micro_batch_size": 1, "corruption_check_every": 1})
        reference, _ = self.reference(config)
        self.train(config, "logging.dir=three", "checkpoint.dir=of_three", "parallel.tensor_parallel=3", ranks=3)
        self.assert_close(self.losses("three"), reference, 1e-4)

    def test_moments_of_another_type(self):
        """The moments are converted to the other dtype. If they began at zero, the losses would differ clearly."""
        for before, after in (("float32", "float8"), ("bfloat16", "float8"), ("float8", "float32"), ("float8", "bfloat16")):
            with self.subTest(before=before, after=after):
                config = self.ten_steps(logging={"dir": f"{before}_{after}", "every": 1},
                                        checkpoint={"dir": f"{before}_{after}_saved", "every": 4, "keep": 0})
                self.train(config, f"optimizer.state_dtype={before}")
                reference = self.losses(f"{before}_{after}")
                where = (f"logging.dir={before}_to_{after}", f"checkpoint.dir={before}_to_{after}_saved")
                saved = self.dir / f"{before}_{after}_saved/step_00000004"
                self.train(config, *where, f"checkpoint.resume={saved}", f"optimizer.state_dtype={after}",
                           "checkpoint.allow_changes=[optimizer]")
                losses = self.losses(f"{before}_to_{after}")
                self.assertEqual(sorted(losses), list(range(5, 11)))
                self.assertEqual(losses.pop(5), reference[5])
                self.assert_close(losses, {step: reference[step] for step in losses}, 5e-3)

    def test_the_command_that_began_at_a_checkpoint_resumes_the_run(self):
        config = self.ten_steps(optimizer={"schedule": "constant"}, checkpoint={"every": 2, "keep": 0})
        self.train(config, "training.steps=6")
        reference = self.losses()
        for place, rest in (("of its own folder", ()), ("of another run", ("logging.dir=other", "checkpoint.dir=of_other"))):
            with self.subTest(place):
                begin = ("checkpoint.resume=checkpoints/step_00000002", *rest)
                self.assertIn("resuming checkpoints/step_00000002", self.train(config, "training.steps=4", *begin).out)
                out = self.train(config, "training.steps=8", *begin).out
                self.assertRegex(out, r"resuming \w+/step_00000004 after step 4")
                self.assertIn("this run began with checkpoint.resume=checkpoints/step_00000002", out)
                # A restart by a launcher does not change where the run began.
                self.train(config, "training.steps=9", *rest)
                self.assertRegex(self.train(config, "training.steps=10", *begin).out, r"resuming \w+/step_00000009 after step 9")
                losses = self.losses("other" if rest else "log")
                self.assertEqual({step: losses[step] for step in range(3, 7)}, {step: reference[step] for step in range(3, 7)})

    def test_more_steps_than_at_first(self):
        config = self.ten_steps(optimizer={"schedule": "constant"})
        reference = self.reference(config)
        self.train(config, "training.steps=3")
        self.train(config, "training.steps=7")
        self.train(config)
        self.assert_same_run(reference)

    def test_never_and_path(self):
        config = self.ten_steps()
        self.train(config, "checkpoint.every=4", "checkpoint.keep=0")
        losses = self.losses()
        result = self.train(config, "checkpoint.resume=never", "logging.dir=anew")
        self.assertNotIn("resuming", result.out)
        self.assertEqual(self.losses("anew"), losses)
        copy_tree(self.dir / "checkpoints/earlier/step_00000008", self.dir / "elsewhere")
        old = "checkpoints/earlier/step_00000004"
        for path, first in (("elsewhere", 9), (old, 5), (old + "/", 5)):
            log = f"from{first}_{path.count('/')}"
            self.train(config, f"checkpoint.resume={path}", "checkpoint.dir=fresh", f"logging.dir={log}")
            self.assertEqual(self.losses(log), {step: value for step, value in losses.items() if step >= first})
        result = self.train(config, "checkpoint.resume=anew", "checkpoint.dir=fresh", "logging.dir=from_run")
        self.assertIn("checkpoints/step_00000010", result.out, "the newest checkpoint of that run")
        self.refused("train", config, "checkpoint.resume=not_there", mentions=["not_there"])

    def test_manifest_says_what_is_in_the_checkpoint(self):
        config = self.ten_steps(training={"steps": 2})
        self.train(config, ranks=2)
        manifest = json.loads((self.dir / "checkpoints/step_00000002/manifest.json").read_text())
        self.assertEqual(manifest["step"], 2)
        self.assertEqual(manifest["meta"]["tokens"], 2 * 8 * 32)
        self.assertIn("loader", manifest["meta"])
        self.assertEqual(manifest["meta"]["config"]["training"]["steps"], 2)
        report = json.loads(self.run_octavo("inspect", "checkpoints/step_00000002").out)
        self.assertEqual(report, report | {"step": 2, "intact": True, "ranks": 2})
        self.assertEqual(json.loads(self.run_octavo("inspect", "checkpoints").out), report)

    def test_other_data_starts_over_when_allowed(self):
        config = self.ten_steps(optimizer={"schedule": "constant"})
        self.train(config, "training.steps=4")
        before = snapshot(self.dir / "checkpoints")
        other = write_megatron(self.dir / "other", [[97] * 50] * 3)
        use_other = f"data.train=[{{path: {other}}}]"
        for overrides, change in (([use_other], "loader state"), ([use_other, "checkpoint.allow_changes=[schedule]"], "loader state"),
                                  (["data.seed=9"], "data.seed 1234 -> 9")):
            self.refused("train", config, *overrides, mentions=[change, "checkpoint.allow_changes=["])
        self.assertEqual(snapshot(self.dir / "checkpoints"), before)
        for ranks in (1, 2):
            directory = copy_tree(self.dir / "checkpoints", self.dir / f"of_{ranks}")
            where = (f"checkpoint.dir={directory.name}", f"logging.dir=log_{ranks}")
            result = self.train(config, use_other, "checkpoint.allow_changes=data", *where, ranks=ranks)
            self.assertIn("the data starts from the beginning with step 5", result.out + result.err)
            self.assertRegex(result.out, r"config changes since the checkpoint was saved: .*data\.train \S*.*corpus.* -> .*other")
            self.assertEqual(sorted(self.metrics(f"log_{ranks}")), list(range(5, 11)))
            # The run continues with the other data from the sample that it had reached.
            self.train(config, use_other, "training.steps=12", *where)
        self.assert_close(self.losses("log_1"), self.losses("log_2"), 1e-6)

    def test_keys_that_change_results_are_kept(self):
        """Seeds, hyperparameters and precision may not change, not even with another logging.dir."""
        config = self.ten_steps()
        self.train(config, "training.steps=4", "optimizer.schedule=constant")
        before = snapshot(self.dir / "checkpoints")
        now = ("optimizer.schedule=constant", "training.seed=7", "precision.linear=fp8_rowwise", "logging.dir=other")
        for ranks in (1, 2):
            self.refused("train", config, *now, ranks=ranks, mentions=["training.seed 42 -> 7, precision.linear bfloat16 -> fp8_rowwise",
                                                                       "checkpoint.allow_changes=[training,precision]"])
        self.assertEqual(snapshot(self.dir / "checkpoints"), before)
        self.train(config, *now, "checkpoint.allow_changes=[training,precision]")
        self.assertEqual(sorted(self.metrics("other")), list(range(5, 11)))

    def test_another_schedule_is_refused(self):
        """With more steps, the learning rate would jump from the end of the schedule back to its middle."""
        config = self.ten_steps(optimizer={"schedule": "cosine"})
        self.train(config, "training.steps=4")
        before = snapshot(self.dir / "checkpoints")
        self.refused("train", config, mentions=["step_00000004", "training.steps 4 -> 10", "step 4 has the learning rate", "[schedule]"])
        self.refused("train", config, "training.steps=4", "training.global_batch_size=16", ranks=2,
                     mentions=["step 4 has 16 instead of 8 sequences", "[schedule]"])
        self.assertEqual(snapshot(self.dir / "checkpoints"), before)
        out = self.train(config, ALLOW_SCHEDULE).out
        self.assertIn("config changes since the checkpoint was saved: training.steps 4 -> 10", out)
        found = re.search(r"learning rate: (\S+) at step 4, (\S+) at step 5\n", out)
        rates = [entry["lr"] for entry in (self.metrics()[4], self.metrics()[5])]
        for printed, rate in zip(found.groups(), rates):
            self.assertAlmostEqual(float(printed) / rate, 1, delta=1e-2)

    def test_changes_that_leave_the_steps_to_come_as_they_were(self):
        config = self.ten_steps(optimizer={"schedule": "wsd", "decay_steps": 2, "warmup_steps": 2})
        self.train(config, "checkpoint.every=4", "checkpoint.keep=0")
        for step in ("step_00000008", "step_00000010"):
            shutil.rmtree(self.dir / "checkpoints" / step)
        # The warm-up is over, and a micro-batch size does not change results. In a longer run the decay comes later.
        changes = ("training.micro_batch_size=2", "optimizer.warmup_steps=3")
        self.refused("train", config, *changes, "training.steps=12", mentions=["training.steps 10 -> 12", "(step 9 has the"])
        result = self.train(config, *changes, "training.steps=12", ALLOW_SCHEDULE)
        self.assertIn("config changes since the checkpoint was saved: training.steps 10 -> 12, training.micro_batch_size 4 -> 2, "
                      "optimizer.warmup_steps 2 -> 3", result.out)
        self.assertIn("learning rate: 0.003 at step 4, 0.003 at step 5", result.out)
        self.assertEqual(self.metrics()[10]["lr"], 3e-3)

    def test_another_text_of_the_same_counts_is_refused(self):
        documents = text_documents(40, 300)
        config = self.ten_steps(optimizer={"schedule": "constant"})
        self.train(config, "training.steps=4")
        before = snapshot(self.dir / "checkpoints")
        other = write_megatron(self.dir / "other", [[(token + 1) % 256 for token in document] for document in documents])
        use_other = f"data.train=[{{path: {other}}}]"
        sentence = self.refused("train", config, use_other, mentions=[other, "dataset other", "data.resume_from_sample to 32"])
        self.assertEqual(len(re.findall(r"fingerprint \W?[0-9a-f]{16}", sentence)), 2, sentence)
        self.refused("train", config, use_other, ranks=2, mentions=[other, "data.resume_from_sample to 32"])
        self.assertEqual(snapshot(self.dir / "checkpoints"), before)
        # With data.resume_from_sample the run resumes. The next resumption does not need the key.
        self.train(config, use_other, "training.steps=6", "data.resume_from_sample=32")
        self.train(config, use_other)

    def test_a_corpus_may_move(self):
        config = self.ten_steps(optimizer={"schedule": "constant"})
        reference = self.reference(config)
        self.train(config, "training.steps=4")
        moved = write_megatron(self.dir / "moved", text_documents(40, 300))
        self.train(config, f"data.train=[{{path: {moved}}}]")
        self.assert_same_run(reference)


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return -1


class CrashTest(Resuming):

    def assert_last_checkpoint(self, result, step):
        """Expects that the run, although it failed, first completed the checkpoint that was being written."""
        self.assertEqual(len(result.octavo_lines()), 1, result.err)
        saved = checkpoints(self.dir / "checkpoints")
        self.assertTrue(saved, result.err)
        self.assertEqual(saved[-1], f"step_{step:08}", result.err)
        for name in saved:
            self.assertTrue(json.loads(self.run_octavo("inspect", f"checkpoints/{name}").out)["intact"])
        self.assertEqual([path.name for path in (self.dir / "checkpoints").iterdir() if path.name.startswith(".")], [])

    def each_mode(self):
        """Yields (ranks, overrides) after removing the files of the case before."""
        for ranks in (1, 2):
            for mode in ("true", "false"):
                self.remove_runs()
                yield ranks, ("checkpoint.every=1", "checkpoint.keep=0", f"checkpoint.async={mode}")

    def test_a_loss_that_is_not_finite_names_a_checkpoint_that_is_there(self):
        config = self.ten_steps(training={"steps": 10, "max_skipped_steps": 1}, optimizer={"lr": 1e30, "grad_clip": 0})
        for ranks, overrides in self.each_mode():
            with self.subTest(ranks=ranks, overrides=overrides):
                result = self.run_octavo("train", config, *overrides, ranks=ranks, code=FAILED)
                named = re.search(r"the last checkpoint is checkpoints/step_(\d+)$", result.octavo_lines()[0])
                self.assertTrue(named, result.err)
                self.assert_last_checkpoint(result, int(named[1]))
                for name in checkpoints(self.dir / "checkpoints"):
                    for tensor in checkpoint_tensors(self.dir / "checkpoints" / name).values():
                        self.assertTrue(all(map(math.isfinite, numbers(tensor))), name)
        result = self.run_octavo("train", config, "checkpoint.dir=none", "logging.dir=none_log", "checkpoint.every=0",
                                 code=FAILED)
        self.assertIn("the last checkpoint is none", result.err)

    def test_a_bad_token_in_the_data_loses_no_checkpoint(self):
        for suffix in (".bin", ".idx"):
            shutil.copy(self.corpus + suffix, self.dir / f"copy{suffix}")
        good = (self.dir / "copy.bin").read_bytes()
        config = self.config("copy", training={"steps": 100_000, "micro_batch_size": 1},
                             optimizer={"schedule": "constant"})
        for ranks, overrides in self.each_mode():
            with self.subTest(ranks=ranks, overrides=overrides):
                with open(self.dir / "copy.bin", "r+b") as tokens:
                    tokens.write(good)
                process = self.start("train", config, *overrides, ranks=ranks)
                self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") >= 3, process)
                with open(self.dir / "copy.bin", "r+b") as tokens:
                    tokens.write(b"\xe7\x03" * (len(good) // 2))
                result = self.finish(process)
                self.assertEqual(result.code, FAILED, result.err)
                self.assertRegex(result.err, r"copy.bin: token id 999 at position \d+ of document \d+ is outside")
                self.assert_last_checkpoint(result, max(self.metrics()))

    def test_a_full_log_disk_does_not_end_a_run(self):
        config = self.ten_steps()
        for ranks, overrides in self.each_mode():
            with self.subTest(ranks=ranks, overrides=overrides):
                (self.dir / "log").mkdir()
                (self.dir / "log/metrics.jsonl").symlink_to("/dev/full")
                result = self.run_octavo("train", config, *overrides, ranks=ranks, code=FAILED)
                full = "metrics.jsonl cannot be written: No space left on device; "
                self.assertEqual(result.out.count(full), 1, result.out)
                self.assertEqual(result.octavo_lines(), [f"octavo: log/{full}10 of its lines are lost"])
                self.assertEqual(checkpoints(self.dir / "checkpoints")[-1], "step_00000010")

    def test_an_unreadable_step_is_not_skipped(self):
        config = self.ten_steps(training={"steps": 4}, checkpoint={"every": 2, "keep": 0})
        self.train(config)
        loop = self.dir / "checkpoints/step_00000003"
        for name, target in (("loop", loop.name), ("gone", "/nowhere/step_00000003")):
            loop.symlink_to(target)
            with self.subTest(name):
                for command in ("train", "evaluate"):
                    data = ("data.validation=[" + self.held_out + "]",)
                    self.refused(command, config, "training.steps=6", *data, mentions=[loop.name])
                self.refused("train", config, "checkpoint.resume=never", "training.steps=6", mentions=[loop.name])
            loop.unlink()
        manifest = self.dir / "checkpoints/step_00000004/manifest.json"
        manifest.rename(self.dir / "manifest.json")
        manifest.symlink_to(manifest.name)
        self.refused("train", config, "training.steps=6", mentions=["step_00000004/manifest.json", "symbolic links"])
        manifest.unlink()
        result = self.train(config)
        self.assertIn("resuming checkpoints/step_00000002", result.out)
        self.assertIn("renamed to checkpoints/damaged_step_00000004; checkpoints/step_00000002 is used instead: "
                      "checkpoints/step_00000004: has no manifest.json", result.out)
        self.assertTrue((self.dir / "checkpoints/damaged_step_00000004").is_dir())

    def test_lost_checkpoints_are_not_replaced_by_a_new_run(self):
        config = self.ten_steps(training={"steps": 4}, checkpoint={"every": 2, "keep": 0})
        self.train(config)
        (self.dir / "checkpoints").rename(self.dir / "elsewhere")
        before = snapshot(self.dir / "log")
        for ranks in (1, 2):
            self.refused("train", config, ranks=ranks, mentions=["the run reached step 4", "no checkpoint is in checkpoints"])
        self.refused("train", config, "--dry-run", mentions=["the run reached step 4"])
        self.assertEqual(snapshot(self.dir / "log"), before)
        result = self.train(config, "checkpoint.resume=elsewhere/step_00000002")
        self.assertIn("no checkpoint is in checkpoints, so it resumes one in elsewhere", result.out)
        self.assertEqual(checkpoints(self.dir / "checkpoints"), ["step_00000004"])


class AverageTest(Resuming):
    """Tests of the moving average of the weights (optimizer.ema_decay)."""

    DECAY = 0.75

    def averages(self, directory):
        tensors = checkpoint_tensors(self.dir / directory)
        return {name.removeprefix("ema."): tensor for name, tensor in tensors.items() if name.startswith("ema.")}

    def test_follows_the_weights_on_any_mesh(self):
        config = self.config(self.corpus, training={"steps": 4, "micro_batch_size": 2}, optimizer={"warmup_steps": 1, "schedule": "constant", "ema_decay": self.DECAY},
                             validation={"every": 0, "batches": 1}, data={"validation": [{"path": self.corpus}], "allow_overlap": True})
        self.train(config, "optimizer.ema_decay=0", "training.steps=1")
        resumed = self.train(config, "checkpoint.every=1", "checkpoint.keep=0", "training.steps=3",
                             "checkpoint.allow_changes=[optimizer]", ranks=2)
        self.assertIn("step_00000001 has no moving average of the weights, so the average starts from its weights", resumed.out)
        self.assertNotIn("no average", self.train(config, "checkpoint.keep=0", ranks=2).out)
        weights = {step: checkpoint_tensors(self.dir / f"checkpoints/step_0000000{step}") for step in (1, 2, 3, 4)}
        name = "model.layers.1.mlp.down_proj.weight"
        expected = numbers(weights[1][name])
        for step in (2, 3, 4):
            expected = [self.DECAY * e + (1 - self.DECAY) * w for e, w in zip(expected, numbers(weights[step][name]))]
            got = numbers(self.averages(f"checkpoints/step_0000000{step}")[name])
            self.assertLess(relative_distance(got, expected), 1e-6)
        self.check_uses(config)

    def check_uses(self, config):
        self.run_octavo("export", "checkpoints", "averaged", "--ema")
        exported = read_safetensors(self.dir / "averaged/model.safetensors")
        self.assertEqual(exported, self.averages("checkpoints/step_00000004"))
        loss = [self.run_octavo(*line).out.split("validation_loss ")[1].split()[0]
                for line in (("evaluate", "checkpoints", "--ema"), ("evaluate", config, "model.init_from=averaged", "checkpoint.resume=never"),
                             ("evaluate", "checkpoints"))]
        self.assertEqual(loss[0], loss[1])
        self.assertNotEqual(loss[0], loss[2])
        self.run_octavo("generate", "checkpoints", "--prompt", "a", "--max-tokens", "2", "--ema")
        for line in (("export", "checkpoints/step_00000001", "none", "--ema"), ("evaluate", "checkpoints/step_00000001", "--ema"),
                     ("generate", "checkpoints/step_00000001", "--prompt", "a", "--ema")):
            self.refused(*line, mentions=["step_00000001: has no average of the weights"])
