"""Tests of checkpoint.command, which runs for each complete checkpoint while the run continues."""

import json
import os
import signal
import time

from support import DONE, STOPPED, checkpoints
from training_test import Corpus

# Prints text, then the numbers of a checkpoint. $OCTAVO_STEP - 1 because a JSON number has no leading zero.
PRINTS = 'ls "$OCTAVO_CHECKPOINT"; pwd; echo "loss $OCTAVO_LOSS"; echo "{\\"step\\": $OCTAVO_STEP, \\"task\\": {\\"acc\\": 0.5, \\"name\\": \\"x\\"}}"; echo end'


class CheckpointCommandTest(Corpus):
    def run_with(self, command, *overrides, ranks=1, steps=20, **options):
        config = self.config(
            self.corpus,
            training={"steps": steps, "global_batch_size": 4, "micro_batch_size": 2},
            checkpoint={"every": 5, "keep": 0, "command": command, "async": False},
            logging={"every": 1, "dir": "log"},
        )
        return self.train(config, *overrides, ranks=ranks, **options)

    def events(self, log="log"):
        return [json.loads(line) for line in (self.dir / log / "events.jsonl").read_text().splitlines()]

    def about_commands(self, log="log"):
        return [event for event in self.events(log) if event["text"].startswith("checkpoint.command")]

    def output(self, step):
        return (self.dir / f"log/checkpoint_commands/step_{step:08d}.log").read_text()

    def test_numbers_become_metrics(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.run_with(PRINTS, f"logging.dir=log{ranks}", f"checkpoint.dir=saved{ranks}", ranks=ranks)
                lines = [json.loads(line) for line in (self.dir / f"log{ranks}/metrics.jsonl").read_text().splitlines()]
                found = {line["evaluation_step"]: line["evaluation"] for line in lines if "evaluation" in line}
                # A command that is too slow for the fast steps of this model leaves out a checkpoint, but never the last one.
                self.assertIn(20, found)
                self.assertEqual(found, {step: {"step": step, "task/acc": 0.5} for step in found})
                self.assertEqual([line["step"] for line in lines][-1], 20)
                losses = {line["step"]: line["loss"] for line in lines}
                text = (self.dir / f"log{ranks}/checkpoint_commands/step_00000020.log").read_text()
                self.assertIn("manifest.json", text)
                self.assertIn(str((self.dir / f"log{ranks}").resolve()), text)
                told = float(text.split("loss ")[1].split()[0])
                self.assertAlmostEqual(told, losses[20], places=5)

    def test_a_failure_is_a_warning(self):
        self.run_with("echo '{\"acc\": 1}'; exit 7", steps=5)
        (event,) = self.about_commands()
        self.assertEqual((event["event"], event["step"]), ("warning", 5))
        self.assertIn("checkpoint.command of step 5 ended with exit code 7", event["text"])
        self.assertNotIn("evaluation", self.metrics()[5])

    def test_no_mpi_of_the_run_reaches_the_command(self):
        self.run_with("env", steps=5, ranks=2)
        names = [line.split("=")[0] for line in self.output(5).splitlines()]
        self.assertEqual([name for name in names if name.startswith(("OMPI_COMM", "PMIX", "PMI_"))], [])
        self.assertIn("PATH", names)

    def test_may_start_mpi_programs(self):
        self.run_with("mpirun -n 2 --oversubscribe echo started", steps=5, ranks=2)
        self.assertEqual(self.output(5), "started\nstarted\n")

    def test_variables_of_the_run_are_not_those_of_its_caller(self):
        os.environ["OCTAVO_STEP"] = os.environ["OCTAVO_LOSS"] = os.environ["OCTAVO_RUN"] = "wrong"
        self.addCleanup(lambda: [os.environ.pop(f"OCTAVO_{name}") for name in ("STEP", "LOSS", "RUN")])
        self.run_with('echo "$OCTAVO_STEP $OCTAVO_RUN $OCTAVO_LOSS"', steps=5)
        self.assertEqual(self.output(5).split()[:2], ["5", str((self.dir / "log").resolve())])
        self.assertNotIn("wrong", self.output(5))

    def test_output_of_any_kind_harms_nothing(self):
        self.run_with("head -c 3000000 /dev/zero; echo; head -c 400000 /dev/zero | tr '\\0' '['; echo; "
                      "for i in $(seq 100000); do printf '{\"a\":'; done; echo; echo '{\"ok\": 1}'", steps=5)
        self.assertEqual(self.metrics()[5]["evaluation"], {"ok": 1})

    def test_its_time_is_limited(self):
        began = time.monotonic()
        self.run_with("echo before; sleep 1000 & sleep 1000", "checkpoint.command_timeout_s=1", steps=5)
        self.assertLess(time.monotonic() - began, 60)
        (event,) = self.about_commands()
        self.assertIn("was ended after checkpoint.command_timeout_s (1 s)", event["text"])
        self.assertEqual(self.output(5), "before\n")

    def test_a_slow_command_leaves_checkpoints_out_and_says_so(self):
        for is_async in ("false", "true"):
            with self.subTest(is_async=is_async):
                result = self.run_with("sleep 1; echo '{\"a\": 1}'", "checkpoint.every=1", f"checkpoint.async={is_async}",
                                       f"checkpoint.dir=saved_{is_async}", f"logging.dir=log_{is_async}", steps=12)
                events = self.about_commands(f"log_{is_async}")
                ran = [event["step"] for event in events if "ended with exit code 0" in event["text"]]
                left_out = [event["step"] for event in events if "does not run for step" in event["text"]]
                saved = [event["step"] for event in self.events(f"log_{is_async}") if event["event"] == "checkpoint"]
                self.assertEqual(sorted(ran + left_out), saved, result.out)
                self.assertEqual(ran[-1], 12)
                self.assertTrue(left_out)

    def test_a_signal_does_not_wait_for_it(self):
        config = self.config(
            self.corpus,
            training={"steps": 100000, "global_batch_size": 4, "micro_batch_size": 2},
            checkpoint={"every": 5, "keep": 2, "command": "echo $$ >pid; sleep 1000"},
            logging={"every": 1, "dir": "log"},
        )
        process = self.start("train", config)
        self.wait_for(lambda: (self.dir / "log/pid").exists() and (self.dir / "log/pid").read_text().endswith("\n"), process)
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, STOPPED, result.err)
        self.assertIn("was ended, because a signal stops the run", result.out)
        self.assertTrue(checkpoints(self.dir / "checkpoints"))
        with self.assertRaises(ProcessLookupError):
            os.kill(int((self.dir / "log/pid").read_text()), 0)

    def test_runs_once_for_each_save_of_a_resumed_run(self):
        self.run_with("echo $OCTAVO_STEP >>ran", steps=5)
        self.run_with("echo $OCTAVO_STEP >>ran", "checkpoint.allow_changes=[schedule]", steps=10)
        self.assertEqual((self.dir / "log/ran").read_text().split(), ["5", "10"])
        self.assertEqual(self.run_with("true", "checkpoint.allow_changes=[schedule]", steps=10).code, DONE)
