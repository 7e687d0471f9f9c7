#!/usr/bin/env python3
"""Runs the commands of the documentation, page by page and in order. Each page has a new folder that looks like a checkout.

    docs_check.py OCTAVO [PAGE...]

The first line of a fenced block says what its commands need:

    ```sh run           nothing. `sh run tokenizers` needs Python with that package, and is skipped without it
    ```sh gpu           a GPU
    ```sh data          more text than a test has
    ```sh cluster       a cluster, a container engine, the network, a GPU's profiler or a run of weeks
    ```sh build         a build of the checkout, which CI tests anyway

Blocks of the first three kinds run on the CPU. The program of the folder is a script that adds the values of SMALL to `train` and `bench`,
before the page's own values, so a page trains a small model for a few steps. Blocks of the last two kinds are not run. bash parses them,
their `octavo train` and launchers become dry runs with the same values, and their `octavo config` and `octavo plan` run.

Blocks after the commands quote their output. Each line must occur in the output, in the same order, but lines may be omitted.

    ```text output      numbers differ from those of the output by at most a tenth
    ```text shape       numbers may differ, like measured times

The folder has this program, scripts, configs and docs. It also has small versions of the inputs that pages assume (make_folder).
"""

import functools
import gzip
import itertools
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import python_packages  # noqa: E402

OCTAVO = Path(sys.argv.pop(1)).resolve()
RUN = {"run", "gpu", "data"}
PARSED = {"cluster", "build"}
QUOTES = (["text", "output"], ["text", "shape"])
# Words that users search for, and the page that answers them. README must name each word next to a link to its page.
SEARCHES = {
    "NaN": "docs/troubleshooting.md",
    "OOM": "docs/troubleshooting.md",
    "out of memory": "docs/troubleshooting.md",
    "hang": "docs/troubleshooting.md",
    "slow": "docs/troubleshooting.md",
    "mix datasets": "docs/data.md",
    "tokenizer": "docs/data.md",
    "change the learning rate": "docs/schedules.md",
    "batch size": "docs/schedules.md",
    "stages": "docs/schedules.md",
    "number of GPUs": "docs/parallelism.md",
    "FSDP": "docs/parallelism.md",
    "cost": "docs/plan.md",
    "memory": "docs/memory.md",
    "recomputation": "docs/memory.md",
    "FP8": "docs/precision.md",
    "faster": "docs/tuning.md",
    "resume": "docs/checkpoints.md",
    "Hugging Face": "docs/evaluation.md",
    "loss spike": "docs/reliability.md",
    "lm-evaluation-harness": "docs/evaluation.md",
    "W&B": "docs/pictures.md",
    "TensorBoard": "docs/pictures.md",
    "Prometheus": "docs/metrics.md",
    "Slurm": "docs/cluster.md",
    "config": "docs/config.md",
    "tested": "docs/status.md",
    "on your own text": "docs/guide.md",
}
FIGURE = re.compile(r"(?<![A-Za-z_.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
COMMIT = re.compile(r"commit [0-9a-f]{7,}(-dirty)?")
TIMEOUT = 300
# Sizes of a model and a run that take a second on a CPU. The vocabulary stays that of the page, except in benchmarks, which read no text.
SMALL = ("device=cpu plan.gpus=1 model.hidden_size=32 model.intermediate_size=64 model.num_layers=2 model.num_heads=1 model.num_kv_heads=1 "
         "model.head_dim=32 data.seq_len=64 training.steps=4 training.global_batch_size=4 training.micro_batch_size=1 "
         "optimizer.warmup_steps=1 validation.batches=1")
PROGRAM = """#!/bin/bash
# Starts octavo. Training and benchmarks get small sizes after the config.
case "${1:-}" in
  train) set -- "$1" "${2:-}" %(small)s "${@:3}" ;;
  bench) set -- "$1" "${2:-}" %(small)s model.vocab_size=512 "${@:3}" ;;
esac
exec %(octavo)s "$@"
"""
# Arguments that turn a command of a page into a dry run with token files that exist.
DRY_RUN = ["--dry-run", "data.train=[{path: own/data/train}]", "data.validation=[{path: own/data/held_out}]", "data.tokenizer=byte"]
# Options whose value is a file or folder that a command creates, and the arguments of `export`.
OUTPUT = re.compile(r"(?:(?:--output|--hold-out-output|octavo export \S+) |logging\.dir=|checkpoint\.dir=)(\S+)")


def pages():
    folders = [ROOT / "docs", ROOT / "docs/internals"]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs/benchmarks/README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]


