"""Tests of signals to a run at any time, also to one that mpirun or scripts/launch_mpirun.sh started."""

import json
import os
import signal
import time

from resume_test import Resuming, parent
from support import AT_ONCE, DONE, FAILED, ROOT, STOPPED, checkpoint_tensors, checkpoints, metrics_lines, text_documents, write_megatron


class Signalled(Resuming):
    LONG = {"training": {"steps": 100_000, "micro_batch_size": 2}, "optimizer": {"schedule": "constant"}}

    def start_script(self, *arguments, ranks=2, stdout=None, more=AT_ONCE):
        """Starts the script in a new process group, as a shell or `timeout` would."""
        variables = {"NPROC": str(ranks), "OCTAVO": os.environ["OCTAVO"]} | more
        return self.start_line([ROOT / "scripts/launch_mpirun.sh", *map(str, arguments)], stdout, variables,
                               start_new_session=True)

    def wait_for_steps(self, process, steps):
        self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") >= steps, process)

    def check_saved(self, config, ranks=1, exact=True):
        """Expects that the run ended with an intact checkpoint of its last step, and that training resumes from it. If `exact` is true,
        the resumed run has the losses and weights of an uninterrupted run."""
        saved = checkpoints(self.dir / "checkpoints")
        self.assertTrue(saved)
        step = int(saved[-1][5:])
        self.assertEqual(max(self.metrics()), step, "the last step is logged")
        self.assertTrue(json.loads(self.run_octavo("inspect", f"checkpoints/{saved[-1]}").out)["intact"])
        total = (f"training.steps={step + 3}", "checkpoint.every=0")
        self.train(config, *total, ranks=ranks)
        if exact:
            self.train(config, *total, "logging.dir=whole", "checkpoint.dir=whole", ranks=ranks)
            self.assertEqual(self.losses(), self.losses("whole"))
            found, whole = (checkpoint_tensors(self.dir / where / f"step_{step + 3:08}") for where in ("checkpoints", "whole"))
            self.assertEqual(found, whole)

    def start_long(self, *overrides, ranks=1, steps=3, **options):
        """Starts a run of many steps and waits until it has logged `steps` of them."""
        process = self.start("train", self.ten_steps(**self.LONG), *overrides, ranks=ranks, **options)
        self.wait_for_steps(process, steps)
        return process

    def stop(self, process, number):
        process.send_signal(number)
        return self.finish(process)

    def assert_stopped(self, result):
        self.assertEqual(result.code, STOPPED, result.out[-500:] + result.err)
        self.assertEqual(len(checkpoints(self.dir / "checkpoints")), 1)

    def ranks_of(self, process):
        return sorted(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == process.pid)


