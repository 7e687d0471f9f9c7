"""Tests that messages quoted in docs/troubleshooting.md still exist in the program and the launchers."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LITERALS = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+')


def messages():
    """Returns the string literals of the sources. Adjacent literals are joined, and … stands for inserted values."""
    texts = []
    for folder in ("app", "checkpoint", "core", "data", "kernels", "model", "parallel"):
        for path in sorted((ROOT / folder).rglob("*.cpp")) + sorted((ROOT / folder).rglob("*.h")):
            for match in LITERALS.finditer(path.read_text(encoding="utf-8")):
                text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[0]))
                text = re.sub(r"\\(.)", r"\1", text).replace("{{", "\1").replace("}}", "\2")
                texts.append(re.sub(r"\{[^{}]*\}", "…", text).replace("\1", "{").replace("\2", "}"))
    for name in ("launch_mpirun.sh", "launch_slurm.sh", "launching.sh"):
        for match in re.finditer(r'echo ("(?:[^"\\]|\\.)*")', (ROOT / "scripts" / name).read_text()):
            texts.append(re.sub(r"\$(\w+|\{[^}]*\}|\([^)]*\))", "…", match[1].strip('"')))
    return texts


def quoted():
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    first = page[: page.index("\n## Messages\n")].count("\n") + 1
    for number, line in list(enumerate(page.splitlines(), 1))[first:]:
        if line.startswith("| `"):
            for message in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                yield number, message


def occurs(message, text):
    """Returns whether the fixed parts of the message occur in the text, in their order."""
    position = 0
    for part in filter(None, (part.strip() for part in message.split("…"))):
        position = text.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return True


class TroubleshootingTest(unittest.TestCase):
    def test_every_quoted_message_is_in_the_source(self):
        texts = messages()
        lines = list(quoted())
        self.assertGreater(len(lines), 80)
        gone = [f"{number}: {message}" for number, message in lines if not any(occurs(message, text) for text in texts)]
        self.assertEqual(gone, [])

    def test_a_message_that_is_gone_is_found(self):
        self.assertTrue(occurs("is …, expected …", "…: … is …, expected …"))
        self.assertFalse(occurs("expected …, but is", "… is …, expected …"))


if __name__ == "__main__":
    unittest.main()
