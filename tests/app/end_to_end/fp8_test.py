"""Tests of the FP8 recipes, which the CPU emulates."""

import math

from training_test import Corpus


class Fp8Test(Corpus):
    """Tests that FP8 recipes learn, do not depend on the number of ranks, and resume bit for bit."""

    # All dimensions are multiples of 128, as the blockwise recipe requires.
    MODEL = {"hidden_size": 128, "intermediate_size": 128, "num_heads": 2, "num_kv_heads": 1, "head_dim": 64}
    RECIPES = ("fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_blockwise")

    def run_recipe(self, name, recipe, *overrides, ranks=1):
        config = self.config(self.corpus, model=self.MODEL, data={"seq_len": 128}, optimizer={"lr": 5e-4, "schedule": "constant"},
                             training={"steps": 6, "global_batch_size": 4})
        self.train(config, f"logging.dir={name}", f"checkpoint.dir={name}_checkpoints", f"precision.linear={recipe}",
                   "training.micro_batch_size=2", "checkpoint.every=3", *overrides, ranks=ranks)
        return self.losses(name)

    def test_recipes_are_close_to_float32_and_the_same_on_two_ranks(self):
        """tests/app/run/mesh_draws_ranks.cpp compares every recipe on every mesh."""
        exact = self.run_recipe("exact", "bfloat16")
        for recipe, axis in zip(self.RECIPES, ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel_shard")):
            one = self.run_recipe(f"{recipe}1", recipe)
            self.assertNotEqual(one, exact)
            self.assert_close(one, exact, 2e-2)
            self.assert_close(self.run_recipe(f"{recipe}2", recipe, f"parallel.{axis}=2", ranks=2), one, 2e-3)

    def test_ranks_that_divide_tensors_cast_like_one_rank(self):
        """Partial sums round in another order, which changes few casts. tests/model/linear_layer_ranks.cpp compares the scales bit for
        bit, on exact sums."""
        model = {"hidden_size": 128, "intermediate_size": 512, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64, "vocab_size": 288}
        cases = [(recipe, "bfloat16") for recipe in self.RECIPES] + [("bfloat16", "fp8_backward"), ("bfloat16", "fp8")]
        for recipe, lm_head in cases:
            # Two context ranks have chunks of a fourth of the sequence, and a block has 128 tokens.
            config = self.config(self.corpus, model=model, data={"seq_len": 512 if recipe == "fp8_blockwise" else 128},
                                 optimizer={"lr": 1e-6}, training={"steps": 3, "global_batch_size": 2, "micro_batch_size": 1},
                                 precision={"linear": recipe, "lm_head": lm_head})
            runs = []
            for axes in ([], ["parallel.tensor_parallel=2"], ["parallel.context_parallel=2"]):
                name = f"{recipe}_{lm_head}_{len(runs)}"
                self.train(config, f"logging.dir={name}", f"checkpoint.dir={name}_checkpoints", *axes, ranks=1 + len(axes))
                runs.append(self.losses(name))
            for divided in runs[1:]:
                with self.subTest(recipe=recipe, lm_head=lm_head):
                    self.assert_close(divided, runs[0], 2e-3)
                    losses = [{step: values[:1] for step, values in run.items()} for run in (divided, runs[0])]
                    self.assert_close(*losses, 5e-5)

    def test_delayed_scaling_resumes_to_the_bit(self):
        whole = self.run_recipe("whole", "fp8_delayed", "precision.amax_history=2")
        rest = self.run_recipe("rest", "fp8_delayed", "precision.amax_history=2",
                               "checkpoint.resume=whole_checkpoints/step_00000003")
        self.assertEqual(rest, {step: loss for step, loss in whole.items() if step > 3})

    def test_evaluation_scales_as_the_validation_of_training(self):
        validation = (f"data.validation=[{self.held_out}]", "validation.every=2", "training.micro_batch_size=2")
        for recipe in ("fp8_tensorwise", "fp8_delayed"):
            self.run_recipe(recipe, recipe, "training.steps=8", *validation)
            for ranks in (1, 2):
                out = self.run_octavo("evaluate", self.dir / "config.yaml", f"precision.linear={recipe}", *validation,
                                      f"checkpoint.dir={recipe}_checkpoints", ranks=ranks).out
                loss = float(out.split("validation_loss ")[1].split()[0])
                # The program prints 6 digits. Two ranks sum in another order.
                self.assertAlmostEqual(loss, self.metrics(recipe)[8]["validation_loss"], delta=1e-6 * ranks, msg=recipe)

    def test_lm_head(self):
        """The loss of the first step equals that without an FP8 lm_head bit for bit, unless the logits are in FP8. An evaluation equals the
        validation of the run."""
        validation = (f"data.validation=[{self.held_out}]", "validation.every=2", "training.micro_batch_size=2")
        exact = self.run_recipe("exact", "bfloat16", *validation)
        for lm_head in ("fp8_backward", "fp8"):
            key = f"precision.lm_head={lm_head}"
            run = self.run_recipe(lm_head, "bfloat16", key, "training.steps=8", *validation)
            self.assertEqual(run[1][0] == exact[1][0], lm_head == "fp8_backward")
            self.assertNotEqual(run, exact)
            self.assert_close({step: run[step] for step in exact}, exact, 5e-2)
            rest = self.run_recipe(f"{lm_head}_rest", "bfloat16", key, "training.steps=8", *validation,
                                   f"checkpoint.resume={lm_head}_checkpoints/step_00000003")
            self.assertEqual(rest, {step: loss for step, loss in run.items() if step > 3})
            out = self.run_octavo("evaluate", self.dir / "config.yaml", key, *validation, f"checkpoint.dir={lm_head}_checkpoints").out
            loss = float(out.split("validation_loss ")[1].split()[0])
            self.assertAlmostEqual(loss, self.metrics(lm_head)[8]["validation_loss"], delta=1e-6)
            checkpoint = self.dir / f"{lm_head}_checkpoints/step_00000008"
            self.run_octavo("generate", checkpoint, "--prompt", "the ", "--max-tokens", "4")

    def test_statistics_are_taken_when_due_and_change_nothing(self):
        """Statistics are due at every third of seven steps. Some of these steps are logged only for the statistics."""
        for recipe in self.RECIPES:
            steps = ("training.steps=7", "logging.every=2")
            plain = self.run_recipe(f"plain_{recipe}", recipe, *steps)
            measured = self.run_recipe(f"measured_{recipe}", recipe, *steps, "logging.fp8_stats_every=3")
            self.assertEqual(sorted(plain), [1, 2, 4, 6, 7])
            self.assertEqual(sorted(measured), [1, 2, 3, 4, 6, 7])
            self.assertEqual({step: measured[step] for step in plain}, plain)
            metrics = self.metrics(f"measured_{recipe}")
            self.assertEqual([step for step, entry in metrics.items() if "fp8" in entry], [3, 6])
            for step in (3, 6):
                self.check_statistics(metrics[step]["fp8"], recipe)

    def check_statistics(self, tensors, recipe):
        names = [(entry["layer"], entry["linear"], entry["tensor"]) for entry in tensors]
        self.assertEqual(names, [(layer, linear, tensor) for layer in range(2) for linear in ("qkv", "o", "gate_up", "down")
                                 for tensor in ("input", "weight", "output_gradient")])
        for entry in tensors:
            whole = recipe in ("fp8_tensorwise", "fp8_delayed")
            scales = {"scale"} if whole else {"scale_min", "scale_max"}
            self.assertEqual(set(entry), {"layer", "linear", "tensor", "amax", "saturated", "flushed"} | scales)
            largest = 57344 if entry["tensor"] == "output_gradient" else 448
            scale = entry["scale" if whole else "scale_min"]
            if recipe == "fp8_delayed":  # The scale comes from earlier amaxes, which are close to the current one.
                self.assertLess(abs(math.log2(scale * entry["amax"] / largest)), 2, entry)
            elif (recipe, entry["linear"], entry["tensor"]) == ("fp8_tensorwise", "gate_up", "output_gradient"):
                # The scale comes from an upper bound of the amax.
                self.assertTrue(0.1 < scale * entry["amax"] / largest < 1, entry)
                self.assertEqual(entry["saturated"], 0, entry)
            else:
                self.assertAlmostEqual(scale * entry["amax"] / largest, 1, delta=1e-6)
                self.assertEqual(entry["saturated"], 0, entry)
            self.assertLess(entry["flushed"], 0.2, entry)

    def test_statistics_are_over_all_ranks(self):
        """The micro-batches are equal, so the casts are equal too. The update of the weights rounds the sums over ranks in another
        order."""
        for recipe, axis in (("fp8_tensorwise", "pipeline_parallel"), ("fp8_rowwise", "data_parallel_shard")):
            one = self.first_statistics(f"one_{recipe}", recipe)
            two = self.first_statistics(f"two_{recipe}", recipe, f"parallel.{axis}=2", ranks=2)
            for a, b in zip(one, two, strict=True):
                if a["tensor"] == "weight":
                    self.assertAlmostEqual(b["amax"] / a["amax"], 1, delta=1e-4)
                else:
                    self.assertEqual(a, b)

    def first_statistics(self, name, recipe, *overrides, ranks=1):
        self.run_recipe(name, recipe, "training.steps=1", "logging.fp8_stats_every=1", *overrides, ranks=ranks)
        return self.metrics(name)[1]["fp8"]

    def test_layers_in_bfloat16_have_no_statistics(self):
        tensors = self.first_statistics("first", "fp8_rowwise", "precision.bf16_first_layers=1")
        self.assertEqual([entry["layer"] for entry in tensors], [1] * 12)

    def test_statistics_without_fp8_are_warned_of_once(self):
        config = self.config(self.corpus, training={"steps": 3}, logging={"every": 2})
        result = self.train(config, "logging.fp8_stats_every=1")
        self.assertEqual(result.out.count("logging.fp8_stats_every is 1, but no linear is in FP8"), 1, result.out)
        self.assertEqual(sorted(self.metrics()), [1, 2, 3])
        self.assertFalse(any("fp8" in entry for entry in self.metrics().values()))

    def test_a_warning_names_what_does_not_fit(self):
        """A margin of 2^20 flushes all e4m3 values to zero from the second step on."""
        config = self.config(self.corpus, model=self.MODEL, data={"seq_len": 128}, training={"steps": 3})
        result = self.train(config, "precision.linear=fp8_delayed", "precision.amax_margin=20", "training.micro_batch_size=2",
                            "logging.fp8_stats_every=1")
        warnings = [line for line in result.out.splitlines() if "FP8 tensors do not fit" in line]
        # In the first step only the weights, which are cast for the second step, do not fit. Later everything does not fit except the
        # gradients that only pass through residuals.
        self.assertEqual(len(warnings), 3, result.out)
        self.assertRegex(warnings[0], r"step 1: 8 of 24 FP8 tensors .* the weight of \w+ in layer [01]: .* 100\.0% flushed")
        self.assertRegex(warnings[2], r"step 3: 20 of 24 FP8 tensors .* in layer [01]: .* amax 0$")
        for entry in self.metrics()[3]["fp8"]:
            if entry["tensor"] == "weight":
                self.assertEqual(entry["flushed"], 1, entry)
            if (entry["linear"], entry["tensor"]) == ("down", "output_gradient"):
                self.assertLess(entry["flushed"], 0.2, entry)
