"""Helpers of the end-to-end tests: they run octavo, and write and read token files and safetensors independently of it."""

import array
import functools
import json
import os
import re
import select
import shutil
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DONE, FAILED, BAD_INPUT, STOPPED = 0, 1, 2, 3
ALLOW_SCHEDULE = "checkpoint.allow_changes=[schedule]"  # This override allows a resumed run to have another training.steps.
# Pattern of a line that octavo generate writes to stderr.
RATE = r"(\d+) tokens in [0-9.]+ s \([0-9.]+ tokens/s\)"
SPEED = rf"\Aweights of [^\n]*\nprompt {RATE}, generated {RATE}\n\Z"

# Limit in seconds for everything that a test waits for. Only a hang reaches it, even on a loaded machine and under sanitizers.
HANG_S = 300

# After one rank has ended, mpirun asks the others twice to end, a second apart, before it kills them. This variable skips the wait in tests
# whose ranks have already written all output or are killed anyway.
AT_ONCE = {"OMPI_MCA_odls_base_sigkill_timeout": "0"}

# Device of the runs. OCTAVO_TEST_DEVICE=cuda runs the tests of resumption, guards, checkpoints in memory and kills on GPUs. A test that
# needs more ranks than there are GPUs is skipped.
DEVICE = os.environ.get("OCTAVO_TEST_DEVICE", "cpu")

# A model whose steps take milliseconds and that still has grouped-query attention and several layers.
TINY_MODEL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 32 if DEVICE == "cpu" else 64,  # Attention within documents has no kernel for heads of 32 on GPUs.
    "vocab_size": 272,
    "rope_theta": 10000.0,
}


class Result:
    def __init__(self, code, out, err):
        self.code, self.out_bytes = code, out
        self.out = out.decode(errors="replace")
        self.err = err.decode(errors="replace")

    def octavo_lines(self):
        """Returns the lines that octavo itself wrote to stderr. mpirun adds other lines."""
        return [line for line in self.err.splitlines() if line.startswith("octavo: ")]


def environment():
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_COMM", "PMIX", "PMI_", "SLURM_"))}
    if DEVICE == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""  # This hides the GPUs.
    return variables | {
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # Waiting ranks yield the cores to the ranks of a concurrent test.
        # These options are for builds with sanitizers. Refused memory is tested separately, and Open MPI leaks memory of modules that it
        # has unloaded, which no suppression can name.
        "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1:detect_leaks=0",
    }


@functools.cache
def number_of_gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return 0
    return len(listed.splitlines())


def command(arguments, ranks=1, launcher_options=()):
    line = [os.environ["OCTAVO"], *map(str, arguments)]
    if DEVICE != "cpu" and ranks > number_of_gpus():
        raise unittest.SkipTest(f"needs {ranks} GPUs")
    if ranks == 1:
        return line
    return ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *launcher_options, *line]


