"""Tests of training on several datasets: losses and epochs per dataset, named validation sets, skipped samples."""

import json
from pathlib import Path

from support import ALLOW_SCHEDULE, DONE, text_documents, write_megatron
from training_test import Corpus


class DatasetsTest(Corpus):
    def test_what_stands_beside_the_tokens_must_agree(self):
        config = self.two()
        sidecar = self.dir / "letters.json"
        byte = {"tokenizer": "byte", "vocab_size": 272, "bos": 256, "eos": 257}
        sidecar.write_text(json.dumps(byte))
        self.train(config, "training.steps=1")
        for wrong, mentions in (({"tokenizer": "t.json"}, ["the tokenizer t.json", "data.tokenizer is byte"]),
                                ({"tokenizer_hash": "0" * 64}, ["the tokenizer byte (hash 000000000000...)", "data.tokenizer is byte"]),
                                ({"vocab_size": 273}, ["vocab_size 273", "model.vocab_size is 272"])):
            sidecar.write_text(json.dumps(byte | wrong))
            for line in (("train", config, "checkpoint.resume=never"), ("evaluate", config), ("bench", config, "--data")):
                self.refused(*line, mentions=["letters.json", *mentions])
        self.refused("train", config, "checkpoint.resume=never", ranks=2, mentions=["letters.json"])
        # An explicit id overrides the sidecar, and is named.
        sidecar.write_text(json.dumps(byte | {"eos": 9}))
        out = " ".join(self.train(config, "checkpoint.resume=never", "training.steps=1").out.split())
        self.assertRegex(out, r"documents: data\.eos_id 257 overrides eos 9 of \S*letters\.json")

    def test_bos_and_eos_come_from_the_sidecars(self):
        sidecar = self.dir / "letters.json"
        sidecar.write_text(json.dumps({"tokenizer": "byte", "vocab_size": 272, "bos": 256, "eos": 257}))
        letters = write_megatron(self.dir / "letters", [[97 + i % 20 for i in range(50)]] * 9)
        config = self.config(letters, data={"bos_id": "auto", "eos_id": "auto"}, training={"steps": 2})
        self.assertRegex(self.run_octavo("config", config).out, "bos_id: 256\n  eos_id: 257\n")
        explicit = self.run_octavo("inspect", config, "data.bos_id=256", "data.eos_id=257", "--samples", "0:9").out
        self.assertEqual(self.run_octavo("inspect", config, "--samples", "0:9").out, explicit)
        self.assertIn("documents: bos 256, eos 257\n", self.train(config, "checkpoint.dir=both", "logging.dir=both_log").out)
        # A run that was trained without separators continues without them.
        result = self.train(config, "data.bos_id=null", "data.eos_id=null")
        self.assertIn("documents: no separators inserted", result.out)
        result = self.run_octavo("train", config, "training.steps=3", ALLOW_SCHEDULE, ranks=2)
        self.assertIn("documents: no separators inserted", result.out)
        self.assertIn("the run keeps bos none and eos none", result.out + result.err)
        for number, ids in (("both/step_00000002", [256, 257]), ("checkpoints/step_00000003", [None, None])):
            loader = json.loads((self.dir / number / "manifest.json").read_text())["meta"]["loader"]
            self.assertEqual([loader["bos_id"], loader["eos_id"]], ids)
        plain = write_megatron(self.dir / "plain", [[97] * 99])
        self.refused("train", config, f"data.train=[letters, {plain}]", "checkpoint.resume=never", ranks=2,
                     mentions=["letters.json has bos 256", "plain.json"])

    def test_held_out_data_is_not_trained_on(self):
        write_megatron(self.dir / "corpus/train", [[97] * 99])
        held_out = write_megatron(self.dir / "corpus/held_out", [[98] * 99])
        config = self.config(self.dir / "corpus", data={"validation": [{"path": held_out}]}, training={"steps": 1})
        stages = "stages=[{steps: 1, data: {train: [corpus/train]}}, {steps: 1, data: {train: [corpus]}}]"
        for changes in ([], ["data.train=[corpus/train]", "training.steps=2", stages]):
            self.refused("train", config, *changes, mentions=["corpus/held_out.bin of data.train", "are the same file"])
        self.train(config, "data.allow_overlap=true")

    def test_a_folder_of_parts_is_one_dataset(self):
        texts = text_documents(40, 300)

        def write_part(part, documents, changes=()):
            prefix = write_megatron(self.dir / f"parts/part-0000{part}-of-00003", documents)
            sidecar = {"part": part, "parts": 3, "parts_of": "a", "tokens": sum(map(len, documents))}
            Path(prefix + ".json").write_text(json.dumps(sidecar | dict(changes)))

        for part, documents in ((1, texts[:15]), (2, []), (3, texts[15:])):
            write_part(part, documents)
        config = self.config(self.dir / "parts", training={"steps": 4})
        self.train(config, f"data.train=[{self.corpus}]", "logging.dir=whole", "checkpoint.dir=whole_checkpoints")
        self.train(config, "training.steps=2", ranks=2)
        last = self.dir / "parts/part-00003-of-00003"
        folder = [f"data.train=[{self.dir / 'parts'}]", ALLOW_SCHEDULE]
        for documents, changes, mentions in ((texts[15:], {"parts_of": "b"}, ["part 3 of 3 of another dataset"]),
                                             (texts[15:], {"part": 2}, ["are both part 2 of 3"]),
                                             (texts[15:], {"tokens": 1}, ["part-00003-of-00003", "has tokens 1"]),
                                             (texts[:14:-1], {}, ["dataset parts", "the text differs"])):
            write_part(3, documents, changes)
            for ranks in (1, 2):
                self.refused("train", config, *folder, ranks=ranks, mentions=mentions)
        last.with_suffix(".json").unlink()
        self.refused("train", config, *folder, mentions=["part-00003-of-00003", "is not a part of a dataset"])
        for end in (".bin", ".idx"):
            last.with_suffix(end).unlink()
        self.refused("train", config, *folder, mentions=["has 2 of the 3 parts", "part 3 is missing"])
        write_part(3, texts[15:])
        (self.dir / "parts").rename(self.dir / "moved")
        self.train(config, f"data.train=[{self.dir / 'moved'}]", ALLOW_SCHEDULE)
        whole, parts = self.losses("whole"), self.losses()
        for step in whole:
            self.assertAlmostEqual(parts[step][0], whole[step][0], delta=1e-5)

    def two(self, **data):
        letters = write_megatron(self.dir / "letters", [[97 + (i * 7) % 20 for i in range(900)]])
        return self.config(
            self.corpus,
            data={
                "train": [{"path": self.corpus, "name": "text", "weight": 3}, {"path": letters, "weight": 1}],
                "validation": [{"path": self.held_out, "name": "held out"}, {"path": letters, "weight": 3}],
                "allow_overlap": True,
            } | data,
            validation={"every": 3, "batches": 1},
        )

    def test_losses_by_dataset(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                result = self.train(self.two(), f"logging.dir=log{ranks}", f"checkpoint.dir=checkpoints{ranks}", ranks=ranks)
                self.assertRegex(result.out, r"data +text +[\d,]+ tokens  weight  75.0%  epochs 0.000 to \d")
                self.assertRegex(result.out, r"\n +letters +[\d,]+ tokens  weight  25.0%  epochs 0.000 to \d")
                for step, entry in self.metrics(f"log{ranks}").items():
                    # A step has 8 samples with equally many targets, of which 6 come from the first dataset.
                    losses = entry["loss_by_dataset"]
                    self.assertEqual(sorted(losses), ["letters", "text"])
                    self.assertAlmostEqual((6 * losses["text"] + 2 * losses["letters"]) / 8, entry["loss"], delta=1e-5)
                    self.assertAlmostEqual(entry["epochs"]["letters"], 2 * step * 33 / 902, delta=1e-9)
                    self.assertEqual("validation_loss" in entry, step % 3 == 0)
                    if step % 3 == 0:
                        parts = entry["validation_loss_by_dataset"]
                        mean = (parts["held out"] + 3 * parts["letters"]) / 4
                        self.assertAlmostEqual(mean, entry["validation_loss"], delta=1e-9)
        one, two = (self.metrics(f"log{ranks}") for ranks in (1, 2))
        for step, entry in one.items():
            for name, loss in entry["loss_by_dataset"].items():
                self.assertAlmostEqual(two[step]["loss_by_dataset"][name], loss, delta=1e-5)
        out = self.run_octavo("evaluate", self.two(), "checkpoint.dir=checkpoints1").out.splitlines()
        self.assertTrue(out[-3].startswith("held out  validation_loss"), out)
        self.assertTrue(out[-2].startswith("letters  validation_loss"), out)
        self.assertIn(f"{one[6]['validation_loss']:.6f}", out[-1])

    def test_skipped_samples(self):
        """The samples of step 2 are skipped, so the run continues with the samples that belonged to step 3."""
        whole = self.config(self.corpus, training={"steps": 4})
        self.train(whole, "logging.dir=whole", "checkpoint.dir=whole_checkpoints", "optimizer.lr=1e-30")
        result = self.train(whole, "data.skip=[[8, 16]]", "optimizer.lr=1e-30", "training.steps=3")
        self.assertIn("data.skip: step 2 skipped the samples 8 to 15", result.out)
        expected, skipped = self.losses("whole"), self.losses()
        for step, same in ((1, 1), (2, 3), (3, 4)):
            self.assertAlmostEqual(skipped[step][0], expected[same][0], delta=1e-6)
        manifest = json.loads((self.dir / "checkpoints/step_00000003/manifest.json").read_text())
        self.assertEqual(manifest["meta"]["loader"]["skipped"], [[8, 16]])
        self.assertEqual(manifest["meta"]["loader"]["next_sample"], 32)

    def test_resuming_from_another_sample(self):
        config = self.config(self.corpus, training={"steps": 2}, optimizer={"schedule": "constant"})
        self.train(config)
        result = self.train(config, "training.steps=3", "data.resume_from_sample=100")
        self.assertIn("the data continues at sample 100", result.out)
        # A requeued job repeats the override, which then has no effect.
        self.train(config, "training.steps=4", "data.resume_from_sample=100")
        manifest = json.loads((self.dir / "checkpoints/step_00000004/manifest.json").read_text())
        self.assertEqual(manifest["meta"]["loader"]["next_sample"], 100 + 2 * 8)

    def test_too_many_epochs(self):
        letters = write_megatron(self.dir / "letters", [[97 + i % 20 for i in range(300)]])
        train = [{"path": letters, "name": "few", "max_epochs": 2}]
        config = self.config(self.corpus, data={"train": train})
        self.refused("train", config, "data.on_max_epochs=error", mentions=["few", "max_epochs 2"])
        process = self.start("train", config)
        result = self.finish(process)
        self.assertEqual(result.code, DONE)
        self.assertEqual((result.out + result.err).count("exceeds the dataset's max_epochs 2"), 1)
        self.assertIn("data few: epoch 2 begins", result.out)
