"""Tests of the display of a run on a terminal, read through a pseudo terminal of a given width."""

import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from support import DONE, HANG_S, STOPPED, Scratch, checkpoints, command, environment, text_documents, write_megatron

CLEAR = "\r\x1b[2K"
STYLE = re.compile(r"\x1b\[[\d;]*m")


class Terminal:
    """Runs octavo with a terminal as its stdin, stdout and stderr, as a shell does."""

    def __init__(self, line, columns, directory, **variables):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(line, stdin=slave, stdout=slave, stderr=slave, cwd=directory, start_new_session=True,
                                        env=environment() | {"TERM": "xterm"} | variables,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.text = ""

    def read(self, until=None, seconds=HANG_S):
        """Returns everything that is written up to `until`, or up to the end."""
        deadline = time.monotonic() + seconds
        while until is None or until not in self.text:
            assert time.monotonic() < deadline, self.text
            if not select.select([self.master], [], [], 1)[0]:
                continue
            try:
                piece = os.read(self.master, 65536)
            # No process has the terminal open any more.
            except OSError as error:
                assert error.errno == errno.EIO
                piece = b""
            if not piece:
                assert until is None, self.text
                break
            self.text += piece.decode()
        return self.text

    def type(self, text):
        os.write(self.master, text.encode())

    def finish(self):
        text = self.read()
        os.close(self.master)
        return self.process.wait(10), text


class TerminalTest(Scratch):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.corpus = write_megatron(cls.root / "corpus", text_documents(40, 300))

    def terminal(self, *arguments, columns=120, **variables):
        terminal = Terminal(command(arguments), columns, self.dir, **variables)
        self.addCleanup(lambda: terminal.process.poll() is None and terminal.process.kill())
        return terminal

    def shown(self, text):
        """Returns the lines that stay on the screen, and each progress line that stood below them."""
        lines, progress = [], []
        for line in text.split("\r\n"):
            *replaced, last = STYLE.sub("", line.replace(CLEAR, "\0")).split("\0")
            lines.append(last)
            progress += [one for one in replaced if one]
        return lines, progress

    def test_progress(self):
        config = self.config(self.corpus, data={"validation": [{"path": self.corpus}], "allow_overlap": True}, training={"steps": 30},
                             validation={"every": 10, "batches": 1}, logging={"every": 5})
        for columns, longest in ((200, 100), (60, 59)):
            with self.subTest(columns=columns):
                where = (f"logging.dir=log{columns}", f"checkpoint.dir=saved{columns}")
                code, text = self.terminal("train", config, *where, columns=columns).finish()
                self.assertEqual(code, DONE, text)
                lines, progress = self.shown(text)
                self.assertTrue(progress, text)
                for line in progress:
                    self.assertLessEqual(len(line), longest)
                    self.assertRegex(line, r"^\d+\.\d%  step \d+/30  .*loss \d\.\d{4}  .*eta \d")
                    self.assertNotIn("mfu", line)
                self.assertIn("\x1b[1;32m", text)
                self.assertEqual(lines[-1], "", "a shell's prompt begins a line")
                screen = lines[: next(i for i, line in enumerate(lines) if line.startswith("started in"))]
                self.assertGreater(len(screen), 10)
                self.assertLessEqual(max(map(len, screen)), 100)
                self.assertEqual(sum(line.startswith("step 10/30 ") and "validation_loss" in line for line in lines), 1)
                self.assertFalse([line for line in lines if line.startswith("step 5/30")], "not in place of the progress")
                self.assertEqual(len([line for line in lines if line.startswith("100.0%")]), 1, text)
                log = (self.dir / f"log{columns}/log.txt").read_text()
                self.assertNotIn("\x1b", log)
                for step in range(5, 31, 5):
                    self.assertEqual(log.count(f"  step {step}/30  loss "), 1, log)

    def test_a_run_is_shown_as_a_table(self):
        config = self.config(self.corpus, training={"steps": 3}, logging={"fp8_stats_every": 1})
        self.run_octavo("train", config)
        code, text = self.terminal("inspect", "log").finish()
        self.assertEqual(code, DONE, text)
        self.assertRegex(text, r"\Arun             log\r\nsteps           3 of 3\r\n")
        self.assertRegex(text, r"warnings        1\r\n  \S+Z  logging.fp8_stats_every is 1[^\r\n]*\r\n\Z")
        code, text = self.terminal("inspect", "log", "--json").finish()
        self.assertEqual(text.replace("\r\n", "\n"), self.run_octavo("inspect", "log").out)

    def test_color(self):
        config = self.config(self.corpus, training={"steps": 2})
        for key, variables, colored in (("auto", {}, True), ("auto", {"NO_COLOR": "1"}, False), ("never", {}, False),
                                        ("always", {"NO_COLOR": "1"}, True)):
            arguments = ("train", config, f"logging.color={key}", "checkpoint.resume=never", "logging.fp8_stats_every=1")
            code, text = self.terminal(*arguments, **variables).finish()
            self.assertEqual(code, DONE, text)
            self.assertEqual("\x1b[33mwarning: logging.fp8_stats_every is 1" in text, colored, text)
            self.assertEqual(bool(STYLE.search(text)), colored, text)
        out = self.run_octavo(*arguments).out
        self.assertIn("\x1b[33mwarning: logging.fp8_stats_every is 1", out)
        self.assertNotIn(CLEAR, out)
        self.assertIn("step 2/2  loss ", out)
        out = self.run_octavo(*arguments[:2], "checkpoint.resume=never").out
        self.assertNotIn("\x1b", out)
        code, text = self.terminal(*arguments[:2], "checkpoint.resume=never", TERM="dumb").finish()
        self.assertNotIn("\x1b", text)
        self.assertIn("step 2/2  loss ", text)

    def test_ctrl_c(self):
        config = self.config(self.corpus, training={"steps": 100_000})
        terminal = self.terminal("train", config)
        terminal.read(" wps")  # This waits for the first progress line.
        terminal.type("\x03")
        code, text = terminal.finish()
        self.assertEqual(code, STOPPED, text)
        self.assertRegex(text, r"SIGINT received: saving a checkpoint after the current step, then ending; Ctrl-C again ends at once")
        self.assertEqual(len(checkpoints(self.dir / "checkpoints")), 1)

    def test_a_second_ctrl_c_ends_at_once(self):
        """The second Ctrl-C comes during a step that takes many seconds."""
        config = self.config(self.corpus, training={"steps": 100_000, "global_batch_size": 80_000})
        # The batch of the step is assembled during this time.
        for seconds in (0.5, 4):
            terminal = self.terminal("train", config)
            terminal.read("started in")
            time.sleep(seconds)
            terminal.type("\x03")
            if "before the first step" not in terminal.read("SIGINT received"):
                break
            terminal.finish()
        terminal.read("Ctrl-C again ends at once", seconds=5)
        terminal.type("\x03")
        code, text = terminal.finish()
        self.assertEqual(code, -signal.SIGINT, text)
        self.assertFalse(checkpoints(self.dir / "checkpoints"))
