#!/usr/bin/env python3
"""Runs the commands of the documentation that need no GPU, page by page and in order, in a folder that looks like a checkout.

    docs_check.py OCTAVO [PAGE...]

The first line of a fenced block says what its commands need:

    ```sh run           nothing, so they run here. `sh run tokenizers` needs Python with that package, and is skipped without it
    ```sh gpu           a GPU
    ```sh data          more text than a test has
    ```sh cluster       a cluster, a container engine or the network
    ```sh build         a build of the checkout, which CI tests anyway

Blocks after the commands quote their output. Each line must occur in the output, in the same order, but lines may be omitted.

    ```text output      numbers differ from those of the output by at most a tenth
    ```text shape       numbers may differ, like measured times

The folder has this program, scripts, configs and docs. It also has small versions of the inputs that pages assume, my_project/ and texts/.
The config of the quick start is reduced to a few steps.
"""

import os
import re
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
NEEDS = {"run", "gpu", "data", "cluster", "build"}
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


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/internals").glob("*.md"))]


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


def make_folder(folder):
    (folder / "build").mkdir()
    (folder / "build/octavo").symlink_to(OCTAVO)
    for name in ("scripts", "README.md"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("benchmarks"))
    shutil.copytree(ROOT / "configs", folder / "configs")
    config = folder / "configs/quickstart.yaml"
    text = config.read_text()
    for key, few in (("steps", 4), ("warmup_steps", 2), ("batches", 2)):
        text, count = re.subn(rf"\b{key}: \d+", f"{key}: {few}", text)
        assert count, f"{config.name} has no {key}"
    config.write_text(text)
    for name in ("my_project", "texts"):
        (folder / name).mkdir()
        for path in [*sorted((ROOT / "core").glob("*.h")), *sorted((ROOT / "data").glob("*.h"))]:
            shutil.copy(path, folder / name / (path.name + (".txt" if name == "texts" else "")))


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
                   if not words or (words[0] not in NEEDS and words not in QUOTES)]
        self.assertEqual(unknown, [])

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
    todo = [block for block in blocks(page) if block[1][:1] == ["run"] or block[1] in QUOTES]
    if not todo:
        return

    def test(self):
        with tempfile.TemporaryDirectory(prefix="octavo_docs_") as scratch:
            make_folder(Path(scratch))
            output = None
            for line, words, text in todo:
                if words in QUOTES:
                    self.assertIsNotNone(output, f"{page.name}:{line}: no command has run before this output")
                    wrong = misquoted(text, output, words[1] == "output")
                    self.assertIsNone(wrong, f"{page.name}:{line}: not in the output of the commands above it:\n{output[-5000:]}")
                    continue
                if not has_packages(words[1:]):
                    print(f"{page.name}:{line}: left out for want of {' '.join(words[1:])}", file=sys.stderr)
                    continue
                began = time.monotonic()
                result = run(text, Path(scratch))
                output = result.stdout
                self.assertEqual(result.returncode, 0, f"{page.name}:{line}:\n{text}\n{result.stdout[-3000:]}")
                print(f"{page.name}:{line}: {time.monotonic() - began:.1f} s", file=sys.stderr)

    setattr(DocsTest, "test_" + re.sub(r"\W", "_", page.stem), test)


for one in [Path(name).resolve() for name in sys.argv[1:]] or pages():
    add_page(one)
if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
