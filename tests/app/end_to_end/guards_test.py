"""Tests of steps with a loss spike or a non-finite loss, and of the goodput."""

import json
import os
import random
import re
import shutil
import signal

from support import DEVICE, DONE, FAILED, STOPPED, Scratch, checkpoints, write_megatron

SEQ_LEN, BATCH = 32, 8
TOKENS_A_STEP = (SEQ_LEN + 1) * BATCH
NOISY_STEP, STEPS = 40, 60


class Noisy(Scratch):
    """Trains on tokens that repeat in file order, except for one step of noise."""

    def setUp(self):
        super().setUp()
        random.seed(5)
        tokens = [97 + i % 3 for i in range(TOKENS_A_STEP * (STEPS + 2))]
        begin = (NOISY_STEP - 1) * TOKENS_A_STEP
        tokens[begin:begin + TOKENS_A_STEP] = [random.randrange(256) for _ in range(TOKENS_A_STEP)]
        write_megatron(self.dir / "noisy", [tokens])

    def noisy(self, *overrides, ranks=1, code=DONE, log="log", **training):
        return self.run_octavo("train", self.noisy_config(log, **training), *overrides, ranks=ranks, code=code)

    def noisy_config(self, log="log", **training):
        return self.config(
            self.dir / "noisy",
            data={"shuffle": "none", "bos_id": None, "eos_id": None, "allow_overlap": True},
            training={"steps": STEPS, "micro_batch_size": 2, "loss_spike_window": 10} | training,
            optimizer={"lr": 3e-3, "warmup_steps": 2, "schedule": "constant"},
            checkpoint={"dir": f"{log}_checkpoints", "every": 25},
            logging={"dir": log},
        )


