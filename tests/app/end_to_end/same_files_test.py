"""Tests of ranks that see different files: the run is refused before it computes anything."""

import json
import os
import re
import shutil
import struct
import subprocess

from support import AT_ONCE, BAD_INPUT, DONE, HANG_S, Result, checkpoints, command, copy_tree, environment, snapshot, text_documents, write_megatron
from training_test import Corpus


class SameFilesTest(Corpus):
    """Rank 0 works in self.dir/a and rank 1 in self.dir/b. The paths in the config are relative, so each rank has its own files."""

    def setUp(self):
        super().setUp()
        self.a, self.b = self.dir / "a", self.dir / "b"
        self.a.mkdir()
        for suffix in (".bin", ".idx"):
            shutil.copy(self.corpus + suffix, self.a / f"corpus{suffix}")
        self.path = self.config("corpus", data={"validation": [{"path": "corpus"}], "allow_overlap": True}, training={"steps": 4},
                                checkpoint={"every": 2, "keep": 0}, optimizer={"schedule": "constant"})

    def apart(self, command, *arguments, code):
        line = [os.environ["OCTAVO"], command, *map(str, arguments)]
        launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "1", "--wdir", str(self.a), *line,
                  ":", "-n", "1", "--wdir", str(self.b), *line]
        done = subprocess.run(launch, cwd=self.dir, env=environment() | AT_ONCE, capture_output=True, timeout=HANG_S)
        result = Result(done.returncode, done.stdout, done.stderr)
        self.assertEqual(result.code, code, f"{arguments}: {result.out[-1500:]}{result.err[-1500:]}")
        return result

    def refused_apart(self, command, *arguments, mentions):
        before = snapshot(self.a), snapshot(self.b)
        lines = self.apart(command, *arguments, code=BAD_INPUT).octavo_lines()
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], r"rank 1 has .*, but rank 0 has .*; expected the same on every rank$")
        for text in mentions:
            self.assertIn(text, lines[0])
        self.assertEqual((snapshot(self.a), snapshot(self.b)), before)
        return lines[0]

    def train_in(self, folder, *overrides):
        self.run_octavo("train", self.path, *overrides, f"checkpoint.dir={folder}/checkpoints", f"logging.dir={folder}/log",
                        f"data.train=[{folder}/corpus]", f"data.validation=[{folder}/corpus]")

    def twins(self):
        """Creates both folders with equal checkpoints of step 4."""
        self.train_in("a", "checkpoint.every=0")
        copy_tree(self.a, self.b)

    def test_the_same_in_both_folders(self):
        self.twins()
        self.apart("evaluate", self.path, code=DONE)
        self.apart("generate", "checkpoints", "--prompt", "page", "--max-tokens", 2, code=DONE)

    def test_a_checkpoint_that_one_rank_has(self):
        step = "checkpoints/step_00000004"
        self.twins()
        shutil.rmtree(self.b / step)
        for command, *rest in (("train", self.path, "training.steps=6"), ("evaluate", self.path),
                               ("train", self.path, f"checkpoint.resume={step}"), ("generate", step, "--prompt", "x"),
                               ("evaluate", self.path, "checkpoint.resume=never", f"model.init_from={step}")):
            with self.subTest(command=command, rest=rest):
                self.refused_apart(command, *rest, mentions=[step, "step 4, manifest"])

    def test_a_checkpoint_that_rank_0_lacks(self):
        """Only rank 0 looks for checkpoints. The run is still refused, because the ranks would write to different folders."""
        self.twins()
        shutil.rmtree(self.a / "checkpoints/step_00000004")
        before = snapshot(self.a), snapshot(self.b)
        lines = self.apart("train", self.path, "training.steps=6", code=BAD_INPUT).octavo_lines()
        self.assertRegex(lines[0], r"checkpoint.dir checkpoints on rank 1 is not the directory of rank 0")
        self.assertEqual((snapshot(self.a), snapshot(self.b)), before)

    def test_other_ranks_read_the_end_of_the_manifest_alone(self):
        """The other ranks do not look for checkpoints, so the rest of their folder does not matter."""
        self.twins()
        alike = self.apart("evaluate", self.path, code=DONE).out
        (self.b / "checkpoints/step_00000009").symlink_to("step_00000009")
        manifest = self.b / "checkpoints/step_00000004/manifest.json"
        content = manifest.read_bytes()
        manifest.write_bytes(b"?" * (len(content) - 64) + content[-64:])
        self.assertEqual(self.apart("evaluate", self.path, code=DONE).out, alike)
        self.apart("evaluate", self.path, "checkpoint.resume=never", "model.init_from=checkpoints", code=DONE)
        self.apart("generate", "checkpoints", "--prompt", "page", "--max-tokens", 2, code=DONE)
        for other in (b"?" * 30 + content[30:-40] + b"?" * 10 + content[-30:], content[:-64] + b" " + content[-64:]):
            manifest.write_bytes(other)
            for command in (("train", self.path, "training.steps=6"), ("generate", "checkpoints", "--prompt", "page")):
                self.refused_apart(*command, mentions=["has the checkpoint checkpoints/step_00000004 with another manifest"])

    def test_rank_0_decides(self):
        """All ranks use the newest checkpoint of rank 0, even if another rank has a newer one."""
        self.twins()
        alike = self.apart("evaluate", self.path, code=DONE).out
        shutil.rmtree(self.b / "log")
        self.train_in("b", "checkpoint.every=0", "training.steps=9")
        self.assertEqual(checkpoints(self.b / "checkpoints"), ["step_00000004", "step_00000009"])
        self.assertEqual(self.apart("evaluate", self.path, code=DONE).out, alike)

    def test_checkpoints_that_would_be_written_apart(self):
        self.twins()
        for command in (("train", self.path, "training.steps=6"), ("train", self.path, "checkpoint.dir=new")):
            lines = self.apart(*command, code=BAD_INPUT).octavo_lines()
            self.assertEqual(len(lines), 1, lines)
            self.assertRegex(lines[0], r"checkpoint.dir (checkpoints|new) on rank 1 is not the directory of rank 0")
            self.assertEqual([path.name for path in self.a.rglob(".*")], [])

    def test_a_checkpoint_of_another_run(self):
        self.twins()
        shutil.rmtree(self.b / "checkpoints")
        shutil.rmtree(self.b / "log")
        self.train_in("b", "training.seed=5", "checkpoint.every=0")
        step = "checkpoints/step_00000004"
        for command, *rest in (("train", self.path, "training.steps=6"), ("evaluate", self.path),
                               ("generate", "checkpoints", "--prompt", "x"),
                               ("train", self.path, "checkpoint.dir=new", f"model.init_from={step}")):
            with self.subTest(command=command, rest=rest):
                self.refused_apart(command, *rest, mentions=[step])

    def test_a_flipped_bit_that_one_rank_sees(self):
        """Each rank verifies the data that it uses, even if the ranks share a shard that another mesh wrote."""
        self.twins()
        step = "checkpoints/step_00000004"
        resume = "train", self.path, "training.steps=6", f"checkpoint.dir={self.dir}/both", f"checkpoint.resume={step}"
        pieces = {tensor["name"]: tensor["pieces"] for tensor in json.loads((self.a / step / "manifest.json").read_text())["tensors"]}
        # Each rank uses one half of this piece.
        key = pieces["lm_head.weight"][0]["key"]
        shard = self.b / step / "rank_00000.safetensors"
        content = bytearray(shard.read_bytes())
        length = struct.unpack("<Q", content[:8])[0]
        begin, end = json.loads(content[8:8 + length])[key]["data_offsets"]
        content[8 + length + (begin + end) // 2] ^= 1
        shard.write_bytes(content)
        lines = self.apart(*resume, code=BAD_INPUT).octavo_lines()
        self.assertRegex(lines[-1], f"{step}/rank_00000.safetensors: tensor {re.escape(key)} is damaged")

    def test_weights_of_another_export(self):
        self.twins()
        for folder in (self.a, self.b):
            self.run_octavo("export", folder / "checkpoints", folder / "hf")
        weights = self.b / "hf/model.safetensors"
        content = weights.read_bytes()
        weights.write_bytes(content[:-2] + b"\1\2")
        self.refused_apart("evaluate", self.path, "checkpoint.resume=never", "model.init_from=hf", mentions=["hf/"])
        weights.unlink()
        self.refused_apart("train", self.path, "checkpoint.dir=new", "model.init_from=hf", mentions=["hf"])
        weights.write_bytes(content)
        self.apart("evaluate", self.path, "checkpoint.resume=never", "model.init_from=hf", code=DONE)

    def test_data(self):
        self.twins()
        tokens = self.b / "corpus.bin"
        content = tokens.read_bytes()

        def other_token():
            tokens.write_bytes(struct.pack("<H", 1) + content[2:])

        def other_documents():
            write_megatron(self.b / "corpus", text_documents(50, 300, seed=9))

        for damage in (other_token, other_documents, tokens.unlink):
            damage()
            for command, key in (("train", "data.train"), ("evaluate", "data.validation")):
                with self.subTest(damage=damage.__name__, command=command):
                    self.refused_apart(command, self.path, mentions=[key, "corpus.bin"])
        self.refused_apart("train", self.path, "data.train=[../a/corpus]", mentions=["data.validation", "corpus.bin"])

    def test_nothing_is_written_before(self):
        copy_tree(self.a, self.b)
        write_megatron(self.b / "corpus", text_documents(50, 300, seed=9))
        self.refused_apart("train", self.path, mentions=["corpus"])
        self.assertEqual(checkpoints(self.a / "checkpoints"), [])


class ManifestReadsTest(Corpus):
    """Counts the system calls that ranks make for the manifest of the checkpoint that they resume."""

    TRACED = "openat,read,pread64,getdents64"

    def trace(self, *line):
        """Runs on three ranks under strace and returns the system calls, each line after the thread id."""
        launch = ["strace", "-ff", "-qq", "-y", "-s", "0", "-o", "trace", "-e", f"trace={self.TRACED}"]
        result = self.finish(self.start_line(launch + command(line, 3)))
        if "ptrace" in result.err:
            self.skipTest(result.err)
        self.assertEqual(result.code, DONE, result.err[-1500:])
        return [f"{path.suffix} {line}" for path in self.dir.glob("trace.*") for line in path.read_text(errors="replace").splitlines()]

    def test_one_rank_reads_it_once(self):
        if shutil.which("strace") is None:
            self.skipTest("strace is not here")
        config = self.config(self.corpus, training={"steps": 2, "global_batch_size": 12}, checkpoint={"every": 1, "keep": 0})
        self.train(config, ranks=3)
        manifest = self.dir / "checkpoints/step_00000002/manifest.json"
        lines = [line for line in self.trace("train", config, "training.steps=2") if "checkpoints" in line]
        opened = [line.split()[0] for line in lines if "openat" in line and "/step_00000002/manifest.json" in line]
        listed = {line.split()[0] for line in lines if re.search(r"getdents64\(\d+<[^>]*/checkpoints>", line)}
        read = [int(line.rsplit("= ", 1)[1]) for line in lines if re.search(r"read(64)?\(\d+<[^>]*manifest.json>", line)]
        self.assertEqual(len(opened), 4, "twice by rank 0, which looks for the tokenizer first, and once by each other rank")
        self.assertEqual(len(set(opened)), 3)
        self.assertEqual(len(listed), 1, "only rank 0 looks for checkpoints")
        self.assertEqual(sum(read), 2 * manifest.stat().st_size + 2 * 64)
