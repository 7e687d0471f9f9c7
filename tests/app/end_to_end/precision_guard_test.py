"""Tests of the comparison of FP8 training with bfloat16, and of the fallback if they differ too much."""

import json
import re
import struct

from support import checkpoint_tensors, copy_tree, numbers, read_safetensors, write_safetensors
from training_test import Corpus

OUTLIER = 1e6


class PrecisionGuardTest(Corpus):
    def guarded(self, *overrides, log="log", ranks=1, recipe="fp8_delayed", code=0, **guard):
        config = self.config(
            self.corpus,
            training={"steps": 24, "global_batch_size": 4, "micro_batch_size": 2},
            precision={"linear": recipe, "amax_history": 4} | ({"guard": guard} if guard else {}),
            checkpoint={"dir": f"{log}_checkpoints", "every": 0},
            logging={"dir": log},
        )
        return self.train(config, *overrides, ranks=ranks, code=code)

    def test_a_comparison_changes_nothing(self):
        self.guarded(log="plain")
        result = self.guarded(log="compared", every=6, steps=3)
        gaps = re.findall(r"the losses of steps (\d+) to (\d+) in FP8 differ from those in bfloat16 by (\S+) of their mean", result.out)
        self.assertEqual([gap[:2] for gap in gaps], [("7", "9"), ("13", "15"), ("19", "21")])
        self.assertEqual(self.losses("compared"), self.losses("plain"))
        self.assertEqual(checkpoint_tensors(self.dir / "compared_checkpoints/step_00000024"),
                         checkpoint_tensors(self.dir / "plain_checkpoints/step_00000024"))
        self.assertIn("precision_gap", self.metrics("compared")[9])

    def test_a_gap_rolls_back_and_continues_in_bfloat16(self):
        """After the rollback the run is in bfloat16 for fallback_steps steps, beginning with the compared steps."""
        guard = {"every": 10, "steps": 2, "tolerance": 1e-9, "action": "bfloat16", "fallback_steps": 8}
        constant = "optimizer.schedule=constant"
        result = self.guarded(constant, log="back", ranks=2, **guard)
        self.assertIn("rolled back to step 10; the run continues in bfloat16 until step 18", result.out)
        self.assertIn("the run continues in fp8_delayed from step 19", result.out)
        # The expected run takes ten steps in FP8 and then eight in bfloat16.
        for steps, linear in ((10, "fp8_delayed"), (18, "bfloat16")):
            self.guarded(f"training.steps={steps}", constant, f"precision.linear={linear}",
                         "checkpoint.allow_changes=[precision]", log="hand", ranks=2)
        self.assertEqual({step: value for step, value in self.losses("back").items() if step <= 18}, self.losses("hand"))
        goodput = json.loads((self.dir / "back/goodput.json").read_text())
        uses = sum(value for name, value in goodput.items() if name.endswith("_s") and name != "wall_s")
        self.assertLessEqual(uses, goodput["wall_s"] + 0.01)

    def test_a_stop_in_bfloat16_resumes_in_bfloat16(self):
        guard = {"every": 10, "steps": 2, "tolerance": 1e-9, "action": "bfloat16", "fallback_steps": 8}
        constant = "optimizer.schedule=constant"
        self.guarded(constant, log="whole", **guard)
        self.guarded(constant, "training.steps=14", log="cut", **guard)
        refused = self.guarded(constant, "precision.guard.every=0", log="cut", code=2, **guard)
        self.assertIn("the run computes in bfloat16 until step 18", refused.err)
        self.guarded(constant, log="cut", **guard)
        self.assertEqual(self.losses("cut"), self.losses("whole"))
        manifest = json.loads((self.dir / "cut_checkpoints/step_00000014/manifest.json").read_text())
        self.assertEqual(manifest["meta"]["bfloat16_until"], 18)

    def check_resuming_at(self, step, fallback_steps):
        """A run that resumes at a step of the whole run has the losses of the whole run. Returns the result of the resumed run."""
        guard = {"every": 10, "steps": 2, "tolerance": 1e-9, "action": "bfloat16", "fallback_steps": fallback_steps}
        every = ("optimizer.schedule=constant", "checkpoint.every=10", "checkpoint.keep=0")
        self.guarded(*every, log="whole", **guard)
        rest = self.dir / "rest_checkpoints"
        rest.mkdir()
        copy_tree(self.dir / f"whole_checkpoints/step_{step:08d}", rest / f"step_{step:08d}")
        result = self.guarded(*every, log="rest", **guard)
        self.assertEqual(self.losses("rest"), {number: losses for number, losses in self.losses("whole").items() if number > step})
        return result

    def test_a_comparison_due_at_the_resumed_checkpoint_is_made(self):
        """The checkpoint of step 10 is saved before the comparison that begins there."""
        result = self.check_resuming_at(10, fallback_steps=8)
        self.assertIn("rolled back to step 10; the run continues in bfloat16 until step 18", result.out)

    def test_no_comparison_begins_where_a_fallback_ends(self):
        self.check_resuming_at(20, fallback_steps=10)

    def put_outlier_in(self, path):
        """Scales weights so that the function of the model does not change in exact arithmetic. In the output of each norm, one channel
        becomes OUTLIER times as large, and the weights that read the channel become as much smaller. An FP8 cast of such a tensor with a
        single scale flushes the other channels to zero."""
        tensors = read_safetensors(path)
        for name, (_, shape, _) in list(tensors.items()):
            values = list(numbers(tensors[name]))
            if name.endswith("_layernorm.weight"):
                values[0] *= OUTLIER
            elif any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")):
                for row in range(shape[0]):
                    values[row * shape[1]] /= OUTLIER
            tensors[name] = ("F32", shape, struct.pack(f"<{len(values)}f", *values))
        write_safetensors(path, tensors)

    def test_a_run_that_diverges_in_fp8_recovers(self):
        trained = self.config(self.corpus, training={"steps": 60, "global_batch_size": 8, "micro_batch_size": 4},
                              optimizer={"lr": 1e-2, "schedule": "constant"}, checkpoint={"dir": "trained"},
                              logging={"dir": "trained_log"})
        self.train(trained)
        self.run_octavo("export", "trained", "hf")
        self.put_outlier_in(self.dir / "hf/model.safetensors")

        def outliers(log, *overrides):
            config = self.config(
                self.corpus, model={"init_from": "hf"}, training={"steps": 24, "global_batch_size": 8, "micro_batch_size": 4},
                optimizer={"lr": 1e-9, "schedule": "constant"}, checkpoint={"dir": f"{log}_checkpoints"}, logging={"dir": log},
                precision={"linear": "fp8_tensorwise"},
            )
            return self.train(config, *overrides)

        outliers("bfloat16", "precision.linear=bfloat16")
        outliers("fp8")
        guard = "precision.guard={every: 4, steps: 2, tolerance: 0.02, action: bfloat16, fallback_steps: 1000}"
        result = outliers("guarded", guard)
        self.assertIn("rolled back to step 4; the run continues in bfloat16", result.out)
        good, bad, guarded = (self.metrics(log)[24]["loss"] for log in ("bfloat16", "fp8", "guarded"))
        self.assertGreater(bad, good + 0.5)
        self.assertLess(guarded, good + 0.1)
