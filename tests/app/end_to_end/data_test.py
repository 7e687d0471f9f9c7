"""Tests of octavo pack and octavo inspect with an independent reader of token files, and of the samples that training reads. tests/data
tests every kind of input, format and order."""

import json
import random

from support import Scratch, read_megatron, text_documents, write_llm_c, write_megatron


class PackTest(Scratch):
    def write(self, name, content):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def pack(self, *inputs, options=()):
        self.run_octavo("pack", "--input", *inputs, "--output", "packed/corpus", *options)
        return read_megatron(self.dir / "packed/corpus")

    def test_text_jsonl_and_trees_keep_their_order_and_bytes(self):
        texts = ["one", 'quote " backslash \\ tab \t newline \n', "Unicode: \u00e9 \u4e2d \U0001f600", "last"]
        lines = [json.dumps({"id": i, "text": text, "more": [1]}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)]
        tree = {"tree/B.c": "B", "tree/a.c": "a", "tree/a/deep/er.h": "er", "tree/a/z.h": "z", "tree/a0": "0"}
        for name, text in tree.items():
            self.write(name, text)
        self.write("tree/object.o", b"\x7fELF\0\0")
        (self.dir / "tree/loop").symlink_to("..")
        code, documents = self.pack(self.write("b.txt", bytes(range(1, 256))), self.write("data.jsonl", "\r\n\n".join(lines)), "tree")
        self.assertEqual(code, 8)
        self.assertEqual(documents, [list(range(1, 256)), *(list(text.encode()) for text in [*texts, *tree.values()])])
        sidecar = json.loads((self.dir / "packed/corpus.json").read_text())
        expected = {"vocab_size": 272, "bos": 256, "eos": 257, "documents": 10, "tokens": sum(map(len, documents))}
        self.assertEqual(sidecar, sidecar | expected)
        self.assertEqual(sorted(path.name for path in (self.dir / "packed").iterdir()), ["corpus.bin", "corpus.idx", "corpus.json"])

    def test_held_out_documents_are_every_nth(self):
        files = [self.write(f"in/{i:02}.txt", f"document {i}") for i in range(10)]
        _, documents = self.pack(*files, options=("--hold-out-every", "3", "--hold-out-output", "packed/rest"))
        _, rest = read_megatron(self.dir / "packed/rest")
        text = [f"document {i}" for i in range(10)]
        self.assertEqual([bytes(tokens).decode() for tokens in rest], text[2::3])
        self.assertEqual([bytes(tokens).decode() for tokens in documents], [t for i, t in enumerate(text) if i % 3 != 2])

    def test_bad_input_is_refused_and_leaves_the_old_dataset(self):
        good = self.write("good.txt", "good")
        output = ("--output", "packed/corpus", "--overwrite")
        _, before = self.pack(good)
        for name, content in (("not_json.jsonl", '{"text": "fine"}\n{"text": \n'), ("half_a_code.jsonl", '{"text": "\\ud800"}\n'),
                              ("latin1.jsonl", '{"text": "caf\xe9"}\n'.encode("latin-1"))):
            self.refused("pack", "--input", good, self.write(name, content), *output, mentions=[name])
            self.assertEqual(len(list((self.dir / "packed").iterdir())), 3, "left-over files")
        for line in (output, ("--input", good), ("--input", good, "--output", self.write("file", "") / "corpus"),
                     ("--input", good, *output, "--hold-out-every", "5"), ("--input", good, *output, "--hold-out-every", "-1")):
            self.refused("pack", *line)
        for same in ("packed/corpus", "./packed//corpus", self.dir / "packed/../packed/corpus"):
            self.refused("pack", "--input", good, good, *output, "--hold-out-every", "2", "--hold-out-output", same,
                         mentions=["packed/corpus", "the output", "held-out output"])
        self.refused("pack", "--input", good, "--output", "packed/corpus", mentions=["packed/corpus.bin", "exists", "--overwrite"])
        self.assertEqual(read_megatron(self.dir / "packed/corpus")[1], before)

    def test_packing_under_mpirun_writes_once(self):
        good = self.write("good.txt", "some text")
        result = self.run_octavo("pack", "--input", good, "--output", "packed/corpus", ranks=2)
        self.assertEqual(result.out.count("packed/corpus.bin"), 1, result.out)
        self.assertEqual(read_megatron(self.dir / "packed/corpus")[1], [list(b"some text")])
        self.refused("pack", "--input", "missing", "--output", "packed/other", ranks=2)

    def test_inspect_tells_what_is_in_a_file(self):
        write_megatron(self.dir / "tokens", [[5, 6, 7], [], [9]], "i32")
        expected = {"documents": 3, "tokens": 4, "intact": True, "token_id": {"min": 5, "max": 9}}
        for suffix in ("", ".bin", ".idx"):
            report = json.loads(self.run_octavo("inspect", "tokens" + suffix).out)
            self.assertEqual(report, report | expected)
        self.refused("inspect", "nothing_here")
        path = self.dir / "tokens.bin"
        path.write_bytes(path.read_bytes()[:-1])
        self.refused("inspect", "tokens", mentions=["tokens.bin"])


def row_of(documents, bos=None, eos=None):
    """Returns a dataset as one row of tokens, computed from the definition."""
    wrapped = [([bos] if bos is not None else []) + d + ([eos] if eos is not None else []) for d in documents]
    return sum(wrapped, [])