class GuardsTest(Noisy):
    def test_a_spike_is_told_and_the_goodput(self):
        out = self.noisy().out
        losses = [line for line in out.splitlines() if "the loss of" in line and "is a spike" in line]
        self.assertEqual(len(losses), 1, out)
        first = (NOISY_STEP - 1) * BATCH
        self.assertRegex(out, rf"step {NOISY_STEP}: the loss of \d+\.\d+ is a spike, \d+\.\d standard deviations above "
                              rf"the mean of the steps before; samples {first} to {first + BATCH - 1}\n")
        self.assertRegex(out, rf"step {NOISY_STEP}: the gradient norm of \d+\.\d+ is a spike, ")
        self.assertRegex(out, rf"step {NOISY_STEP}/{STEPS}  .*  \[loss spike z \d+\.\d, grad_norm spike z \d+\.\d.*\]")
        marked = {key: step for step, entry in self.metrics().items() for key in ("loss_z", "grad_norm_z") if key in entry}
        self.assertEqual(marked["loss_z"], NOISY_STEP)
        self.assertGreater(self.metrics()[NOISY_STEP]["grad_norm_z"], 6)
        self.assertNotIn("is a spike", self.noisy("training.loss_spike_window=0", log="off").out)
        self.check_goodput(out)

    def test_a_spike_is_skipped(self):
        """Later steps equal those of a run without the samples of the skipped step, except for their step numbers."""
        first = (NOISY_STEP - 1) * BATCH
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                log = f"skip{ranks}"
                result = self.noisy(ranks=ranks, log=log, on_loss_spike="skip")
                self.assertIn(f"samples {first} to {first + BATCH - 1}; the step is skipped", result.out)
                metrics = self.metrics(log)
                self.assertEqual(metrics[NOISY_STEP]["skipped_steps"], 1)
                self.assertEqual(metrics[STEPS]["skipped_steps"], 1)
                self.assertLess(metrics[NOISY_STEP + 1]["loss"], metrics[NOISY_STEP - 1]["loss"] * 1.2)
                self.assertGreater(metrics[NOISY_STEP]["loss"], 4)

    def test_a_stop_does_not_change_what_is_a_spike(self):
        self.noisy(log="whole", on_loss_spike="skip")
        self.noisy(f"training.steps={NOISY_STEP - 1}", log="cut", on_loss_spike="skip")
        self.noisy(log="cut", on_loss_spike="skip")
        self.assertEqual(self.losses("cut"), self.losses("whole"))
        self.assertEqual(self.metrics("cut")[STEPS]["skipped_steps"], 1)

    def test_a_spike_is_rolled_back(self):
        """After the rollback the run equals one that skips those samples."""
        first = (NOISY_STEP - 1) * BATCH
        self.noisy(f"data.skip=[[{first}, {first + BATCH}]]", log="clean")
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                log = f"back{ranks}"
                result = self.noisy(ranks=ranks, log=log, on_loss_spike="rollback")
                self.assertIn(f"step_00000025 after step 25; samples {first} to {first + BATCH - 1} are skipped", result.out)
                self.assertEqual(checkpoints(self.dir / f"{log}_checkpoints"), ["step_00000025", "step_00000050", "step_00000060"])
                clean, back = self.losses("clean"), self.losses(log)
                if ranks == 1:
                    self.assertEqual(back, clean)
                else:
                    self.assert_close(back, clean, 1e-4)

    def test_a_stage_begins_after_the_samples_that_a_rollback_skips(self):
        write_megatron(self.dir / "other", [[97 + i % 3 for i in range(TOKENS_A_STEP * STEPS)]])
        train = [{"path": str(self.dir / name)} for name in ("noisy", "other")]
        stages = f"stages={json.dumps([{'steps': 50}, {'steps': 10, 'data': {'train': train}}])}"
        self.noisy(stages, f"data.skip=[[{(NOISY_STEP - 1) * BATCH}, {NOISY_STEP * BATCH}]]", log="skips")
        self.noisy(stages, log="back", on_loss_spike="rollback")
        self.assertEqual(self.losses("back"), self.losses("skips"))
        epochs = [self.metrics("back")[step]["epochs"]["noisy"] for step in (49, 50, 51)]
        self.assertAlmostEqual(epochs[2] - epochs[1], (epochs[1] - epochs[0]) / 2, msg="half of the samples of a step")

    def test_a_stop_after_a_spike_saves_no_spike(self):
        """If there is a checkpoint, the signal is sent after the rollback. Before it, the run would stop without rolling back."""
        for every, awaited in ((25, b" are skipped"), (0, b" is a spike, ")):
            with self.subTest(every=every):
                log = f"every{every}"
                validation = [f"data.validation=[{self.dir}/noisy]", f"validation.every={NOISY_STEP}", "validation.batches=1000000"]
                process = self.start("train", self.noisy_config(log, on_loss_spike="rollback"), f"checkpoint.every={every}", *validation)
                self.wait_for(lambda: awaited in os.pread(process.captured[0].fileno(), 1_000_000, 0), process)
                process.send_signal(signal.SIGTERM)
                result = self.finish(process)
                self.assertEqual(result.code, STOPPED, result.err)
                saved = checkpoints(self.dir / f"{log}_checkpoints")
                if every == 0:
                    self.assertEqual(saved, [f"step_{NOISY_STEP:08}"])
                else:
                    self.assertIn("are skipped", result.out)
                    self.assertEqual(saved[0], "step_00000025")
                    self.assertNotIn("validation_loss", self.metrics(log)[NOISY_STEP])

    def test_a_spike_without_a_checkpoint_to_roll_back_to(self):
        out = self.noisy("checkpoint.every=0", on_loss_spike="rollback").out
        self.assertIn(f"there is no checkpoint to roll back to from step {NOISY_STEP}", out)

    def test_all_ranks_end_alike_when_the_checkpoint_to_roll_back_to_is_gone(self):
        """The checkpoint is removed during the validation that comes after it."""
        validation = [f"data.validation=[{self.dir}/noisy]", "validation.every=30", "validation.batches=500"]
        process = self.start("train", self.noisy_config(on_loss_spike="rollback"), *validation, ranks=2)
        checkpoint = self.dir / "log_checkpoints/step_00000025"
        self.wait_for(lambda: (checkpoint / "manifest.json").exists(), process)
        shutil.rmtree(checkpoint)
        result = self.finish(process)
        self.assertEqual(result.code, FAILED, result.err)
        self.assertEqual(result.octavo_lines(),
                         [f"octavo: there is no checkpoint to roll back to from step {NOISY_STEP}"])

    def test_a_spike_that_comes_back(self):
        """All batches from one step on are noise. Each rollback skips one of them, and the next one is a spike again."""
        tokens = [97 + i % 3 for i in range(TOKENS_A_STEP * 30)] + [random.randrange(256) for _ in range(TOKENS_A_STEP * 30)]
        write_megatron(self.dir / "noisy", [tokens])
        result = self.noisy(code=FAILED, on_loss_spike="rollback", max_skipped_steps=2)
        passed_over = re.findall(r"samples \d+ to (\d+) are skipped", result.out)
        self.assertEqual(passed_over, [str(31 * BATCH - 1), str(32 * BATCH - 1)], "each rollback skips one step more")
        self.assertRegex(result.octavo_lines()[0], r"step 31 is a spike after 2 rollbacks to \S+step_00000025")
        self.noisy("checkpoint.resume=never", log="skips", code=FAILED, on_loss_spike="skip", max_skipped_steps=2)

    def test_a_loss_that_is_not_finite_ends_with_a_checkpoint_from_before(self):
        """The first update makes weights of 1e30, after which no loss is finite."""
        for ranks, most in ((1, 0), (2, 3)):
            with self.subTest(ranks=ranks):
                log = f"diverged{ranks}"
                result = self.noisy("optimizer.lr=1e30", "optimizer.grad_clip=0", ranks=ranks, log=log, code=FAILED,
                                    max_skipped_steps=most)
                line = result.octavo_lines()[0]
                found = re.search(r"of steps? (\d+)(?: to (\d+))? is not finite or a spike; "
                                  rf"training.max_skipped_steps allows {most} .* the last checkpoint is (\S+)$", line)
                self.assertTrue(found, line)
                first = int(found[1])
                last = first + most + (DEVICE != "cpu")  # A GPU already computes the next step.
                self.assertEqual(int(found[2] or first), last)
                self.assertEqual(max(self.metrics(log)), last)
                saved = checkpoints(self.dir / f"{log}_checkpoints")
                self.assertEqual(saved, [] if found[3] == "none" else [f"step_{first - 1:08}"])

    def check_goodput(self, out):
        last = out.strip().splitlines()[-1]
        found = re.search(r"goodput (\d+\.\d)% of \S+: ", last)
        self.assertTrue(found, last)
        entry = self.metrics()[STEPS]
        self.assertLess(abs(entry["goodput"] - float(found[1]) / 100), 0.3)
        written = json.loads((self.dir / "log/goodput.json").read_text())
        parts = sum(value for key, value in written.items() if key.endswith("_s") and key != "wall_s")
        self.assertLessEqual(parts, written["wall_s"] * 1.001)
        self.assertGreater(parts, written["wall_s"] * 0.8)
        description = json.loads(self.run_octavo("inspect", "log").out)
        self.assertEqual(description["step"], STEPS)
        self.assertAlmostEqual(description["goodput"]["goodput"], written["goodput"])
        # Without the later checkpoints, the 35 steps after step 25 are repeated.
        for name in ("step_00000050", "step_00000060"):
            shutil.rmtree(self.dir / "log_checkpoints" / name)
        self.noisy()
        again = json.loads((self.dir / "log/goodput.json").read_text())
        self.assertEqual(again["restarts"], 1)
        metrics = self.metrics()
        self.assertEqual(sorted(metrics), list(range(1, STEPS + 1)))
        repeated_s = sum(metrics[step]["step_ms"] for step in range(26, STEPS + 1)) / 1e3
        self.assertGreater(again["recovery_s"], 0.5 * repeated_s)
