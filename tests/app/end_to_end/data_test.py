"""Tests of octavo pack and octavo inspect: token files, and the samples that training will read."""

import json
import random
import time

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

    def test_text_files_keep_their_order_and_bytes(self):
        first, second = bytes(range(1, 256)), "zweite Datei: äöü\r\n\n".encode()
        code, documents = self.pack(self.write("b.txt", first), self.write("a.txt", second))
        self.assertEqual(code, 8)
        self.assertEqual(documents, [list(first), list(second)])
        sidecar = json.loads((self.dir / "packed/corpus.json").read_text())
        expected = {"vocab_size": 272, "bos": 256, "eos": 257, "documents": 2, "tokens": len(first) + len(second)}
        self.assertEqual(sidecar, sidecar | expected)
        self.assertEqual(sorted(path.name for path in (self.dir / "packed").iterdir()),
                         ["corpus.bin", "corpus.idx", "corpus.json"])

    def test_each_jsonl_line_is_a_document(self):
        texts = ["one", 'quote " backslash \\ tab \t newline \n', "Unicode: \u00e9 \u4e2d \U0001f600", "last"]
        lines = [json.dumps({"id": i, "text": text, "more": [1]}) for i, text in enumerate(texts)]
        lines.insert(2, json.dumps({"text": ""}))
        lines.insert(1, "")
        raw = json.dumps({"text": texts[2]}, ensure_ascii=False)
        _, documents = self.pack(self.write("data.jsonl", "\n".join(lines) + "\r\n" + raw))
        self.assertEqual([bytes(tokens).decode() for tokens in documents], [*texts, texts[2]])

    def test_tree_in_bytewise_order_without_links_and_binaries(self):
        contents = {"tree/B.c": "B", "tree/a/z.h": "z", "tree/a.c": "a", "tree/a/deep/er.h": "er", "tree/a0": "0"}
        for name, text in contents.items():
            self.write(name, text)
        self.write("tree/object.o", b"\x7fELF\0\0")
        self.write("tree/empty.txt", "")
        self.write("tree/lines.jsonl", '{"text": "in a tree"}\n')
        (self.dir / "tree/link.c").symlink_to("B.c")
        (self.dir / "tree/loop").symlink_to("..")
        _, documents = self.pack("tree")
        contents["tree/lines.jsonl"] = "in a tree"
        expected = [contents[name] for name in sorted(contents, key=str.encode)]
        self.assertEqual([bytes(tokens).decode() for tokens in documents], expected)

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
        cases = {
            "missing.txt": None,
            "binary.txt": b"text\0text",
            "not_json.jsonl": '{"text": "fine"}\n{"text": \n',
            "no_field.jsonl": '{"txt": "misspelt"}\n',
            "number.jsonl": '{"text": 5}\n',
            "list.jsonl": "[1, 2]\n",
            "half_a_code.jsonl": '{"text": "\\ud800"}\n',
            "latin1.jsonl": '{"text": "caf\xe9"}\n'.encode("latin-1"),
            "empty.txt": "",
        }
        for name, content in cases.items():
            with self.subTest(name):
                if content is not None:
                    self.write(name, content)
                inputs = [name] if name == "empty.txt" else [good, name]
                sentence = self.refused("pack", "--input", *inputs, *output)
                if name != "empty.txt":
                    self.assertIn(name, sentence)
                self.assertEqual(read_megatron(self.dir / "packed/corpus")[1], before)
                self.assertEqual(len(list((self.dir / "packed").iterdir())), 3, "left-over files")
        self.refused("pack", *output)
        self.refused("pack", "--input", good)
        self.refused("pack", "--input", good, "--output", self.write("file", "") / "corpus")
        self.refused("pack", "--input", good, *output, "--hold-out-every", "5")
        self.refused("pack", "--input", good, *output, "--hold-out-every", "-1")
        for same in ("packed/corpus", "./packed//corpus", self.dir / "packed/../packed/corpus"):
            self.refused("pack", "--input", good, good, *output, "--hold-out-every", "2", "--hold-out-output", same,
                         mentions=["pack: packed/corpus is both the output and the held-out output"])
        self.refused("pack", "--input", good, "--output", "packed/corpus", mentions=["packed/corpus.bin: exists already", "--overwrite"])
        self.assertEqual(read_megatron(self.dir / "packed/corpus")[1], before)

    def test_packing_under_mpirun_writes_once(self):
        good = self.write("good.txt", "some text")
        result = self.run_octavo("pack", "--input", good, "--output", "packed/corpus", ranks=2)
        self.assertEqual(result.out.count("packed/corpus.bin"), 1, result.out)
        self.assertEqual(read_megatron(self.dir / "packed/corpus")[1], [list(b"some text")])
        self.refused("pack", "--input", "missing", "--output", "packed/other", ranks=2)

    def test_inspect_tells_what_is_in_a_file(self):
        write_megatron(self.dir / "tokens", [[5, 6, 7], [], [9]], "i32")
        report = json.loads(self.run_octavo("inspect", "tokens").out)
        expected = {"documents": 3, "tokens": 4, "intact": True, "token_id": {"min": 5, "max": 9}}
        self.assertEqual(report, report | expected)
        for suffix in (".bin", ".idx"):
            self.assertEqual(json.loads(self.run_octavo("inspect", "tokens" + suffix).out)["tokens"], 4)
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
    def samples(self, data, begin, end, *overrides, **settings):
        train = data if isinstance(data, list) else [{"path": str(data)}]
        config = self.config("unused", data={"train": train, "bos_id": None, "eos_id": None} | settings)
        out = self.run_octavo("inspect", config, "--samples", f"{begin}:{end}", *overrides).out
        samples = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([sample["sample"] for sample in samples], list(range(begin, end)))
        for sample in samples:
            self.assertEqual(list(sample), ["sample", "dataset", "epoch", "window", "tokens"])
            self.assertEqual(len(sample["tokens"]), settings.get("seq_len", 32) + 1)
        return samples

    def distinct_documents(self, lengths, base=0):
        """Returns documents in which document d has the tokens 1000 d, 1000 d + 1, ..., so that every token tells its origin."""
        return [[1000 * (base + d) + t for t in range(length)] for d, length in enumerate(lengths)]

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
        tokens = sum(documents, [])
        for dtype in ("u8", "u16", "i32"):
            data = write_megatron(self.dir / dtype, documents, dtype)
            for path in (data, data + ".bin", data + ".idx"):
                self.assertEqual(self.samples(path, 0, 1, shuffle="none", seq_len=10)[0]["tokens"], tokens)
        data = write_megatron(self.dir / "parts", documents, "u16", sequences_per_document=[2, 1])
        sample = self.samples(data, 0, 1, shuffle="none", seq_len=14, bos_id=256, eos_id=257)[0]
        self.assertEqual(sample["tokens"], [256, 1, 2, 3, 250, 4, 5, 257, 256, 6, 7, 8, 9, 10, 257])
        gpt2 = [50256, 1, 2, 50256, 3, 4]
        path = write_llm_c(self.dir / "gpt2.bin", gpt2)
        self.assertEqual(self.samples(path, 0, 1, shuffle="none", seq_len=5)[0]["tokens"], gpt2)
        llama = [128000, 127999, 5, 128000, 7]
        path = write_llm_c(self.dir / "llama.bin", llama, llama3=True)
        self.assertEqual(self.samples(path, 0, 1, shuffle="none", seq_len=4)[0]["tokens"], llama)

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

    def test_order_depends_on_the_seed(self):
        data = write_megatron(self.dir / "data", self.distinct_documents([4] * 100), "i32")
        first, again, other = (self.samples(data, 0, 100, seq_len=3, seed=seed) for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        windows = [sample["window"] for sample in first]
        # A random permutation has no long rising runs and few fixed points.
        rises = sum(a < b for a, b in zip(windows, windows[1:]))
        self.assertTrue(30 <= rises <= 70, rises)
        self.assertLess(sum(i == w for i, w in enumerate(windows)), 8)

    def test_far_samples_are_those_read_from_the_beginning(self):
        lengths = random.Random(3).choices(range(1, 30), k=23)
        one = write_megatron(self.dir / "one", self.distinct_documents(lengths), "i32")
        two = write_megatron(self.dir / "two", self.distinct_documents(lengths[:11], base=500), "i32")
        mixed = [{"path": one, "weight": 0.8}, {"path": two, "weight": 0.3}]
        for data, settings in ((one, {}), (one, {"shuffle": "none"}), (mixed, {}), (mixed, {"shuffle": "none"})):
            with self.subTest(settings=settings):
                every = self.samples(data, 0, 3000, seq_len=6, bos_id=1, eos_id=2, **settings)
                for begin, end in ((1, 2), (17, 40), (2990, 3000), (1500, 1500)):
                    self.assertEqual(self.samples(data, begin, end, seq_len=6, bos_id=1, eos_id=2, **settings),
                                     every[begin:end])
                began = time.monotonic()
                self.samples(data, 10**12, 10**12 + 2, seq_len=6, **settings)
                self.assertLess(time.monotonic() - began, 5)

    def test_mixing_follows_the_weights(self):
        weights = [0.5, 3, 1.5]
        train = []
        for d in range(3):
            path = write_megatron(self.dir / f"set{d}", self.distinct_documents([90] * 5, 100 * d), "i32")
            train.append({"path": path, "weight": weights[d]})
        samples = self.samples(train, 0, 400, seq_len=12)
        counts = [0, 0, 0]
        for g, sample in enumerate(samples):
            behind = [weights[d] / 5 * g - counts[d] for d in range(3)]
            d = sample["dataset"]
            self.assertGreaterEqual(behind[d], max(behind) - 1e-9, f"sample {g}")
            self.assertTrue(all(100_000 * d <= token < 100_000 * (d + 1) for token in sample["tokens"]))
            counts[d] += 1
            self.assertTrue(all(abs(counts[d] - weights[d] / 5 * (g + 1)) <= 1 for d in range(3)), f"sample {g}")
        # A dataset with weight 0 is not read. The order within a dataset does not depend on the other datasets.
        train[0]["weight"] = train[2]["weight"] = 0
        alone = self.samples(train, 0, 60, seq_len=12)
        middle = [sample for sample in samples if sample["dataset"] == 1][:60]
        self.assertEqual([s["tokens"] for s in alone], [s["tokens"] for s in middle])

    def test_many_files_are_one_row(self):
        documents = self.distinct_documents([7, 30, 2, 41, 11, 9])
        whole = write_megatron(self.dir / "whole", documents, "i32")
        parts = [write_megatron(self.dir / f"parts/{i}/p", documents[2 * i : 2 * i + 2], "i32") for i in range(3)]
        expected = self.samples(whole, 0, 50, seq_len=9, eos_id=5)
        for path in (parts, str(self.dir / "parts")):
            self.assertEqual(self.samples([{"path": path}], 0, 50, seq_len=9, eos_id=5), expected)

    def test_wrong_ranges_are_refused(self):
        data = write_megatron(self.dir / "data", text_documents(4, 40))
        config = self.config(data)
        for samples in ("5", "a:b", "3:2", "-1:2", ":", "1:", "1:2:3", "0:99999999999999999999", "1.5:2"):
            with self.subTest(samples):
                self.refused("inspect", config, f"--samples={samples}")
        self.refused("inspect", config)
        self.refused("inspect", "missing.yaml", "--samples", "0:1", mentions=["missing.yaml"])
        self.refused("inspect", config, "--samples", "0:1", "data.seq_len=0", mentions=["data.seq_len"])
        self.refused("inspect", config, "--samples", "0:1", "data.train=[]", mentions=["data.train"])
