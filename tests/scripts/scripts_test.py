"""Tests of the Python scripts that need only the standard library. They run with python3 -m unittest."""

import argparse
import base64
import contextlib
import functools
import hashlib
import http.server
import io
import json
import os
import sys
import tarfile
import threading
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_speed  # noqa: E402
import count_tests  # noqa: E402
import fetch_flash_attention  # noqa: E402
import plot_metrics  # noqa: E402
from scratch import ScratchTest  # noqa: E402


class CheckSpeedTest(ScratchTest):
    def check(self, step_ms, *arguments, device="1 rank on a GPU"):
        """Compares a program whose steps take `step_ms` with the recorded 100 ms. Returns the exit code and what is printed."""
        found = {"device": device, "step_ms": step_ms, "ops": [{"op": "qkv", "ms": 60.0}, {"op": "sdpa", "ms": step_ms - 60}]}
        program = Path(self.write("octavo", f"#!/bin/sh\necho '{json.dumps(found)}'\n"))
        program.chmod(0o755)
        self.write("speeds.json", json.dumps({"1 rank on a GPU": {"bfloat16": {"step": 100.0, "qkv": 60.0, "sdpa": 40.0}}}))
        line = ["check_speed.py", "--speeds", str(self.root / "speeds.json"), *arguments]
        with unittest.mock.patch.dict(os.environ, OCTAVO=str(program)), unittest.mock.patch.object(sys, "argv", line):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                return check_speed.main(), out.getvalue()

    def test_a_slower_step_fails_and_names_the_op(self):
        self.assertEqual(self.check(102.9)[0], 0)
        code, printed = self.check(104.0)
        self.assertEqual(code, 1)
        self.assertIn("+4.0% of the recorded 100.0 ms\n  sdpa: 44.00 ms instead of 40.00, +4.00\n", printed)

    def test_another_device_is_refused_and_can_be_recorded(self):
        with self.assertRaises(SystemExit) as refused, contextlib.redirect_stderr(io.StringIO()):
            self.check(90.0, device="1 rank on another")
        self.assertEqual(refused.exception.code, 2)
        self.check(90.0, "--record", device="1 rank on another")
        speeds = json.loads((self.root / "speeds.json").read_text())
        self.assertEqual(speeds["1 rank on another"]["bfloat16"], {"step": 90.0, "qkv": 60.0, "sdpa": 30.0})


class PlotMetricsTest(ScratchTest):
    def test_later_line_of_a_step_counts_and_half_a_line_is_left_out(self):
        path = self.write(
            "metrics.jsonl",
            '{"step": 2, "loss": 3.0}\n{"step": 1, "loss": 4.0}\n{"step": 2, "loss": 2.5, "validation_loss": 2.75}\n{"step": 3, "lo',
        )
        with contextlib.redirect_stderr(io.StringIO()) as warnings:
            metrics = plot_metrics.read_metrics(path)
        self.assertEqual([entry["step"] for entry in metrics], [1, 2])
        self.assertEqual(metrics[1]["loss"], 2.5)
        self.assertEqual(plot_metrics.last_validation_loss(metrics), 2.75)
        self.assertIn(":4:", warnings.getvalue())

    def test_what_a_run_left_is_not_drawn(self):
        # The run resumes after step 3 and repeats the old values.
        lines = [(1, 4.0), (5, 3.0), (10, 2.5), (4, 3.2), (5, 3.0), (6, 2.9)]
        path = self.write("metrics.jsonl", "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in lines))
        self.assertEqual([entry["step"] for entry in plot_metrics.read_metrics(path)], [1, 4, 5, 6, 10])
        with open(path, "a", encoding="utf-8") as file:
            # Step 5 with another loss: the run was repeated from here, so the older steps from 5 on do not count.
            file.write('{"step": 5, "loss": 3.5}\n')
        self.assertEqual([(entry["step"], entry["loss"]) for entry in plot_metrics.read_metrics(path)], [(1, 4.0), (4, 3.2), (5, 3.5)])

    def test_an_output_replaces_only_a_picture(self):
        parser = argparse.ArgumentParser()
        check = functools.partial(plot_metrics.check_output, parser, mark=plot_metrics.PICTURE_MARK)
        for name, content in (("empty.png", ""), ("loss.png", f"PNG {plot_metrics.PICTURE_MARK}")):
            check(Path(self.write(name, content)))
        check(self.root / "new.png")
        self.write("metrics.jsonl", "{}")
        (self.root / "link.png").symlink_to("loss.png")
        for name in ("metrics.jsonl", "link.png", ".", "no/loss.png"):
            with self.subTest(name), contextlib.redirect_stderr(io.StringIO()) as message:
                with self.assertRaises(SystemExit) as refused:
                    check(self.root / name)
                self.assertEqual(refused.exception.code, 2)
                self.assertIn("expected", message.getvalue())

    def test_no_validation(self):
        self.assertIsNone(plot_metrics.last_validation_loss([{"step": 1, "loss": 4.0}]))


class FetchFlashAttentionTest(ScratchTest):
    """Tests downloads from a package index on this machine that requires a name and a password."""

    PAGES = (
        '<a href="../../files/{}#sha256=0">x</a>',
        "<a href='/files/{}?token=1&amp;x=2'>x</a>",
        '<a href="/files/old-{}">y</a><a href="/files/{}">x</a>',
    )

    def setUp(self):
        super().setUp()
        self.served = self.root / "server"
        (self.served / "simple/xformers").mkdir(parents=True)
        (self.served / "files").mkdir()
        files = {name: f"content of {name}".encode() for name in (
            "LICENSE",
            "setup.py",
            "third_party/flash-attention/hopper/flash.h",
            "third_party/flash-attention/hopper/../../../escaped.h",
            "third_party/flash-attention/csrc/cutlass/include/cute/tensor.hpp",
            "third_party/flash-attention/csrc/cutlass/LICENSE.txt",
        )}
        self.package = self.served / "files" / fetch_flash_attention.PACKAGE
        with tarfile.open(self.package, "w:gz") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(fetch_flash_attention.ROOT + name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                wanted = "Basic " + base64.b64encode(b"user:pass word").decode()
                if self.headers.get("Authorization") == wanted:
                    return super().do_GET()
                return self.send_error(401)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Handler, directory=str(self.served))
        )
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def run_script(self, out, user="user:pass%20word", checksum=None):
        """Returns the message with which the script fails, or None if it succeeds."""
        index = f"http://{user}@127.0.0.1:{self.server.server_address[1]}/simple/"
        checksum = checksum or hashlib.sha256(self.package.read_bytes()).hexdigest()
        with (
            unittest.mock.patch.dict(os.environ, {"PIP_INDEX_URL": index}),
            unittest.mock.patch.object(fetch_flash_attention, "SHA256", checksum),
            unittest.mock.patch.object(sys, "argv", ["fetch_flash_attention.py", str(out)]),
        ):
            try:
                return fetch_flash_attention.main()
            except SystemExit as end:
                return end.code

    def test_takes_what_is_needed(self):
        for number, page in enumerate(self.PAGES):
            (self.served / "simple/xformers/index.html").write_text(page.replace("{}", fetch_flash_attention.PACKAGE))
            out = self.root / f"out{number}"
            self.assertIsNone(self.run_script(out))
            found = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
            self.assertEqual(
                found,
                ["LICENSE", "SHA256", "csrc/cutlass/LICENSE.txt", "csrc/cutlass/include/cute/tensor.hpp", "hopper/flash.h"],
            )
        self.assertEqual(list(self.root.rglob("escaped.h")), [])

    def test_says_what_is_wrong_without_the_password(self):
        out = self.root / "out"
        index = self.served / "simple/xformers/index.html"
        index.write_text("<a href='other-1.0.tar.gz'>x</a>")
        self.assertIn("has no xformers-", self.run_script(out))
        index.write_text(self.PAGES[2].replace("{}", fetch_flash_attention.PACKAGE))
        self.assertIn("expected 00", self.run_script(out, checksum="00"))
        sentence = self.run_script(out, user="user:wrong")
        self.assertIn("401", sentence)
        self.assertNotIn("wrong", sentence)
        self.package.write_bytes(b"cut short")
        self.assertIn("fetch_flash_attention.py: ", self.run_script(out))
        self.assertFalse(out.exists())