def wait(process, timeout):
    """Waits for the process and returns its exit code. Popen.wait(timeout) checks only every 50 ms. If the kernel has pidfds, this function
    reacts at once."""
    if process.returncode is None:
        try:
            ended = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            return process.wait(timeout)
        try:
            if not select.select([ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(process.args, timeout)
        finally:
            os.close(ended)
    return process.wait()


class Scratch(unittest.TestCase):
    """Base class of tests. The tests of a class share the directory `self.root`, and each test has its own directory `self.dir` below
    it."""

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="octavo_", ignore_cleanup_errors=True)
        cls.addClassCleanup(scratch.cleanup)
        cls.root = Path(scratch.name)

    def setUp(self):
        self.dir = Path(tempfile.mkdtemp(prefix=self._testMethodName + "_", dir=self.root))

    def start(self, *arguments, ranks=1, launcher_options=(), stdout=None, **options):
        """Starts octavo in self.dir."""
        return self.start_line(command(arguments, ranks, launcher_options), stdout, **options)

    def start_line(self, line, stdout=None, variables=None, **options):
        """Starts a command in self.dir. Its output goes to files, so that it never waits for a reader."""
        out, err = tempfile.TemporaryFile(dir=self.root), tempfile.TemporaryFile(dir=self.root)
        process = subprocess.Popen(line, stdout=stdout or out, stderr=err, cwd=self.dir,
                                   env=environment() | (variables or {}), **options)
        process.captured = (out, err)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
            process.wait()
        for file in process.captured:
            file.close()

    def finish(self, process, timeout=HANG_S):
        code = wait(process, timeout)
        texts = []
        for file in process.captured:
            file.seek(0)
            texts.append(file.read())
        return Result(code, *texts)

    def run_octavo(self, *arguments, ranks=1, code=DONE, **options):
        result = self.finish(self.start(*arguments, ranks=ranks, **options))
        self.assertEqual(result.code, code, f"{arguments}: {result.out[-1500:]}{result.err[-1500:]}")
        if code in (DONE, STOPPED) and ranks == 1:
            self.assertRegex(result.err, SPEED if arguments[0] == "generate" else r"\A\Z", arguments)
        return result

    def refused(self, *arguments, ranks=1, code=BAD_INPUT, mentions=(), **options):
        """Expects that octavo fails with `code` and one sentence that contains everything in `mentions`."""
        # All ranks know of the error, so no rank needs time after the first one has ended.
        if ranks > 1 and code == BAD_INPUT:
            options["variables"] = AT_ONCE | options.get("variables", {})
        result = self.run_octavo(*arguments, ranks=ranks, code=code, **options)
        if arguments[0] == "generate":  # octavo generate first names the weights that it uses.
            result.err = re.sub(r"\Aweights of .*\n", "", result.err)
        lines = result.octavo_lines()
        self.assertEqual(len(lines), 1, f"{arguments}: {result.err}")
        if ranks == 1:
            self.assertEqual(result.err, lines[0] + "\n", f"{arguments}: more than one line")
        for text in mentions:
            self.assertIn(str(text), lines[0], arguments)
        return lines[0]

    def config(self, train, name="config.yaml", **sections):
        """Writes a config of a tiny model into self.dir. `sections` override the defaults."""
        content = {
            "model": dict(TINY_MODEL),
            "data": {"train": [{"path": str(train)}], "seq_len": 32, "bos_id": 256, "eos_id": 257},
            "training": {"steps": 6, "global_batch_size": 8, "micro_batch_size": 4},
            "optimizer": {"lr": 3e-3, "warmup_steps": 2},
            # Not async, because a due save would be postponed if the previous one takes long.
            "checkpoint": {"dir": "checkpoints", "every": 0, "async": False},
            "logging": {"every": 1, "dir": "log", "tensorboard": False},
            "device": DEVICE,
        }
        if DEVICE != "cpu":
            content["training"]["deterministic"] = True  # On a GPU, two runs have equal bits only with this key.
        for section, values in sections.items():
            if isinstance(values, dict) and isinstance(content.get(section), dict):
                content[section] |= values
            else:
                content[section] = values
        path = self.dir / name
        # JSON is valid YAML.
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
        return path

    def metrics(self, log="log"):
        """Returns the metrics by step. If a restart repeated a step, the last line of the step counts."""
        lines = (self.dir / log / "metrics.jsonl").read_text().splitlines()
        return {entry["step"]: entry for entry in map(json.loads, lines)}

    def losses(self, log="log"):
        return {step: (entry["loss"], entry["grad_norm"]) for step, entry in self.metrics(log).items()}

    def assert_close(self, actual, expected, relative):
        """Compares two dicts that map a step to (loss, grad_norm). GPUs compute in bfloat16, where another order of additions shows
        in the third digit."""
        relative = relative if DEVICE == "cpu" else max(relative, 5e-3)
        self.assertEqual(sorted(actual), sorted(expected))
        for step, values in expected.items():
            for got, wanted in zip(actual[step], values):
                self.assertLessEqual(abs(got - wanted), relative * abs(wanted), f"step {step}: {got} and {wanted}")

    def wait_for(self, condition, process, seconds=HANG_S):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertIsNone(process.poll(), f"ended early: {process.returncode}")
            self.assertLess(time.monotonic(), deadline, "nothing happened")
            time.sleep(0.005)


def metrics_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def checkpoints(directory):
    return sorted(path.name for path in directory.glob("step_*"))


def snapshot(directory):
    """Returns the content of every file below a directory."""
    return {path: path.read_bytes() for path in sorted(Path(directory).rglob("*")) if path.is_file()}


def copy_tree(source, target):
    return Path(shutil.copytree(source, target))


# --- token files

CODES = {"u8": (1, "B"), "i32": (4, "i"), "u16": (8, "H")}


def write_megatron(prefix, documents, dtype="u16", sequences_per_document=None):
    """Writes a token file in the format of Megatron. `sequences_per_document` divides documents into several sequences."""
    code, letter = CODES[dtype]
    prefix = str(prefix)
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    offsets, offset = [], 0
    with open(prefix + ".bin", "wb") as file:
        for tokens in documents:
            data = struct.pack(f"<{len(tokens)}{letter}", *tokens)
            offsets.append(offset)
            offset += len(data)
            file.write(data)
    index = [0]
    for count in sequences_per_document or [1] * len(documents):
        index.append(index[-1] + count)
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(documents), len(index)))
        file.write(struct.pack(f"<{len(documents)}i", *map(len, documents)))
        file.write(struct.pack(f"<{len(documents)}q", *offsets))
        file.write(struct.pack(f"<{len(index)}q", *index))
    return prefix