def window_of(row, begin, seq_len):
    """Returns seq_len + 1 tokens of the row, which continues at its beginning after its end."""
    return [row[(begin + t) % len(row)] for t in range(seq_len + 1)]


class SamplesTest(Scratch):
    def samples(self, path, begin, end, **settings):
        config = self.config("unused", data={"train": [{"path": str(path)}], "bos_id": None, "eos_id": None} | settings)
        out = self.run_octavo("inspect", config, "--samples", f"{begin}:{end}").out
        samples = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([sample["sample"] for sample in samples], list(range(begin, end)))
        for sample in samples:
            self.assertEqual(list(sample), ["sample", "dataset", "epoch", "window", "tokens"])
            self.assertEqual(len(sample["tokens"]), settings["seq_len"] + 1)
        return samples

    def distinct_documents(self, lengths):
        """Returns documents in which document d has the tokens 1000 d, 1000 d + 1, ..., so that every token tells its origin."""
        return [[1000 * d + t for t in range(length)] for d, length in enumerate(lengths)]

    def test_file_order(self):
        documents = self.distinct_documents([7, 1, 0, 40, 3, 12])
        data = write_megatron(self.dir / "data", documents, "i32")
        for bos, eos, seq_len in ((None, None, 8), (5, None, 8), (None, 6, 1), (5, 6, 16), (5, 5, 100)):
            with self.subTest(bos=bos, eos=eos, seq_len=seq_len):
                row = row_of(documents, bos, eos)
                windows = max(1, len(row) // (seq_len + 1))
                for sample in self.samples(data, 0, 60, shuffle="none", bos_id=bos, eos_id=eos, seq_len=seq_len):
                    epoch, window = divmod(sample["sample"], windows)
                    self.assertEqual((sample["dataset"], sample["epoch"], sample["window"]), (0, epoch, window))
                    self.assertEqual(sample["tokens"], window_of(row, window * (seq_len + 1), seq_len))

    def test_every_format(self):
        documents = [[1, 2, 3, 250], [4, 5], [6, 7, 8, 9, 10]]
        paths = [write_megatron(self.dir / dtype, documents, dtype) for dtype in ("u8", "u16", "i32")]
        for path in (*paths, paths[0] + ".bin", paths[0] + ".idx"):
            self.assertEqual(self.samples(path, 0, 1, shuffle="none", seq_len=10)[0]["tokens"], sum(documents, []))
        data = write_megatron(self.dir / "parts", documents, "u16", sequences_per_document=[2, 1])
        sample = self.samples(data, 0, 1, shuffle="none", seq_len=14, bos_id=256, eos_id=257)[0]
        self.assertEqual(sample["tokens"], [256, 1, 2, 3, 250, 4, 5, 257, 256, 6, 7, 8, 9, 10, 257])
        for llama3, tokens in ((False, [50256, 1, 2, 50256, 3, 4]), (True, [128000, 127999, 5, 128000, 7])):
            path = write_llm_c(self.dir / "shard.bin", tokens, llama3)
            self.assertEqual(self.samples(path, 0, 1, shuffle="none", seq_len=len(tokens) - 1)[0]["tokens"], tokens)

    def test_shuffle_reads_each_window_once_per_epoch_and_cuts_elsewhere(self):
        documents = self.distinct_documents(random.Random(7).choices(range(60), k=37))
        data = write_megatron(self.dir / "data", documents, "i32")
        for seq_len, bos, eos in ((16, None, None), (9, None, 999_999), (33, 888_888, 999_999)):
            with self.subTest(seq_len=seq_len):
                row = row_of(documents, bos, eos)
                windows = len(row) // (seq_len + 1)
                samples = self.samples(data, 0, 4 * windows, seq_len=seq_len, bos_id=bos, eos_id=eos)
                orders, shifts = [], []
                for epoch in range(4):
                    drawn = samples[epoch * windows : (epoch + 1) * windows]
                    self.assertEqual({sample["epoch"] for sample in drawn}, {epoch})
                    orders.append([sample["window"] for sample in drawn])
                    self.assertEqual(sorted(orders[-1]), list(range(windows)))
                    # All windows of an epoch have the same shift.
                    fits = [shift for shift in range(len(row)) if all(
                        sample["tokens"] == window_of(row, shift + sample["window"] * (seq_len + 1), seq_len)
                        for sample in drawn)]
                    self.assertEqual(len(fits), 1)
                    shifts += fits
                self.assertEqual(shifts[0], 0)
                self.assertEqual(len(set(shifts)), 4, shifts)
                self.assertEqual(len({tuple(order) for order in orders}), 4, "epochs alike")

    def test_wrong_ranges_are_refused(self):
        config = self.config(write_megatron(self.dir / "data", text_documents(4, 40)))
        for samples in ("5", "a:b", "3:2", "-1:2", ":", "1:", "1:2:3", "0:99999999999999999999", "1.5:2"):
            with self.subTest(samples):
                self.refused("inspect", config, f"--samples={samples}")
        self.refused("inspect", config)
        self.refused("inspect", "missing.yaml", "--samples", "0:1", mentions=["missing.yaml"])
        self.refused("inspect", config, "--samples", "0:1", "data.seq_len=0", mentions=["data.seq_len"])
