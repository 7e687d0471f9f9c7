"""Tests of the Python scripts that need nothing but the standard library. Run with python3 -m unittest."""

import array
import contextlib
import io
import json
import os
import struct
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import count_tests  # noqa: E402
import plot_metrics  # noqa: E402
import tokenize_hf  # noqa: E402


class ScratchTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)


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

    def test_no_validation(self):
        self.assertIsNone(plot_metrics.last_validation_loss([{"step": 1, "loss": 4.0}]))


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

    def test_all_passed(self):
        code, lines = self.run_main('<testsuite><testcase name="a" status="run"/></testsuite>')
        self.assertEqual((code, lines), (0, ["1 passed, 0 failed, 0 skipped"]))

    def test_nothing_ran_is_a_failure(self):
        self.assertEqual(self.run_main("<testsuite/>")[0], 1)


class TokenFileWriterTest(ScratchTest):
    def write_dataset(self, vocab_size, documents):
        prefix = str(self.root / "out" / "tokens")
        writer = tokenize_hf.TokenFileWriter(prefix, vocab_size)
        for tokens in documents:
            writer.add_document(array.array(writer.typecode, tokens).tobytes())
        writer.finish({"tokenizer": "t", "vocab_size": vocab_size})
        return Path(prefix + ".idx").read_bytes(), Path(prefix + ".bin").read_bytes(), Path(prefix + ".json")

    def test_u16(self):
        idx, data, sidecar = self.write_dataset(65535, [[1, 2, 65534], [7], [8, 9]])
        self.assertEqual(idx[:34], b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4))
        self.assertEqual(idx[34:], struct.pack("<3i3q4q", 3, 1, 2, 0, 6, 8, 0, 1, 2, 3))
        self.assertEqual(data, struct.pack("<6H", 1, 2, 65534, 7, 8, 9))
        self.assertEqual(json.loads(sidecar.read_text()), {"tokenizer": "t", "vocab_size": 65535, "documents": 3, "tokens": 6})

    def test_i32_for_large_vocabularies(self):
        idx, data, _ = self.write_dataset(65536, [[65535, 3]])
        self.assertEqual(idx[17], 4)
        self.assertEqual(data, struct.pack("<2i", 65535, 3))

    def test_nothing_appears_before_finish(self):
        prefix = str(self.root / "tokens")
        writer = tokenize_hf.TokenFileWriter(prefix, 300)
        writer.add_document(b"\x01\x00")
        writer.discard()
        self.assertEqual(list(self.root.iterdir()), [])


class ReadDocumentsTest(ScratchTest):
    def read(self, *paths):
        return list(tokenize_hf.read_documents(paths))

    def test_directory_in_order_of_paths_without_binary_files(self):
        self.write("d/b.txt", "second")
        self.write("d/a/z.txt", "first")
        self.write("d/c.o", b"\x00\x01")
        self.write("d/e.jsonl", '{"text": "third"}\n\n{"text": "fourth", "id": 1}\n')
        self.assertEqual(self.read(str(self.root / "d")), ["first", "second", "third", "fourth"])

    def test_bad_inputs_are_named(self):
        for name, content, message in [
            ("x.jsonl", '{"text": "a"}\n{"body": "b"}\n', "x.jsonl:2: "),
            ("y.jsonl", '{"text": 5}\n', "y.jsonl:1: "),
            ("z.jsonl", "not json\n", "z.jsonl:1: "),
            ("n.txt", b"ab\x00c", "n.txt: is not text"),
        ]:
            with self.subTest(name), self.assertRaisesRegex(tokenize_hf.InputError, message):
                self.read(self.write(name, content))
        with self.assertRaisesRegex(tokenize_hf.InputError, "missing.txt: no such file"):
            self.read(str(self.root / "missing.txt"))

    def test_what_is_left_out_is_counted_by_kind(self):
        self.write("d/a.txt", "text")
        self.write("d/latin1.txt", "caf\xe9".encode("latin-1"))
        self.write("d/b.parquet", b"PAR1\x00\x01")
        self.write("d/c.jsonl.gz", bytes([0x1F, 0x8B, 8, 1, 255]))  # no NUL
        self.write("d/more/d.JSONL.gz", bytes([0x1F, 0x8B, 8, 1, 255]))
        self.write("d/core", b"\x00")
        os.mkfifo(self.root / "d/fifo")
        os.symlink("a.txt", self.root / "d/link")
        sources = tokenize_hf.Sources()
        self.assertEqual(list(tokenize_hf.read_documents([str(self.root / "d")], sources)), ["text", "caf\ufffd"])
        self.assertEqual(sources.taken, 2)
        self.assertEqual(sources.left_out, {".parquet": 1, ".jsonl.gz": 2, "without a suffix": 1, "special file": 1,
                                            "symbolic link": 1})
        self.assertRegex(sources.describe_left_out(), r"left out 6 files: 2 \.jsonl\.gz, .*1 \.parquet")

    def test_batches_keep_order_and_leave_out_empty_documents(self):
        texts = ["x" * 600_000, "", "y" * 600_000, "z"]
        self.assertEqual([len(batch) for batch in tokenize_hf.batches(texts)], [2, 1])


if __name__ == "__main__":
    unittest.main()