def blocks(page):
    """Returns (line, words after the language, text) of each fenced block of shell commands or output. Blocks of output have the word
    "text" before their own words."""
    found, begin, words, lines = [], None, [], []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```") and begin is None:
            begin, words, lines = number, line[3:].split(), []
        elif line.startswith("```"):
            if words[:1] == ["sh"]:
                found.append((begin, words[1:], "\n".join(lines) + "\n"))
            elif words[:1] == ["text"]:
                found.append((begin, words, "\n".join(lines) + "\n"))
            begin = None
        else:
            lines.append(line)
    assert begin is None, f"{page}:{begin}: the block does not end"
    return found


def anchors(page):
    """Returns the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def has_packages(names):
    """Returns whether the scripts find a Python that has the packages."""
    return not python_packages.missing_packages(names) or python_packages.other_python(names) is not None


@functools.cache
def documents():
    """Returns documents of random words. They have enough pairs for a tokenizer of 32,000 entries, which the guide trains."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 12))) for _ in range(12000)]
    return [" ".join(draw.choices(words, k=100)) for _ in range(1200)]


def write_texts(folder):
    for name in ("my_project", "texts", "web", "more"):
        (folder / name).mkdir()
    for path in [*sorted((ROOT / "core").glob("*.h")), *sorted((ROOT / "data").glob("*.h"))]:
        shutil.copy(path, folder / "my_project" / path.name)
    lines = "".join(json.dumps({"text": document}) + "\n" for document in documents())
    (folder / "texts/documents.jsonl").write_text(lines)
    (folder / "web/documents.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 1))
    (folder / "more/document.txt").write_text("A document that is in no other folder.\n")


def write_tokenizer(folder):
    """Writes a tokenizer with a token for each printable character of ASCII."""
    names = [chr(code) for code in range(32, 127)]
    special = [{"id": 95 + i, "content": f"<|{name}_of_text|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False} for i, name in enumerate(("begin", "end"))]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": None,
                 "post_processor": None, "decoder": {"type": "Fuse"},
                 "model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "merges": []}}
    (folder / "corpus").mkdir()
    for path in ("tokenizer.json", "corpus/tokenizer.json"):
        (folder / path).write_text(json.dumps(tokenizer))


def make_folder(folder):
    (folder / "build").mkdir()
    program = folder / "build/octavo"
    program.write_text(PROGRAM % {"small": SMALL, "octavo": shlex.quote(str(OCTAVO))})
    program.chmod(0o755)
    for name in ("scripts", "README.md"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("benchmarks"))
    shutil.copytree(ROOT / "configs", folder / "configs")
    write_texts(folder)
    write_tokenizer(folder)
    # CONFIG.yaml is the config of the quick start with its own token files and run folder.
    (folder / "CONFIG.yaml").write_text((ROOT / "configs/quickstart.yaml").read_text().replace("runs/quickstart", "own"))
    run("octavo pack --input my_project/ --output own/data/train --hold-out-every 20 --hold-out-output own/data/held_out", folder).check_returncode()


def checks(text):
    """Returns commands that check the arguments of the octavo commands and launchers in a block that is not run."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        for is_operator, words in itertools.groupby(shlex.split(line, comments=True), lambda word: word in ("&&", "||", "|", ";")):
            command = [] if is_operator else list(words)
            for i, word in enumerate(command):
                name, rest = Path(word).name, command[i + 1:]
                if name in ("launch_mpirun.sh", "launch_slurm.sh"):
                    name, rest = "octavo", ["train", *(rest[2:] if rest[:1] == ["--restarts"] else rest)]
                if name == "octavo" and rest[:1] in (["train"], ["config"], ["plan"]):
                    found.append(shlex.join(["octavo", *rest[:2], *(DRY_RUN if rest[0] == "train" else []), *rest[2:]]))
    return found


def split_figures(line):
    """Returns the words of the line with # in place of numbers, and the numbers."""
    line = " ".join(COMMIT.sub("commit #", line).split())
    return FIGURE.sub("#", line), [float(figure.replace(",", "")) for figure in FIGURE.findall(line)]


def is_close(quoted, printed):
    return abs(quoted - printed) <= 0.1 * max(abs(quoted), abs(printed))


def misquoted(quote, output, compare_figures):
    """Returns the first quoted line that does not occur in the output after the lines before it, or None."""
    printed = iter([split_figures(line) for line in output.splitlines()])
    for line in quote.splitlines():
        words, figures = split_figures(line)
        if not any(words == found and (not compare_figures or all(map(is_close, figures, others))) for found, others in printed):
            return line
    return None


def run(text, folder):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_COMM", "PMIX", "OCTAVO", "NPROC", "HOSTFILE")) or key == "OCTAVO_PYTHON"}
    environment |= {
        "PATH": f"{folder}/build:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "NPROC": "2",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    return subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT)


class DocsTest(unittest.TestCase):
    def test_quoted_output_is_compared(self):
        output = "fits on 8 GPUs\nstep 600.8 ms  wps 109,086, commit 1218a4d4f\nthe end in 3 s\n"
        self.assertIsNone(misquoted("step 620 ms wps 104,600, commit 000000000-dirty\n the end in 3 s\n", output, True))
        self.assertEqual(misquoted("step 600.8 ms  wps 90,000, commit 1218a4d4f\n", output, True), "step 600.8 ms  wps 90,000, commit 1218a4d4f")
        self.assertIsNone(misquoted("step 1 ms  wps 2, commit 1218a4d4f\n", output, False))
        self.assertEqual(misquoted("the end in 3 s\nfits on 8 GPUs\n", output, True), "fits on 8 GPUs")
        self.assertEqual(misquoted("the end in three s\n", output, False), "the end in three s")

    def test_every_block_says_what_it_needs(self):
        unknown = [f"{page.name}:{line}: sh {' '.join(words)}" for page in pages() for line, words, _ in blocks(page)
                   if not words or (words[0] not in RUN | PARSED and words not in QUOTES)]
        self.assertEqual(unknown, [])

    def test_pages_do_not_write_to_the_paths_of_others(self):
        writers = {}
        for page in pages():
            for _, _, text in blocks(page):
                for path in OUTPUT.findall(text):
                    writers.setdefault(path, set()).add(page.name)
        self.assertEqual({path: names for path, names in writers.items() if len(names) > 1}, {})

    def test_commands_that_are_not_run_are_checked(self):
        text = "sbatch -n 2 \\\n  scripts/launch_slurm.sh --restarts 20 a.yaml x.y=1   # octavo train\nsrun octavo plan 'a b' && octavo train c\nocta train\n"
        self.assertEqual(checks(text), [shlex.join(["octavo", "train", "a.yaml", *DRY_RUN, "x.y=1"]), "octavo plan 'a b'", shlex.join(["octavo", "train", "c", *DRY_RUN])])

    def test_links_lead_somewhere(self):
        dead = []
        for page in [*pages(), ROOT / "CHANGELOG.md", *sorted((ROOT / "docs/benchmarks").glob("*.md"))]:
            for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
                if link.startswith(("http:", "https:", "mailto:")):
                    continue
                path, _, anchor = link.partition("#")
                target = page.parent / path if path else page
                if not target.exists() or (anchor and anchor not in anchors(target)):
                    dead.append(f"{page.name}: {link}")
        self.assertEqual(dead, [])

    def test_readme_leads_to_what_users_search_for(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        lost = [word for word, page in SEARCHES.items() if not any(word.lower() in line.lower() and f"]({page}" in line for line in readme)]
        self.assertEqual(lost, [], "README has no line with these words and a link to their page")
        silent = [word for word, page in SEARCHES.items() if word.lower() not in " ".join((ROOT / page).read_text(encoding="utf-8").lower().split())]
        self.assertEqual(silent, [], "the pages do not have these words")

    def test_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()), 150)


def add_page(page):
    todo = blocks(page)
    if not todo:
        return

    def test(self):
        with tempfile.TemporaryDirectory(prefix="octavo_docs_") as scratch:
            folder, output, page_began = Path(scratch), None, time.monotonic()
            make_folder(folder)
            for line, words, text in todo:
                where, began = f"{page.name}:{line}", time.monotonic()
                if words in QUOTES:
                    self.assertIsNotNone(output, f"{where}: no command has run before this output")
                    wrong = misquoted(text, output, words[1] == "output")
                    self.assertIsNone(wrong, f"{where}: not in the output of the commands above it:\n{output[-5000:]}")
                    continue
                if not has_packages(words[1:]):
                    print(f"{where}: left out for want of {' '.join(words[1:])}", file=sys.stderr)
                    continue
                if words[0] in PARSED:
                    parsed = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
                    self.assertEqual((parsed.returncode, parsed.stderr), (0, ""), where)
                    text = "\n".join(checks(text))
                result = run(text, folder)
                output = result.stdout if words[0] in RUN else None
                self.assertEqual(result.returncode, 0, f"{where}:\n{text}\n{result.stdout[-3000:]}")
                print(f"{where}: {time.monotonic() - began:.1f} s", file=sys.stderr)
            print(f"{page.name}: {time.monotonic() - page_began:.1f} s in total", file=sys.stderr)

    setattr(DocsTest, "test_" + re.sub(r"\W", "_", os.path.relpath(page, ROOT)), test)


for one in [Path(name).resolve() for name in sys.argv[1:]] or pages():
    add_page(one)
if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
