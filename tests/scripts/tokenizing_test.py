"""Tests of scripts/tokenizing within this process. Tests that need pyarrow or zstandard are skipped without them."""

import array
import collections
import contextlib
import gzip
import importlib.util
import io
import itertools
import json
import lzma
import os
import re
import struct
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from tokenizing import documents, merge, plan, progress  # noqa: E402
from tokenizing.encoding import batches  # noqa: E402
from tokenizing.errors import InputError, RunError  # noqa: E402
from tokenizing.inputs import Sources, find_sources  # noqa: E402
from tokenizing.part_files import PartFile, PartWriter  # noqa: E402
from tokenizing.run import parse_part  # noqa: E402
from tokenizing.token_files import TokenFileWriter, publish, read_sidecar  # noqa: E402
from scratch import ScratchTest  # noqa: E402
from tokenizing_cases import compress_zstd, random_texts, read_dataset, refuse, write_jsonl, write_parquet  # noqa: E402


def needs(module):
    return unittest.skipUnless(importlib.util.find_spec(module), f"the Python package {module} is not installed")


class PlannedTest(ScratchTest):
    def read(self, *paths, fields=("text",), part_bytes=1 << 20, sources=None):
        """Plans the parts of the inputs and returns the documents of all parts. `self.parts` is the number of parts."""
        sources = sources or Sources()
        planner = plan.Planner(find_sources(paths, sources, fields=fields), fields, part_bytes, "key")
        parts = list(planner.parts())
        self.parts = len(parts)
        self.assertEqual(len({part.name for part in parts}), len(parts))
        return [text for part in parts for piece in part.pieces for text in documents.read_piece(piece, fields, sources)]


