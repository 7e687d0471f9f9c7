"""Tests of signals to a run that was started by mpirun or scripts/launch_mpirun.sh, at any time."""

import json
import os
import shutil
import signal
import time

from resume_test import Resuming, parent
from support import AT_ONCE, DONE, ROOT, STOPPED, checkpoint_tensors, checkpoints, metrics_lines, text_documents, write_megatron


class Signalled(Resuming):
    LONG = {"training": {"steps": 100_000, "micro_batch_size": 2}, "optimizer": {"schedule": "constant"}}

    def start_script(self, *arguments, ranks=2, stdout=None, more=AT_ONCE):
        """Starts the script in a new process group, as a shell or `timeout` would."""
        variables = {"NPROC": str(ranks), "OCTAVO": os.environ["OCTAVO"]} | more
        return self.start_line([ROOT / "scripts/launch_mpirun.sh", *map(str, arguments)], stdout, variables,
                               start_new_session=True)

    def wait_for_steps(self, process, steps):
        self.wait_for(lambda: metrics_lines(self.dir / "log/metrics.jsonl") >= steps, process)

    def check_saved(self, config, result, first=1):
        """Expects that the run ended with an intact checkpoint of its last step, and that training resumes from it exactly."""
        saved = checkpoints(self.dir / "checkpoints")
        self.assertTrue(saved, f"{result.code} {result.out[-500:]} {result.err[-500:]}")
        step = int(saved[-1][5:])
        self.assertGreaterEqual(step, first)
        self.assertEqual(max(self.metrics()), step, "the last step is logged")
        self.assertTrue(json.loads(self.run_octavo("inspect", f"checkpoints/{saved[-1]}").out)["intact"])
        total = step + 3
        self.train(config, f"training.steps={total}", "checkpoint.every=0")
        self.train(config, f"training.steps={total}", "checkpoint.every=0", "logging.dir=whole", "checkpoint.dir=whole")
        name = f"step_{total:08}"
        found, whole = (checkpoint_tensors(self.dir / where / name) for where in ("checkpoints", "whole"))
        self.assertEqual(sorted(found), sorted(whole))
        return found, whole

    def check_exact(self, config, result):
        found, whole = self.check_saved(config, result)
        self.assertEqual(found, whole)

    def ranks_of(self, process):
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == process.pid]