def read_megatron(prefix):
    """Returns (dtype code, documents as lists of tokens) and checks every field of the format."""
    idx, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    magic, (version, code, sequences, entries) = idx[:9], struct.unpack_from("<QBQQ", idx, 9)
    assert magic == b"MMIDIDX\0\0" and version == 1, (magic, version)
    assert len(idx) == 34 + 12 * sequences + 8 * entries, len(idx)
    lengths = struct.unpack_from(f"<{sequences}i", idx, 34)
    offsets = struct.unpack_from(f"<{sequences}q", idx, 34 + 4 * sequences)
    index = struct.unpack_from(f"<{entries}q", idx, 34 + 12 * sequences)
    letter = {value: name for value, name in CODES.values()}[code]
    read = [list(struct.unpack_from(f"<{n}{letter}", data, offset)) for n, offset in zip(lengths, offsets)]
    assert sum(lengths) * struct.calcsize(letter) == len(data)
    return code, [sum(read[begin:end], []) for begin, end in zip(index, index[1:])]


def write_llm_c(path, tokens, llama3=False):
    magic, version = (20240801, 7) if llama3 else (20240520, 1)
    header = struct.pack("<3i", magic, version, len(tokens)).ljust(1024, b"\0")
    Path(path).write_bytes(header + struct.pack(f"<{len(tokens)}{'I' if llama3 else 'H'}", *tokens))
    return str(path)


def text_documents(count, length, seed=1):
    """Returns documents of lower-case words with a structure that a model can learn. They are equal in every run."""
    state, documents = seed, []
    words = [b"octavo", b"folio", b"quarto", b"leaf", b"sheet", b"page"]
    for _ in range(count):
        text = b""
        while len(text) < length:
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            text += words[state >> 40 & 7 if (state >> 40 & 7) < 6 else 0] + b" "
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        documents.append(list(text[: length - (state >> 33) % (length // 2)]))
    return documents


# --- safetensors

SAFETENSORS = {"F32": (4, "f"), "BF16": (2, "H"), "I64": (8, "q"), "I32": (4, "i"), "F64": (8, "d")}


def read_safetensors(path):
    """Returns the tensors of a file as a dict: name -> (dtype, shape, bytes)."""
    raw = Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors, used = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], raw[8 + size + begin : 8 + size + end])
        used += end - begin
    assert used == len(raw) - 8 - size, "gaps between tensors"
    return tensors


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def numbers(tensor):
    """Returns the elements of a tensor of read_safetensors. bfloat16 is converted to float32."""
    dtype, _, content = tensor
    if dtype == "BF16":
        halves = array.array("H", content)
        return array.array("f", b"".join(struct.pack("<I", half << 16) for half in halves))
    return array.array(SAFETENSORS[dtype][1], content)


def split(content, count):
    """Returns the content as `count` equal parts."""
    size = len(content) // count
    return [content[size * i : size * (i + 1)] for i in range(count)]


def checkpoint_tensors(directory):
    """Returns all tensors of a checkpoint, joined over its ranks, as a dict: name -> (dtype, shape, bytes)."""
    manifest = json.loads((Path(directory) / "manifest.json").read_text())
    shards = {shard["file"]: read_safetensors(Path(directory) / shard["file"]) for shard in manifest["shards"]}
    dtypes = {"float32": "F32", "bfloat16": "BF16", "float8_e4m3": "F8_E4M3"}
    tensors = {}
    for tensor in manifest["tensors"]:
        slices = {}  # The dict maps column ranges to elements, row by row.
        for piece in sorted(tensor["pieces"], key=lambda piece: (piece.get("columns", []), piece["begin"])):
            columns = tuple(piece.get("columns", []))
            slices[columns] = slices.get(columns, b"") + shards[piece["file"]][piece["key"]][2]
        rows = [split(content, tensor["shape"][0]) for content in slices.values()]
        content = b"".join(part for row in zip(*rows, strict=True) for part in row)
        tensors[tensor["name"]] = (dtypes[tensor["dtype"]], tensor["shape"], content)
    return tensors


def relative_distance(a, b):
    """Returns |a - b| / |b| of two sequences of numbers."""
    difference = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
    return difference / max(sum(y * y for y in b) ** 0.5, 1e-30)