class CountTestsTest(ScratchTest):
    REPORT = """<testsuite>
      <testcase name="a" status="run"><system-out>fine</system-out></testcase>
      <testcase name="b" status="fail"><system-out>wrong</system-out></testcase>
      <testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
        <system-out>c_test.cpp:12: Skipped
needs a GPU
</system-out></testcase>
      <testcase name="d" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>skipped: no tool
</system-out></testcase>
      <testcase name="e" status="notrun"><skipped message=""/><system-out>Unable to find executable</system-out></testcase>
      </testsuite>"""

    def run_main(self, report):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = count_tests.main([self.write("ctest.xml", report)])
        return code, output.getvalue().splitlines()

    def test_counts_and_reasons(self):
        code, lines = self.run_main(self.REPORT)
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "1 passed, 2 failed, 2 skipped")
        self.assertIn("skipped 1: needs a GPU", lines)
        self.assertIn("skipped 1: no tool", lines)
        self.assertEqual(lines[1], "    wrong", "what a failed test printed follows it")

    def test_a_suite_counts_as_its_tests(self):
        (self.root / "results").mkdir()
        self.write("results/a.xml", """<testsuites><testsuite>
          <testcase classname="S" name="fine"/>
          <testcase classname="S" name="wrong"><failure message="no"/></testcase>
          <testcase classname="S" name="gpu"><skipped message="s_test.cpp:3&#x0A;needs a GPU&#x0A;"/></testcase>
          </testsuite></testsuites>""")
        code, lines = self.run_main(
            '<testsuite><testcase name="a" status="fail"><system-out>what it says</system-out></testcase></testsuite>')
        self.assertEqual(code, 1)
        self.assertTrue(lines[0].endswith("ctest.xml: a: S.wrong"), lines)
        self.assertEqual(lines[1:], ["    what it says", "skipped 1: needs a GPU", "1 passed, 1 failed, 1 skipped"])

    def test_a_suite_that_fails_after_its_tests_has_failed(self):
        (self.root / "results").mkdir()
        self.write("results/a.xml", '<testsuites><testcase classname="S" name="fine"/></testsuites>')
        code, lines = self.run_main('<testsuite><testcase name="a" status="fail"><system-out>leaks</system-out></testcase></testsuite>')
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_all_passed(self):
        code, lines = self.run_main('<testsuite><testcase name="a" status="run"/></testsuite>')
        self.assertEqual((code, lines), (0, ["1 passed, 0 failed, 0 skipped"]))

    def test_nothing_ran_is_a_failure(self):
        self.assertEqual(self.run_main("<testsuite/>")[0], 1)


if __name__ == "__main__":
    unittest.main()
