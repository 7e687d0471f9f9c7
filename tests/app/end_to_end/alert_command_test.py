"""Tests of logging.alert_command, which runs for warnings and for the error that ends a run."""

import json
import signal
import time

from guards_test import NOISY_STEP, Noisy
from support import FAILED, STOPPED

TELL = 'echo "<$OCTAVO_EVENT $OCTAVO_STEP $OCTAVO_RUN> $OCTAVO_MESSAGE"'


class AlertCommandTest(Noisy):
    def alerts(self):
        """Returns event, step and message of each alert that TELL has told."""
        run = f" {(self.dir / 'log').resolve()}> "
        told = [text.split(run) for text in ("\n" + (self.dir / "log/alert_command.log").read_text()).split("\n<")[1:]]
        return [(*head.split(), message.rstrip("\n")) for head, message in told]

    def warnings(self):
        return [json.loads(line) for line in (self.dir / "log/events.jsonl").read_text().splitlines() if '"warning"' in line]

    def texts(self):
        return "\n".join(event["text"] for event in self.warnings())

    def test_warnings_are_joined(self):
        self.noisy(f"logging.alert_command={TELL}", ranks=2)
        alerts = self.alerts()
        self.assertLessEqual(len(alerts), 2)
        self.assertEqual("\n".join(message for _, _, message in alerts), self.texts())
        self.assertEqual(alerts[-1][:2], ("warning", str(self.warnings()[-1]["step"])))
        self.assertIn(f"step {NOISY_STEP}: the loss of ", self.texts())

    def test_a_run_that_goes_on_is_told_about(self):
        """Later warnings wait for a minute, or for the end of the run."""
        process = self.start("train", self.noisy_config(), f"logging.alert_command={TELL}", "training.steps=1000000")
        told = self.dir / "log/alert_command.log"
        self.wait_for(lambda: told.exists() and told.read_text().endswith("\n"), process)
        first = len(self.alerts())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process).code, STOPPED)
        self.assertEqual(first, 1)
        self.assertLessEqual(len(self.alerts()), 2)
        self.assertTrue(self.texts().startswith("\n".join(message for _, _, message in self.alerts())[:200]))

    def test_the_error_that_ends_the_run_is_told(self):
        self.noisy(f"logging.alert_command={TELL}", "optimizer.lr=1e30", "optimizer.grad_clip=0", max_skipped_steps=1,
                   code=FAILED)
        event, _, message = self.alerts()[-1]
        self.assertEqual(event, "error")
        self.assertIn("training.max_skipped_steps allows 1 such steps in a row", message.splitlines()[-1])

    def test_a_failure_is_one_warning(self):
        self.noisy("logging.alert_command=echo out; echo err >&2; exit 7", on_loss_spike="rollback")
        (warning,) = [event["text"] for event in self.warnings() if event["text"].startswith("logging.alert_command")]
        self.assertIn("ended with exit code 7", warning)
        self.assertRegex((self.dir / "log/alert_command.log").read_text(), "^(out\nerr\n)+$")

    def test_the_ranks_wait_for_the_last_alert(self):
        """An alert lasts longer than a collective may."""
        self.noisy("logging.alert_command=sleep 7; echo told", "parallel.timeout_s=5", ranks=2)
        self.assertIn("told", (self.dir / "log/alert_command.log").read_text())

    def test_its_time_is_limited(self):
        began = time.monotonic()
        self.noisy("logging.alert_command=sleep 1000 & sleep 1000", "logging.alert_command_timeout_s=1")
        self.assertLess(time.monotonic() - began, 60)
        (warning,) = [event["text"] for event in self.warnings() if event["text"].startswith("logging.alert_command")]
        self.assertRegex(warning, r"was ended (after logging.alert_command_timeout_s \(1 s\)|with the run);")