class ScriptSignalTest(Signalled):
    def check(self, number, ranks, more=AT_ONCE):
        config = self.ten_steps(**self.LONG)
        process = self.start_script(config, ranks=ranks, more=more)
        self.wait_for_steps(process, 3)
        process.send_signal(number)
        result = self.finish(process)
        self.assertEqual(result.code, STOPPED, result.out[-500:] + result.err)
        self.assertIn("SIGUSR1 received: saving a checkpoint after the current step", result.out)
        self.assertRegex(result.err, r"the ranks are told to save a checkpoint and end\n\Z", "Open MPI adds nothing")
        self.assertEqual(len(checkpoints(self.dir / "checkpoints")), 1)
        self.assertEqual(max(self.metrics()), int(checkpoints(self.dir / "checkpoints")[0][5:]))

    def test_sigterm(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.check(signal.SIGTERM, ranks)
                shutil.rmtree(self.dir / "checkpoints")
                shutil.rmtree(self.dir / "log")

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
        result = self.finish(process)
        self.assertEqual(result.code, STOPPED, result.out[-500:] + result.err)
        self.assertEqual(len(checkpoints(self.dir / "checkpoints")), 1)

    def test_while_it_starts(self):
        for delay in (0.2, 0.6, 1.2):
            with self.subTest(delay):
                process = self.start_script(self.ten_steps(**self.LONG))
                time.sleep(delay)
                process.send_signal(signal.SIGTERM)
                result = self.finish(process)
                self.assertEqual(result.code, STOPPED, result.out[-500:] + result.err)
                self.assertNotIn("mpirun ", result.err, "Open MPI adds nothing")

    def test_sigkill_to_the_script_ends_mpirun(self):
        # mpirun waits for its ranks here.
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
                for name in ("checkpoints", "log"):
                    shutil.rmtree(self.dir / name, ignore_errors=True)

    @staticmethod
    def output(process):
        return os.pread(process.captured[0].fileno(), 100_000, 0).decode()

    def test_while_saving(self):
        config = self.ten_steps(**self.LONG, checkpoint={"every": 1, "async": True})
        for number, ranks in ((signal.SIGTERM, 1), (signal.SIGINT, 2)):
            with self.subTest(ranks=ranks):
                process = self.start("train", config, ranks=ranks)
                self.wait_for_steps(process, 3)
                process.send_signal(number)
                result = self.finish(process)
                if ranks == 1:
                    self.assertEqual(result.code, STOPPED, result.err)
                    self.check_exact(config, result)
                else:
                    self.check_saved(config, result)
                for name in ("checkpoints", "log", "whole"):
                    shutil.rmtree(self.dir / name)

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
                began = time.monotonic()
                result = self.finish(process)
                self.assertEqual(result.code, STOPPED, result.err)
                self.assertLess(time.monotonic() - began, 6)
                self.assertEqual(checkpoints(self.dir / "checkpoints"), ["step_00000002"])
                self.assertNotIn("validation_loss", self.metrics()[2])
                self.assertIn("step 2: the signal cuts short the validation, so this step has no validation_loss", result.out)
                for name in ("checkpoints", "log"):
                    shutil.rmtree(self.dir / name)

    def test_repeated_signals_are_one_request(self):
        config = self.ten_steps(**self.LONG)
        process = self.start("train", config)
        self.wait_for_steps(process, 3)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            process.send_signal(number)
            time.sleep(0.001)
        result = self.finish(process)
        self.assertEqual(result.code, STOPPED, result.err)
        self.check_exact(config, result)

    def test_a_request_when_a_rank_is_gone_saves_nothing(self):
        """A batch system sends SIGTERM to the remaining ranks. In this test mpirun does not end them, and the watchdog is off."""
        look_on = ("--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0")
        process = self.start("train", self.ten_steps(**self.LONG), "parallel.timeout_s=0", ranks=2, launcher_options=look_on)
        self.wait_for_steps(process, 3)
        first, second = sorted(self.ranks_of(process))
        os.kill(second, signal.SIGKILL)
        self.wait_for(lambda: not os.path.exists(f"/proc/{second}"), process)
        os.kill(first, signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(len(result.octavo_lines()), 1, result.err)
        self.assertRegex(result.octavo_lines()[0], r"octavo: rank \d: rank \d is gone \(killed, or it crashed\), so the run ends")
        self.assertNotIn("saving a checkpoint", result.out)
        self.assertEqual(checkpoints(self.dir / "checkpoints"), [])

    def test_a_killed_pipeline_stage_is_named(self):
        look_on = ("--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0")
        stages = ("parallel.pipeline_parallel=2", "training.micro_batch_size=1", "model.num_layers=2")
        process = self.start("train", self.ten_steps(**self.LONG), *stages, ranks=2, launcher_options=look_on)
        self.wait_for_steps(process, 3)
        os.kill(max(self.ranks_of(process)), signal.SIGKILL)
        result = self.finish(process)
        self.assertEqual(len(result.octavo_lines()), 1, result.err)
        self.assertRegex(result.octavo_lines()[0], r"octavo: rank \d: rank (\d) of pipeline stage \1 is gone \(killed, or it crashed\)")

    def test_a_later_ctrl_c_ends_at_once(self):
        """One rank is stopped forever, and the other one waits for it."""
        process = self.start("train", self.ten_steps(**self.LONG), ranks=2)
        self.wait_for_steps(process, 3)
        first, second = sorted(self.ranks_of(process))
        os.kill(second, signal.SIGSTOP)
        os.kill(first, signal.SIGINT)
        time.sleep(2.5)
        self.assertIsNone(process.poll())
        os.kill(first, signal.SIGINT)
        result = self.finish(process)
        self.assertIn("on signal 2", result.err)

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
                shutil.rmtree(self.dir / "log")
                shutil.rmtree(self.dir / "checkpoints")

    def test_output_that_is_closed_from_the_start(self):
        config = self.ten_steps(training={"steps": 3})
        line = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", os.environ["OCTAVO"], "train", str(config)]
        self.assertEqual(self.finish(self.start_line(line)).code, DONE)
        self.assertEqual(sorted(self.metrics()), [1, 2, 3])
        # Only log.txt has the console output, with a time on each line. No other file was opened in place of the console.
        text = b"".join(path.read_bytes() for path in (self.dir / "log").iterdir() if path.name != "log.txt")
        self.assertNotIn(b"octavo train", text)
        self.assertTrue(all(line.startswith("20") for line in (self.dir / "log/log.txt").read_text().splitlines()))
