"""Tests of saves that fail because of full disks, removed directories, or old checkpoints that cannot be removed."""

import os
import resource
import shutil
import signal
import subprocess

from resume_test import Resuming
from support import AT_ONCE, FAILED, STOPPED, checkpoint_tensors, checkpoints, snapshot


def small_files():
    # Python ignores the signal for exceeding the limit, but children of a shell do not.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


class FailedSaveTest(Resuming):
    def mount(self, directory, *options):
        directory.mkdir(exist_ok=True)
        command = ["mount", *options, directory]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            self.skipTest("needs the right to mount")
        self.addCleanup(subprocess.run, ["umount", "-l", directory], capture_output=True)
        return directory

    def small_disk(self, directory, size):
        return self.mount(self.dir / directory, "-t", "tmpfs", "-o", f"size={size}", "tmpfs")

    @staticmethod
    def output(process):
        return os.pread(process.captured[0].fileno(), 1 << 20, 0).decode()

    def warnings(self, output):
        return [line for line in output.splitlines() if "is not saved" in line]

    def assert_resumes_exactly(self, reference):
        """Expects that a resumed run repeats the steps after step 4 exactly."""
        self.train(self.ten_steps(optimizer={"schedule": "constant"}), "checkpoint.every=0", "checkpoint.keep=1")
        losses, tensors = reference
        found = {step: value for step, value in self.losses().items() if step > 4}
        self.assertEqual(found, {step: value for step, value in losses.items() if step > 4})
        self.assertEqual(checkpoint_tensors(self.dir / "checkpoints/step_00000010"), tensors)

    def test_run_goes_on_and_the_final_save_ends_it(self):
        """The saves of steps 6, 8 and 10 fail. The run prints two warnings and ends with one sentence, leaves no files, and can be
        resumed."""
        config = self.ten_steps(optimizer={"schedule": "constant"})
        for mode in ("true", "false"):
            with self.subTest(asynchronous=mode):
                self.remove_runs()
                reference = self.reference(config)
                self.train(config, "checkpoint.every=2", "training.steps=4")
                before = snapshot(self.dir / "checkpoints")
                result = self.run_octavo("train", config, "checkpoint.every=2", f"checkpoint.async={mode}", code=FAILED,
                                         preexec_fn=small_files)
                self.assertEqual(max(self.losses()), 10, "no step is lost")
                warnings = self.warnings(result.out)
                # The save of step 8 may still be running when the last step ends.
                self.assertEqual(len(warnings) + result.out.count("the pending checkpoint is lost"), 2, result.out)
                self.assertRegex(warnings[0], r"step 6 is not saved: .*rank_00000.safetensors.*File too large; a "
                                              r"checkpoint takes [\d,]+ bytes, [\d,]+ are free")
                [sentence] = result.octavo_lines()
                self.assertRegex(sentence, "step 10 is not saved: .* it is the final checkpoint, and the last good "
                                           "one is checkpoints/step_00000004")
                self.assertEqual(snapshot(self.dir / "checkpoints"), before, "earlier checkpoints are unchanged, and no files are left")
                self.assert_resumes_exactly(reference)

    def start_saving(self, ranks, directory, **checkpoint):
        """Starts a long run in a fresh folder and waits for its first checkpoint."""
        self.remove_runs()
        config = self.ten_steps(training={"steps": 100_000, "micro_batch_size": 2},
                                checkpoint={"dir": directory.name, "every": 20, "async": True} | checkpoint)
        process = self.start("train", config, ranks=ranks, variables=AT_ONCE)
        self.wait_for(lambda: checkpoints(directory), process)
        return process

    def wait_for_warning(self, process):
        self.wait_for(lambda: self.warnings(self.output(process)), process)
        return self.warnings(self.output(process))[0]

    def wait_for_another_checkpoint_and_stop(self, process, directory):
        there = checkpoints(directory)
        self.wait_for(lambda: checkpoints(directory)[-1] > there[-1], process)
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(self.finish(process).code, STOPPED)
        self.assertEqual([path.name for path in directory.iterdir() if path.name.startswith(".")], [])

    def test_disk_that_is_full_for_a_while(self):
        """The message names the missing bytes, the incomplete save is removed, and the next save succeeds."""
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                directory = self.small_disk(f"on{ranks}", "6000k")
                process = self.start_saving(ranks, directory, keep=2, max_failed_saves=1000)
                try:
                    with open(directory / "filler", "wb", buffering=0) as filler:
                        while True:
                            filler.write(bytes(4096))
                except OSError:
                    pass
                warning = self.wait_for_warning(process)
                self.assertRegex(warning, r"No space left on device; a checkpoint takes [\d,]+ bytes, [\d,]+ are free, "
                                          r"[\d,]+ too few; .* \(failure 1 of 1000\)")
                (directory / "filler").unlink()
                self.wait_for_another_checkpoint_and_stop(process, directory)

    def test_directory_that_vanishes_and_comes_back(self):
        for ranks in (1, 2):
            directory, gone = self.dir / f"on{ranks}", self.dir / f"gone{ranks}"
            process = self.start_saving(ranks, directory, max_failed_saves=1000)
            directory.rename(gone)
            self.wait_for_warning(process)
            self.assertFalse(directory.exists(), "nothing is written where the file system was")
            gone.rename(directory)
            self.wait_for_another_checkpoint_and_stop(process, directory)

    def test_directory_that_vanished(self):
        """The file system disappears during training. The run ends with an error and does not hang."""
        for ranks in (1, 2):
            directory = self.dir / f"on{ranks}"
            process = self.start_saving(ranks, directory)
            directory.rename(self.dir / f"gone{ranks}")
            directory.write_text("a file")
            result = self.finish(process)
            self.assertEqual(result.code, FAILED, result.err)
            [sentence] = result.octavo_lines()
            self.assertIn("3 in a row failed", sentence)

    def test_old_checkpoint_that_cannot_be_removed(self):
        config = self.ten_steps(checkpoint={"every": 2, "keep": 1}, optimizer={"schedule": "constant"})
        self.train(config, "training.steps=2")
        old = self.dir / "checkpoints/step_00000002"
        self.mount(old, "--bind", old)  # A mount point cannot be renamed.
        left = self.dir / "checkpoints/.tmp_step_00000099"
        (self.dir / "elsewhere").mkdir()
        self.mount(left, "--bind", self.dir / "elsewhere")
        for ranks, steps in ((1, 6), (2, 8)):
            result = self.run_octavo("train", config, f"training.steps={steps}", ranks=ranks)
            self.assertRegex(result.out, "old checkpoints could not be removed; the next save tries again: checkpoints/")
            self.assertIn("the remains of an earlier run could not be removed; the next save tries again: checkpoints/.tmp_step", result.out)
            self.assertEqual(checkpoints(self.dir / "checkpoints"), ["step_00000002", f"step_{steps:08}"])
        subprocess.run(["umount", left], check=True)
        subprocess.run(["umount", old], check=True)
        self.train(config)
        self.assertEqual(checkpoints(self.dir / "checkpoints"), ["step_00000010"])

    def test_free_space_is_checked_before_the_first_step(self):
        config = self.ten_steps(checkpoint={"every": 2, "keep": 3})
        directory = self.small_disk("checkpoints", "3000k")
        result = self.run_octavo("train", config, code=FAILED)
        self.assertRegex(result.out, r"checkpoint.dir checkpoints: a checkpoint takes [\d,]+ bytes, [\d,]+ are free; "
                                     r"only 2 of the 4 further checkpoints that the run keeps at a time fit")
        self.assertLess(result.out.index("further checkpoints that the run keeps"), result.out.index("step 1/10"))
        for ranks in (1, 2):
            for resume in ("auto", "never"):
                sentence = self.refused("train", config, f"checkpoint.resume={resume}", ranks=ranks)
                self.assertRegex(sentence, r"takes [\d,]+ bytes, [\d,]+ are free, [\d,]+ too few, so not a single checkpoint fits")
        for enough in ("checkpoint.keep=1", "checkpoint.every=0"):
            for name in checkpoints(directory):
                shutil.rmtree(directory / name)
            shutil.rmtree(self.dir / "log")
            result = self.run_octavo("train", config, enough)
            self.assertNotIn("further checkpoints that the run keeps", result.out)