class SignalTest(Signalled):
    def test_a_signal_saves_and_stops(self):
        """mpirun passes SIGUSR1 on."""
        for number, ranks in ((signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGUSR1, 2)):
            with self.subTest(number):
                self.assert_stopped(self.stop(self.start_long(ranks=ranks), number))
                self.check_saved(self.ten_steps(**self.LONG), ranks)
                self.remove_runs()

    def test_sigterm_or_sigint_to_mpirun(self):
        """mpirun sends SIGTERM, and SIGKILL one second later. It exits with 1."""
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                self.stop(self.start_long(ranks=2), number)
                self.check_saved(self.ten_steps(**self.LONG), ranks=2)
                self.assertIn("SIGTERM received: saving a checkpoint", (self.dir / "log/log.txt").read_text())
                self.remove_runs()

    def test_nobody_reads_the_output(self):
        """A pipe that nobody reads delays neither training nor stopping."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        config = self.ten_steps(training={"steps": 100_000, "global_batch_size": 1, "micro_batch_size": 1}, data={"seq_len": 8})
        process = self.start("train", config, stdout=writer)
        os.close(writer)
        self.wait_for_steps(process, 1500)
        self.assert_stopped(self.stop(process, signal.SIGTERM))

    def test_a_rank_that_hangs(self):
        """One rank is stopped forever. The run ends in time, and the message names the collective."""
        process = self.start_long("parallel.timeout_s=2", ranks=2)
        os.kill(self.ranks_of(process)[-1], signal.SIGSTOP)
        result = self.finish(process)
        self.assertEqual(result.code, FAILED, result.err)
        self.assertEqual(len(result.octavo_lines()), 1, result.err)
        self.assertRegex(result.octavo_lines()[0], r"octavo: rank \d: .* did not complete within 2 s \(parallel.timeout_s\)")

    def test_sigterm_to_one_rank(self):
        """A batch system may send signals to single processes. All ranks stop at the same step."""
        process = self.start_long(ranks=2)
        os.kill(self.ranks_of(process)[-1], signal.SIGTERM)
        self.assert_stopped(self.finish(process))


class ScriptSignalTest(Signalled):
    def check(self, number, ranks, more=AT_ONCE):
        config = self.ten_steps(**self.LONG)
        process = self.start_script(config, ranks=ranks, more=more)
        self.wait_for_steps(process, 3)
        result = self.stop(process, number)
        self.assert_stopped(result)
        self.assertIn("SIGUSR1 received: saving a checkpoint after the current step", result.out)
        self.assertRegex(result.err, r"the ranks are told to save a checkpoint and end\n\Z", "Open MPI adds nothing")
        self.assertEqual(max(self.metrics()), int(checkpoints(self.dir / "checkpoints")[0][5:]))

    def test_sigterm(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.check(signal.SIGTERM, ranks)
                self.remove_runs()

    def test_sigint(self):
        self.check(signal.SIGINT, 2, more={})

    def test_the_whole_process_group_is_signalled(self):
        """Signals the process group more than once, as Ctrl-C and `timeout` do. All processes that the script has started get the signal
        too."""
        config = self.ten_steps(**self.LONG)
        process = self.start_script(config)
        self.wait_for_steps(process, 3)
        process.send_signal(signal.SIGTERM)
        for _ in range(100):
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(0.0002)
        self.assert_stopped(self.finish(process))

    def test_while_it_starts(self):
        for delay in (0.2, 0.6, 1.2):
            with self.subTest(delay):
                process = self.start_script(self.ten_steps(**self.LONG))
                time.sleep(delay)
                result = self.stop(process, signal.SIGTERM)
                self.assertEqual(result.code, STOPPED, result.out[-500:] + result.err)
                self.assertNotIn("mpirun ", result.err, "Open MPI adds nothing")

    def test_sigkill_to_the_script(self):
        """The ranks save and end nevertheless."""
        process = self.start_script(self.ten_steps(**self.LONG), more={})
        self.wait_for_steps(process, 3)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while not checkpoints(self.dir / "checkpoints"):
            self.assertLess(time.monotonic(), deadline, "the ranks are on their own")
            time.sleep(0.05)

    def test_no_terminal_and_no_reader(self):
        reader, writer = os.pipe()
        process = self.start_script(self.ten_steps(training={"steps": 60}), stdout=writer)
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        os.killpg(process.pid, signal.SIGHUP)
        self.assertEqual(self.finish(process).code, DONE)
        self.assertEqual(max(self.metrics()), 60)


class SignalMomentTest(Signalled):
    def test_before_the_first_step(self):
        """If no step has begun, nothing is saved. If one has begun, it is saved."""
        for delay in (0, 0.02, 0.1):
            with self.subTest(delay):
                process = self.start("train", self.ten_steps(**self.LONG))
                self.wait_for(lambda: "octavo train" in self.output(process), process)
                time.sleep(delay)
                process.send_signal(signal.SIGTERM)
                result = self.finish(process)
                self.assertEqual(result.code, STOPPED, result.out + result.err)
                self.assertRegex(result.out, "SIGTERM received( before the first step|: saving a checkpoint)")
                self.assertEqual("before the first step" in result.out, not checkpoints(self.dir / "checkpoints"))
                self.remove_runs()

    @staticmethod
    def output(process):
        return os.pread(process.captured[0].fileno(), 100_000, 0).decode()

    def test_while_saving(self):
        config = self.ten_steps(**self.LONG, checkpoint={"every": 1, "async": True})
        for number, ranks in ((signal.SIGTERM, 1), (signal.SIGINT, 2)):
            with self.subTest(ranks=ranks):
                process = self.start("train", config, ranks=ranks)
                self.wait_for_steps(process, 3)
                result = self.stop(process, number)
                if ranks == 1:
                    self.assertEqual(result.code, STOPPED, result.err)
                self.check_saved(config, exact=ranks == 1)
                self.remove_runs()

    def test_while_validating(self):
        """The signal interrupts a validation that takes many seconds."""
        held_out = write_megatron(self.root / "long_held_out", text_documents(4000, 300, seed=3))
        config = self.ten_steps(**self.LONG, data={"validation": [{"path": held_out}]},
                                validation={"every": 2, "batches": 100_000})
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                process = self.start("train", config, ranks=ranks)
                self.wait_for_steps(process, 1)
                time.sleep(0.5)
                process.send_signal(signal.SIGTERM if ranks == 1 else signal.SIGUSR1)
                result = self.finish(process)
                self.assertEqual(result.code, STOPPED, result.err)
                self.assertEqual(checkpoints(self.dir / "checkpoints"), ["step_00000002"])
                self.assertNotIn("validation_loss", self.metrics()[2])
                self.assertIn("step 2: the signal cuts short the validation, so this step has no validation_loss", result.out)
                self.remove_runs()

    def test_repeated_signals_are_one_request(self):
        process = self.start_long()
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            process.send_signal(number)
            time.sleep(0.001)
        self.assert_stopped(self.finish(process))
        self.check_saved(self.ten_steps(**self.LONG))

    # With these options mpirun does not end the other ranks when a rank has ended.
    LOOK_ON = ("--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0")

    def test_a_request_when_a_rank_is_gone_saves_nothing(self):
        """A batch system sends SIGTERM to the remaining ranks. The watchdog is off."""
        process = self.start_long("parallel.timeout_s=0", ranks=2, launcher_options=self.LOOK_ON)
        first, second = self.ranks_of(process)
        os.kill(second, signal.SIGKILL)
        self.wait_for(lambda: not os.path.exists(f"/proc/{second}"), process)
        os.kill(first, signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(len(result.octavo_lines()), 1, result.err)
        self.assertRegex(result.octavo_lines()[0], r"octavo: rank \d: rank \d is gone \(killed, or it crashed\), so the run ends")
        self.assertNotIn("saving a checkpoint", result.out)
        self.assertEqual(checkpoints(self.dir / "checkpoints"), [])

    def test_a_killed_pipeline_stage_is_named(self):
        stages = ("parallel.pipeline_parallel=2", "training.micro_batch_size=1", "model.num_layers=2")
        process = self.start_long(*stages, ranks=2, launcher_options=self.LOOK_ON)
        os.kill(self.ranks_of(process)[-1], signal.SIGKILL)
        result = self.finish(process)
        self.assertEqual(len(result.octavo_lines()), 1, result.err)
        self.assertRegex(result.octavo_lines()[0], r"octavo: rank \d: rank (\d) of pipeline stage \1 is gone \(killed, or it crashed\)")

    def test_a_later_ctrl_c_ends_at_once(self):
        """One rank is stopped forever, and the other one waits for it."""
        process = self.start_long(ranks=2)
        first, second = self.ranks_of(process)
        os.kill(second, signal.SIGSTOP)
        os.kill(first, signal.SIGINT)
        time.sleep(2.5)
        self.assertIsNone(process.poll())
        os.kill(first, signal.SIGINT)
        self.assertIn("on signal 2", self.finish(process).err)

    def test_no_terminal_and_no_reader(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                reader, writer = os.pipe()
                process = self.start("train", self.ten_steps(training={"steps": 60}), ranks=ranks, stdout=writer)
                os.close(writer)
                os.read(reader, 1)
                os.close(reader)
                if ranks == 1:
                    process.send_signal(signal.SIGHUP)
                self.assertEqual(self.finish(process).code, DONE)
                self.assertEqual(max(self.metrics()), 60)
                self.assertEqual(checkpoints(self.dir / "checkpoints"), ["step_00000060"])
                self.remove_runs()

    def test_output_that_is_closed_from_the_start(self):
        config = self.ten_steps(training={"steps": 3})
        line = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", os.environ["OCTAVO"], "train", str(config)]
        self.assertEqual(self.finish(self.start_line(line)).code, DONE)
        self.assertEqual(sorted(self.metrics()), [1, 2, 3])
        # Only log.txt has the console output, with a time on each line. No other file was opened in place of the console.
        text = b"".join(path.read_bytes() for path in (self.dir / "log").iterdir() if path.name != "log.txt")
        self.assertNotIn(b"octavo train", text)
        self.assertTrue(all(line.startswith("20") for line in (self.dir / "log/log.txt").read_text().splitlines()))