class FormatsTest(PlannedTest):
    """Tests that every format gives the documents of the plain file, wherever it is divided."""

    def setUp(self):
        super().setUp()
        self.texts = random_texts(60, seed=5) + ["", "last"]
        self.jsonl = write_jsonl(self.root / "a.jsonl", self.texts).read_bytes()

    def check(self, path, more_parts=True, **options):
        for part_bytes in (50, 1500, 1 << 24):
            self.assertEqual(self.read(path, part_bytes=part_bytes, **options), self.texts)
            self.assertEqual(self.parts > 1, more_parts and part_bytes < 1 << 24, (path, part_bytes))

    def test_jsonl_in_ranges(self):
        self.check(str(self.root / "a.jsonl"))
        for last in ("", "\n", "\n\n  \n", "\r\n"):
            path = self.write("b.jsonl", self.jsonl.rstrip() + last.encode())
            for part_bytes in (31, 1000):
                with mock.patch.object(documents, "BLOCK_BYTES", 50):
                    self.assertEqual(self.read(path, part_bytes=part_bytes), self.texts)

    def test_every_byte_as_a_place_to_cut(self):
        texts = ["a", "", "b\n"]
        path = str(write_jsonl(self.root / "b.jsonl", texts))
        for part_bytes in range(1, 40):
            self.assertEqual(self.read(path, part_bytes=part_bytes), texts)

    def test_other_field(self):
        path = write_jsonl(self.root / "b.jsonl", self.texts, field="content")
        self.check(str(path), fields=["content"])

    def test_gzip(self):
        self.check(self.write("a.jsonl.gz", gzip.compress(self.jsonl)))
        half = len(self.jsonl) // 2
        self.check(self.write("b.JSONL.GZ", gzip.compress(self.jsonl[:half]) + gzip.compress(self.jsonl[half:])))

    @needs("pyarrow")
    def test_the_first_field_that_a_line_or_file_has(self):
        lines = [{"content": "a", "text": "b"}, {"text": "c"}, {"text": "e", "content": None}, {"id": 1, "content": "d"}]
        path = self.write("mixed.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        self.assertEqual(self.read(path, fields=["content", "text"]), ["a", "c", "e", "d"])
        columns = [write_parquet(self.root / f"{field}.parquet", [field], field=field) for field in ("text", "content")]
        self.assertEqual(self.read(*columns, fields=["text", "content"]), ["text", "content"])
        for bad in ('{"id": 1}', '{"text": 1, "content": "a"}'):
            with self.assertRaisesRegex(InputError, r'bad\.jsonl:1: .* in the field "text" or "content"'):
                self.read(self.write("bad.jsonl", bad), fields=["text", "content"])
        with self.assertRaisesRegex(InputError, 'has no column "a" or "b"'):
            self.read(columns[0], fields=["a", "b"])

    @needs("zstandard")
    def test_zstd(self):
        for frames in (1, 5):
            self.check(self.write("a.jsonl.zst", compress_zstd(self.jsonl, frames)))

    @needs("pyarrow")
    def test_parquet(self):
        import pyarrow

        for row_group_size in (1, 60, 1000):
            self.check(write_parquet(self.root / "a.parquet", self.texts, row_group_size=row_group_size))
        for kind in (pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
            self.check(write_parquet(self.root / "b.parquet", self.texts, field="content", type=kind), fields=["content"])

    def test_text(self):
        for name, pack in [("a.txt", bytes), ("b.txt.gz", gzip.compress), ("c.md.zst", compress_zstd), ("d.gz", gzip.compress)]:
            if name.endswith(".zst") and not importlib.util.find_spec("zstandard"):
                continue
            self.assertEqual(self.read(self.write(name, pack("naïve\r\ntext".encode())), part_bytes=1), ["naïve\r\ntext"])

    def test_part_names_depend_on_what_is_read(self):
        path = str(self.root / "a.jsonl")

        def names(key="key", fields=("text",), part_bytes=900):
            planner = plan.Planner(find_sources([path], Sources()), fields, part_bytes, key)
            return [part.name for part in planner.parts()]

        self.assertEqual(names(), names())
        for other in (names(key="k"), names(fields=["f"]), names(part_bytes=899)):
            self.assertFalse(set(names()) & set(other))
        before = names()
        os.utime(path, ns=(1, 1))
        self.assertFalse(set(before) & set(names()))

    def test_parts_of_a_file_do_not_depend_on_other_files(self):
        names = []
        for first in (self.jsonl, self.jsonl[:-40]):
            paths = [self.write("0.jsonl", first), str(self.root / "a.jsonl")]
            planner = plan.Planner(find_sources(paths, Sources()), ["text"], 900, "key")
            names.append({part.name for part in planner.parts() if part.pieces[0].source.path == paths[1]})
        self.assertTrue(len(names[0]) > 1 and names[0] == names[1])

    def test_finished_blocks_of_compressed_files_are_not_unpacked(self):
        path = self.write("a.jsonl.gz", gzip.compress(self.jsonl))
        planner = plan.Planner(find_sources([path], Sources()), ["text"], 900, "key")
        parts = list(planner.parts())
        last = {part.name: part.pieces[0].block[1] for part in parts}
        self.assertEqual(list(last.values()), [False] * (len(parts) - 1) + [True])
        with mock.patch.object(plan, "read_blocks", side_effect=AssertionError):
            self.assertEqual([part.name for part in planner.parts(last.get)], [part.name for part in parts])


class SharesTest(PlannedTest):
    """Tests that N runs have each document once, whatever the inputs are."""

    def check(self, *paths, part_bytes):
        sources = Sources()
        found = find_sources(paths, sources)

        def read(share):
            parts = plan.Planner(found, ["text"], part_bytes, "key", share).parts()
            return [text for part in parts for piece in part.pieces for text in documents.read_piece(piece, ["text"], sources)]

        whole = read((0, 1))
        for count in (2, 3, 7, 100):
            shares = [read((index, count)) for index in range(count)]
            self.assertEqual(sorted(itertools.chain(*shares)), sorted(whole), (paths, part_bytes, count))
            for share in shares:  # A share is in the order of the inputs.
                at = iter(whole)
                self.assertTrue(all(text in at for text in share))
        return whole

    def test_one_file(self):
        texts = [f"{i} {text}" for i, text in enumerate(random_texts(60, seed=8))]
        plain = write_jsonl(self.root / "a.jsonl", texts)
        packed = self.write("a.jsonl.gz", gzip.compress(plain.read_bytes()))
        paths = [str(plain), packed]
        if importlib.util.find_spec("pyarrow"):
            paths.append(write_parquet(self.root / "a.parquet", texts, row_group_size=25))
        for path in paths:
            for part_bytes in (300, 1 << 24):
                self.assertEqual(self.check(path, part_bytes=part_bytes), texts)

    def test_many_files_of_all_kinds(self):
        for number in range(12):
            texts = [f"{number}.{i} {text}" for i, text in enumerate(random_texts(5 * (number % 4), seed=number))]
            path = write_jsonl(self.root / f"{number:02}.jsonl", texts)
            if number % 3:
                self.write(f"{number:02}.jsonl.gz", gzip.compress(path.read_bytes()))
                path.unlink()
            self.write(f"{number:02}.txt", f"text {number}")
            self.write(f"{number:02}.txt.gz", gzip.compress(f"packed {number}".encode()))
            if number % 3 == 0 and texts and importlib.util.find_spec("pyarrow"):
                write_parquet(self.root / f"{number:02}.parquet", [f"row {text}" for text in texts])
        for part_bytes in (200, 1 << 20):
            self.check(str(self.root), part_bytes=part_bytes)

    def test_a_compressed_file_is_unpacked_by_as_few_runs_as_possible(self):
        for files in (1, 3, 8):
            paths = [self.write(f"{files}/{i}.jsonl.gz", gzip.compress(b'{"text": "%d"}\n' % i * 50)) for i in range(files)]
            for count in (1, 2, 3, 5, 8, 20):
                unpacked = collections.Counter()
                for index in range(count):
                    planner = plan.Planner(find_sources(paths, Sources()), ["text"], 50, "key", (index, count))
                    unpacked.update({piece.source.path for part in planner.parts() for piece in part.pieces})
                self.assertEqual(len(unpacked), files)
                self.assertLessEqual(max(unpacked.values()), -(-count // files))

    def test_a_share_resumes(self):
        path = self.write("a.jsonl.gz", gzip.compress(b"".join(b'{"text": "%d"}\n' % i for i in range(200))))
        for index in range(3):
            planner = plan.Planner(find_sources([path], Sources()), ["text"], 300, "key", (index, 3))
            parts = list(planner.parts())
            last = {part.name: part.pieces[0].block[1] for part in parts}
            self.assertEqual([part.name for part in planner.parts(last.get)], [part.name for part in parts])


class BadInputsTest(PlannedTest):
    def refuse(self, message, *paths, **options):
        for part_bytes in (20, 1 << 20):
            with self.assertRaisesRegex(InputError, message):
                self.read(*paths, part_bytes=part_bytes, **options)

    def test_bad_lines_are_named(self):
        good = '{"text": "a"}\n'
        for name, content, message in [
            ("x.jsonl", 50 * good + '\n{"body": "b"}\n', r"x\.jsonl:52: expected .* field \"text\""),
            ("y.jsonl", '{"text": 5}\n', r"y\.jsonl:1: "),
            ("z.jsonl", "not json\n", r"z\.jsonl:1: .* is not JSON: Expecting value at column 1"),
            ("deep.jsonl", good + "[" * 100_000, r"deep\.jsonl:2: .* nested too deep"),
            ("bom.jsonl", b"\xef\xbb\xbf" + good.encode(), r"bom\.jsonl:1: .* byte order mark"),
            ("digits.jsonl", good + '{"text": "a", "id": ' + "9" * 5000 + "}", r"digits\.jsonl:2: .* has 9{20}, which is not a finite"),
            ("nan.jsonl", good + '{"text": "a", "list": [1, NaN]}', r"nan\.jsonl:2: .* has NaN, which is not a finite"),
            ("formfeed.jsonl", good + "\f\n", r"formfeed\.jsonl:2: .* is not JSON"),
            ("latin1.jsonl", good.encode() + '{"text": "caf\xe9"}'.encode("latin-1"), r"latin1\.jsonl:2: .* invalid UTF-8: .* 0xe9 at position 13"),
            ("half.jsonl", 3 * good + r'{"text": "a\ud83db \ud83d\ude42"}', r"half\.jsonl:4: .* half of a surrogate pair, \\ud83d"),
            ("latin1.txt", "caf\xe9".encode("latin-1"), r"latin1\.txt: is invalid UTF-8: it has the byte 0xe9 at position 3"),
            ("list.jsonl", 9 * good + '["text"]', r"list\.jsonl:10: "),
            ("n.txt", b"ab\x00c", r"n\.txt: is not text"),
            ("g.jsonl.gz", gzip.compress(70 * good.encode() + b"{}\n"), r"g\.jsonl\.gz:71: "),
        ]:
            with self.subTest(name):
                self.refuse(message, self.write(name, content))
        self.refuse(r"missing\.txt: no such file", str(self.root / "missing.txt"))
        self.refuse(r"\*\.none: no file matches", str(self.root / "*.none"))
        self.refuse(r"a\.parquet\.gz: a compressed Parquet file is not read", self.write("a.parquet.gz", b"x"))

    def test_broken_gzip(self):
        whole = gzip.compress(os.urandom(2000).hex().encode())
        for name, content in [("cut", whole[:-500]), ("foreign", b"PK" + whole), ("checksum", whole[:-8] + b"12345678"),
                              ("tail", whole + b"tail"), ("data", whole[:200] + b"\xff" * 50 + whole[250:])]:
            for suffix in (".jsonl.gz", ".txt.gz"):
                with self.subTest(name + suffix):
                    self.refuse(rf"{name}{suffix}: is not an intact gzip file", self.write(name + suffix, content))

    @needs("zstandard")
    def test_broken_zstd(self):
        whole = compress_zstd(os.urandom(2000).hex().encode())
        for name, content in [("cut", whole[:-500]), ("foreign", b"PK" + whole), ("tail", whole + b"tail"), ("head", whole[:3])]:
            with self.subTest(name):
                self.refuse(rf"{name}.jsonl.zst: is not an intact Zstandard file", self.write(f"{name}.jsonl.zst", content))

    @needs("pyarrow")
    def test_broken_parquet(self):
        path = write_parquet(self.root / "a.parquet", ["a", "b", None])
        self.refuse(r"a\.parquet: row 3 has null", path)
        self.refuse(r'a\.parquet: has no column "content", only id, text; --text-field', path, fields=["content"])
        self.refuse(r'a\.parquet: the column "id" holds int64, expected strings', path, fields=["id"])
        import pyarrow

        latin1 = pyarrow.array([b"a", "caf\xe9".encode("latin-1")]).view(pyarrow.string())
        self.refuse(r'l\.parquet: row 2, column "text", is invalid UTF-8', write_parquet(self.root / "l.parquet", latin1))
        self.refuse(r"b\.parquet: is not an intact Parquet file", self.write("b.parquet", Path(path).read_bytes()[:-20]))
        self.refuse(r"c\.parquet: is not an intact Parquet file", self.write("c.parquet", b""))

    def test_missing_packages_are_named(self):
        for name, package in [("a.parquet", "pyarrow"), ("a.jsonl.zst", "zstandard")]:
            with mock.patch.dict(sys.modules, {package: None}):
                self.refuse(f"{name}: .* lacks the Python package {package}: ", self.write(name, b"x"))

    def test_documents_too_long_to_encode(self):
        with mock.patch.object(documents, "MAX_DOCUMENT_BYTES", 1000), mock.patch.object(plan, "MAX_DOCUMENT_BYTES", 1000):
            line = json.dumps({"text": "x" * 5000}).encode()
            for name, content in [("a.txt", b"x" * 1001), ("a.jsonl", line), ("b.jsonl.gz", gzip.compress(line))]:
                self.refuse(f"{name}: a document of more than", self.write(name, content))


class InputsTest(PlannedTest):
    """Tests the rule of what a file is on the cases that tests/data/text/text_inputs_test.cpp tests for `octavo pack`."""

    def check(self, case, named):
        content = bytes.fromhex(case["hex"]) if "hex" in case else case["content"].encode()
        path = self.write(f"{case['name']}.d/{case['name']}", content)
        left_out = None if named else case.get("left_out")
        given = path if named else os.path.dirname(path)
        sources = Sources()
        if "documents" in case or left_out:
            self.assertEqual([text for text in self.read(given, sources=sources) if text], case.get("documents", []))
            self.assertEqual(sources.left_out, {left_out: 1} if left_out else {})
        else:
            with self.assertRaises(InputError) as refused:
                self.read(given, sources=sources)
            for part in case["refused"]:
                self.assertIn(part, str(refused.exception))

    def test_cases_of_octavo_pack(self):
        for case in json.loads((ROOT / "tests/data/text/inputs.json").read_text()):
            if ".zst" in case["name"] and not importlib.util.find_spec("zstandard"):
                continue
            for named in (True, False):
                with self.subTest(name=case["name"], named=named):
                    self.check(case, named)


class FoldersTest(PlannedTest):
    def test_in_order_of_paths_without_binary_files(self):
        self.write("d/b.txt", "second")
        self.write("d/a/z.txt", "first")
        self.write("d/c.o", b"\x00\x01")
        self.write("d/e.jsonl", '{"text": "third"}\n\n{"text": "fourth", "id": 1}\n')
        self.assertEqual(self.read(str(self.root / "d")), ["first", "second", "third", "fourth"])
        self.assertEqual(self.read(str(self.root / "d/[be]*"), part_bytes=1), ["second", "third", "fourth"])
        self.assertEqual(self.read(str(self.root / "**/*.txt")), ["first", "second"])

    def test_what_is_left_out_is_counted_by_kind(self):
        self.write("d/a.txt", "text")
        self.write("d/latin1.txt", "caf\xe9".encode("latin-1"))
        self.write("d/b.png", b"\x89PNG\x00\x01")
        self.write("d/c.tar.gz", gzip.compress(b"tar\0" * 9))
        self.write("d/c.jsonl.lz4", b"\0")
        self.write("d/more/d.JSONL.lz4", b"\0")
        self.write("d/core", b"\x00")
        self.write("d/late", b"text" * 5000 + b"\x00")
        os.mkfifo(self.root / "d/fifo")
        os.symlink("a.txt", self.root / "d/link")
        os.symlink("missing", self.root / "d/broken")
        os.symlink("/proc/self", self.root / "d/process")
        os.symlink("/proc/self/environ", self.root / "d/environ")
        for name in ("d/.git/config", "d/more/.git", "d/.hg/store"):
            self.write(name, "https://user:SECRET@example.com")
        sources = Sources()
        self.assertEqual(self.read(str(self.root / "d"), sources=sources), ["text"])
        self.assertEqual(sources.taken, 1)
        self.assertEqual(sources.left_out, {".png": 1, ".jsonl.lz4": 2, ".tar.gz": 1, "without a suffix": 2, "special file": 2,
                                            "broken link": 1, "folder of the kernel": 1, ".txt not in UTF-8": 1})
        self.assertRegex(sources.describe_left_out(), r"skipped 11 files: .*2 \.jsonl\.lz4, .*1 \.png")
        self.assertEqual(list(sources.describe_rest()), ["skipped version control: 2 .git, 1 .hg",
                                                         f"read once: 1 have the content of a file that was taken already, such as {self.root}/d/link"])
        with self.assertRaisesRegex(InputError, "more than the 1 read; --allow-skipped"):
            sources.check(1, False)
        sources.check(1, True)

    def test_a_file_is_read_once(self):
        self.write("d/sub/a.txt", "a")
        path = self.write("d/b.jsonl", '{"text": "b"}')
        self.write("d/b.jsonl.gz", gzip.compress(Path(path).read_bytes()))
        self.write("d/c.txt", "c")
        self.write("d/c.txt.gz", gzip.compress(b"another c"))
        os.symlink("../d", self.root / "d/cycle")
        os.symlink("sub", self.root / "d/alias")
        os.link(path, self.root / "d/z.jsonl")
        sources = Sources()
        given = [str(self.root / "d"), path, f"{self.root}/d/./b.jsonl", str(self.root / "d/sub")]
        self.assertEqual(self.read(*given, sources=sources), ["b", "c", "another c", "a"])
        self.assertEqual(sorted(sources.repeated), sorted([given[1], given[2], f"{self.root}/d/b.jsonl.gz", f"{self.root}/d/z.jsonl", f"{self.root}/d/sub/a.txt"]))

    def test_versions_of_a_file_are_found_however_their_paths_are_spelled(self):
        content = b'{"text": "x"}\n'
        path = self.write("in/x.jsonl", content)
        self.write("in/x.jsonl.gz", gzip.compress(content))
        self.write("in/x.jsonl.XZ", lzma.compress(content))
        os.symlink("in", self.root / "link")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.root)
        for plain, packed in (("in/x.jsonl", "./in/x.jsonl.gz"), (path, "in/x.jsonl.gz"), ("in/x.jsonl", "in/../in//x.jsonl.XZ"),
                              ("link/x.jsonl", "in/x.jsonl.gz"), ("./in/x.jsonl.gz", "link/x.jsonl.XZ")):
            sources = Sources()
            self.assertEqual(self.read(plain, packed, sources=sources), ["x"], (plain, packed))
            self.assertEqual(sources.repeated, [packed])
        # A file of that name in another folder is another file.
        self.write("other/x.jsonl.gz", gzip.compress(content))
        self.assertEqual(self.read("in/x.jsonl", "other/x.jsonl.gz"), ["x", "x"])

    def test_a_cache_of_the_hub(self):
        """The links have the names of the files, and their targets have none."""
        for number in range(2):
            self.write(f"cache/blobs/{number:064x}", f'{{"text": "{number}"}}\n')
            for revision in ("r1", "r2"):
                (self.root / "cache/snapshots" / revision).mkdir(parents=True, exist_ok=True)
                os.symlink(f"../../blobs/{number:064x}", self.root / f"cache/snapshots/{revision}/{number}.jsonl")
        for given in ("cache", "cache/snapshots/r1"):
            self.assertEqual(self.read(str(self.root / given)), ["0", "1"])

    def test_what_shows_the_state_of_the_kernel_is_refused(self):
        os.symlink("/proc/self", self.root / "process")
        for given in (str(self.root / "process"), "/proc/self/environ"):
            with self.assertRaisesRegex(InputError, "state of the kernel"):
                self.read(given)

    def test_what_the_run_writes_is_not_read(self):
        self.write("d/a.txt", "text")
        ours = self.write("d/out.json", "{}")
        found = find_sources([str(self.root / "d")], Sources(), lambda path: path == ours)
        self.assertEqual([source.path for source in found], [str(self.root / "d/a.txt")])

    def test_batches_keep_order_and_leave_out_empty_documents(self):
        texts = ["x" * 600_000, "", "y" * 600_000, "z"]
        self.assertEqual([len(batch) for batch in batches(texts)], [2, 1])


class TokenFileWriterTest(PlannedTest):
    def write_dataset(self, vocab_size, tokens_of_documents):
        prefix = str(self.root / "out" / "tokens")
        writer = TokenFileWriter(prefix, vocab_size)
        for tokens in tokens_of_documents:
            writer.add_document(array.array(writer.typecode, tokens).tobytes())
        writer.close({"tokenizer": "t", "vocab_size": vocab_size})
        self.assertFalse(Path(prefix + ".idx").exists())
        publish([writer])
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

    def test_many_documents_in_blocks(self):
        expected = [[i % 300] * (i % 5) for i in range(1000)]
        with mock.patch("tokenizing.token_files.BLOCK_DOCUMENTS", 64):
            self.write_dataset(300, expected)
        self.assertEqual(read_dataset(self.root / "out/tokens"), expected)
        self.assertEqual(read_sidecar(str(self.root / "out/tokens"))["documents"], 1000)
        os.truncate(self.root / "out/tokens.bin", 10)
        self.assertIsNone(read_sidecar(str(self.root / "out/tokens")))

    def test_nothing_appears_before_it_is_published(self):
        prefix = str(self.root / "tokens")
        writer = TokenFileWriter(prefix, 300)
        writer.add_document(b"\x01\x00")
        writer.discard()
        self.assertEqual(list(self.root.iterdir()), [])

    def test_two_datasets_are_replaced_together_or_not_at_all(self):
        def write(fails):
            writers = [TokenFileWriter(str(self.root / name), 300) for name in ("a", "b")]
            for writer in writers:
                writer.add_document(b"\x02\x00" if fails else b"\x01\x00")
                writer.close({})
            if fails:
                os.unlink(self.root / "b.idx.tmp")  # This file is renamed last.
            publish(writers)

        write(fails=False)
        before = {path.name: path.read_bytes() for path in self.root.iterdir()}
        self.assertEqual(len(before), 6)
        with self.assertRaises(FileNotFoundError):
            write(fails=True)
        after = {path.name: path.read_bytes() for path in self.root.iterdir()}
        self.assertEqual({name: after.get(name) for name in before}, before)


class MergeTest(PlannedTest):
    def make_parts(self, counts):
        """Writes parts with the given numbers of documents. Document i consists of i, once, twice or three times."""
        number, parts = 0, []
        for part, count in enumerate(counts):
            with PartWriter(self.root, f"part{part}", "H") as writer:
                for _ in range(count):
                    writer.add_document(array.array("H", [number] * (number % 3 + 1)))
                    number += 1
                writer.finish({"taken": 0})
            parts.append(PartFile(str(self.root / f"part{part}")))
        return parts

    def merge(self, parts, every=0, seed=None):
        writers = [TokenFileWriter(str(self.root / name), 60000) for name in ("a", "b")]
        quiet = progress.Progress("test", 1, io.StringIO())
        merger = merge.Merger(writers, every, quiet)
        merger.choose_both(parts)
        if seed is None:
            merger.in_order(parts)
        else:
            merger.shuffled(parts, seed, str(self.root / "buckets"))
            self.assertFalse((self.root / "buckets").exists())
        for writer in writers:
            writer.close({})
        publish(writers)
        found = [read_dataset(self.root / name) for name in ("a", "b")]
        self.assertTrue(all(tokens == [tokens[0]] * (tokens[0] % 3 + 1) for tokens in found[0] + found[1]))
        return [[tokens[0] for tokens in documents] for documents in found]

    def test_documents_with_equal_tokens_are_on_one_side(self):
        numbers = [number % 40 for number in range(200)]
        with PartWriter(self.root, "equal", "H") as writer:
            for number in numbers:
                writer.add_document(array.array("H", [number] * (number % 3 + 1)))
            writer.finish({"taken": 0})
        parts = [PartFile(str(self.root / "equal"))]
        sides = []
        for seed in (None, 3):
            kept, held_out = self.merge(parts, every=3, seed=seed)
            self.assertEqual(sorted(kept + held_out), sorted(numbers))
            self.assertFalse(set(kept) & set(held_out))
            sides.append(set(held_out))
        self.assertTrue(sides[0] and sides[0] == sides[1])

    def test_few_documents_are_on_both_sides(self):
        for documents in (2, 3, 5, 50):
            for every in (2, 7, 1000):
                with self.subTest(documents=documents, every=every):
                    kept, held_out = self.merge(self.make_parts([1, documents - 1]), every=every)
                    self.assertTrue(kept and held_out)
                    self.assertEqual(sorted(kept + held_out), list(range(documents)))

    def test_in_order(self):
        parts = self.make_parts([3, 0, 5, 2])
        self.assertEqual(self.merge(parts), [list(range(10)), []])
        kept, held_out = self.merge(self.make_parts([2000]), every=4)
        self.assertEqual((sorted(kept), sorted(held_out)), (kept, held_out))
        self.assertEqual(sorted(kept + held_out), list(range(2000)))
        self.assertLess(abs(len(held_out) - 500), 97)  # Five standard deviations of the binomial distribution.

    def test_shuffle_depends_on_the_seed_alone(self):
        whole = self.merge(self.make_parts([2000]), every=10, seed=1)
        self.assertEqual(sorted(whole[1]), self.merge(self.make_parts([2000]), every=10)[1])
        self.assertEqual(sorted(whole[0] + whole[1]), list(range(2000)))
        self.assertNotEqual(whole[0], sorted(whole[0]))
        # Small buckets need several levels of merging.
        for bucket_bytes in (1 << 20, 5000, 300):
            with mock.patch.object(merge, "BUCKET_BYTES", bucket_bytes), mock.patch.object(merge, "MAX_FANOUT_BITS", 2):
                self.assertEqual(self.merge(self.make_parts([7, 993, 1000]), every=10, seed=1), whole)
        self.assertNotEqual(self.merge(self.make_parts([2000]), every=10, seed=2), whole)

    def test_all_orders_of_four_come_up_alike(self):
        orders = collections.Counter(tuple(sorted(range(4), key=merge.document_hash(seed))) for seed in range(2400))
        self.assertEqual(len(orders), 24)
        # The limit is the chi-square of 23 degrees of freedom at p = 0.001.
        self.assertLess(sum((count - 100) ** 2 / 100 for count in orders.values()), 49.7)

    def test_broken_parts_are_refused(self):
        self.make_parts([5])
        whole = (self.root / "part0").read_bytes()
        for content in (whole[:-1], whole[5:], b"", whole[:-8] + struct.pack("<Q", 1 << 40)):
            with self.assertRaisesRegex(RunError, "part0: is not a complete part"):
                PartFile(self.write("part0", content))

    def test_unfinished_parts_leave_nothing(self):
        with contextlib.suppress(ZeroDivisionError), PartWriter(self.root, "part", "H") as writer:
            writer.add_document(array.array("H", [1]))
            raise ZeroDivisionError
        self.assertEqual(list(self.root.iterdir()), [])


class ArgumentsTest(unittest.TestCase):
    def test_an_empty_output_is_refused(self):
        arguments = ("--train-bpe", 300, "--input", "nowhere", "--output")
        refuse("--hold-out-output is empty, expected", *arguments, "")
        refuse("--hold-out-output is empty, expected", *arguments, "corpus", "--hold-out-every", 2, "--hold-out-output", "")


    def test_a_wrong_part_is_refused(self):
        arguments = ("--tokenizer", ROOT / "tests/data/tokenizer_hashes.json", "--input", "nowhere", "--output", "corpus", "--part")
        for wrong in ("0/4", "5/4", "a/b", "1", "1/", "1/4/4", "-1/4", " 1/4", "1.0/4", "²/4", ""):
            with self.assertRaisesRegex(InputError, re.escape(f"--part is {wrong}, expected I/N with I from 1 to N")):
                parse_part(wrong)
        refuse("--part is 0/4, expected", *arguments, "0/4")
        refuse("--part with --train-bpe would train another tokenizer", "--train-bpe", 300, *arguments[2:], "1/4")


class ProgressTest(unittest.TestCase):
    def test_lines_and_a_live_line(self):
        for live in (False, True):
            stream = io.StringIO()
            stream.isatty = lambda live=live: live
            with mock.patch("time.monotonic", side_effect=[0.0, 1.0, 20.0]):
                shown = progress.Progress("tokenizing", 4_000_000, stream)
                shown.add(1_000_000, found=True)
                shown.add(1_000_000, tokens=300_000)
            text = "tokenizing: 50.0% of 4.00 MB, 300.00 k tokens, 15.00 k tokens/s, 40s left"
            self.assertIn(text, stream.getvalue())
            self.assertEqual(stream.getvalue().count("\r"), 2 if live else 0)


if __name__ == "__main__":
    unittest.main()
