#!/usr/bin/env python3
"""Checks the English of comments, messages and documentation against simple rules, and prints each breach as file:line: reason.

    check_english.py [ROOT]       exit code 1 if there is a breach
    check_english.py --sample N SEED [FOLDER...]
                                  prints N items drawn at random, for a reader to judge. Comments, sentences of the
                                  documentation, descriptions of options and config keys, and messages are a quarter each
    check_english.py --messages   prints each message of the program, sorted by folder, for review
    check_english.py --self-test  plants breaches in a scratch tree and checks that each is found

The rules find words and forms that clear sentences seldom have. They cannot prove that a sentence is clear.
"""

import ast
import random
import re
import sys
import tempfile
from pathlib import Path

# Comments must not open with these words: they make a clause that depends on a neighbour instead of a sentence.
OPENINGS = re.compile(r"(Of|That|The same|As|And|But for|Again)\b(?!-)")
# A comment that opens with "What" is a clause without a verb unless it asks a question.
CLAUSE = re.compile(r"What\b[^?]*$")

# Phrases without a good use, and what to write instead. They hold for comments, messages and documentation.
PHRASES = {
    r"pass(es|ed|ing)? over\b": "iterate over, or skip",
    r"\banew\b": "again",
    r"\bgo(es|ing)? back to\b": "return to, or roll back to",
    r"\b(is|are|that) no UTF-8": "is invalid UTF-8",
    r"\bin the mean\b": "on average",
    r"\bhindrances?\b": "straggler, or problem",
    r"\bbut for\b": "except",
    r"\bset-backs?\b": "rollback",
    r"\bbehind each other\b": "one after the other",
    r"\bmade again\b": "recomputed",
    r"\bplanned (stream|mesh)\b": "dry-run stream or mesh",
    r"\bunless the config says so\b": "unless the config says otherwise",
    r"\b(FP8|bfloat16|matrix|linears'|library's|large|plain) products?\b": "matmul",
    r"\bproducts of (FP8|bfloat16|lm_head|the linears)": "matmul",
    r"\ba (step|rank|GPU|token|parameter|element|second) and (GPU|rank|step)\b": "per",
    r"\bfor want of\b": "because ... is missing",
    r"\bto begin with of\b": "",
    r"\b(is|are|was) no (directory|file|JSON|manifest|float)\b": "is not a ...",
    r"\bcannot be looked (at|up)\b": "cannot be accessed",
    r"\bin vain\b": "without success",
    r"\bspeaks? of\b": "says, or names",
}

# Files whose text is not prose of this project or is a record.
EXEMPT_PAGES = ("THIRD_PARTY_NOTICES.md", "docs/config.md")
LINE_LIMIT = 140
PARAGRAPH_LIMIT = 8
SOURCES = {".h": "//", ".cpp": "//", ".cu": "//", ".cuh": "//", ".py": "#", ".sh": "#", ".cmake": "#", "CMakeLists.txt": "#"}
FOLDERS = ("app", "checkpoint", "cmake", "core", "data", "kernels", "model", "parallel", "scripts", "tests")

# A file of the project that a comment or a page names, and names that only examples have.
FILE = re.compile(r"(?<![\w/.])(?:" + "|".join([*FOLDERS, "configs", "docs", "machines"]) + r")/[\w./-]+\.(?:h|cpp|cu|cuh|py|sh|md|yaml|json)\b")
INVENTED = re.compile(r"geglu|commands/convert\.cpp")

STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"' + r"|'(?:[^'\\\n]|\\.)*'")


def comments(text, mark):
    """Yields (line, text) of each comment. Lines of a comment that stand below each other are one comment."""
    blanked = "\n".join(STRING.sub(lambda match: "_" * len(match[0]), line) for line in text.splitlines())
    begin, column, words = None, None, []
    for number, line in enumerate(blanked.splitlines() + [""], 1):
        position = line.find(mark)
        is_comment = position >= 0 and (position == 0 or line[position - 1].isspace()) and not line[position:].startswith("#!")
        alone = is_comment and not line[:position].strip()
        if begin is not None and not (alone and position == column):
            yield begin, " ".join(words)
            begin = None
        if is_comment:
            original = text.splitlines()[number - 1][position + len(mark):].strip()
            if begin is None:
                begin, column, words = number, position, []
            words.append(original)


def docstrings(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            yield node.body[0].lineno, " ".join(ast.get_docstring(node).split())


def check_comment(comment):
    if OPENINGS.match(comment):
        yield f'the comment opens with "{OPENINGS.match(comment)[1]}": write a sentence'
    if CLAUSE.match(re.split(r"(?<=[.:;])\s", comment)[0]):
        yield 'the comment is a clause that opens with "What": say what it is'
    yield from check_phrases(comment)


def check_phrases(text):
    for phrase, instead in PHRASES.items():
        for match in re.finditer(phrase, text):
            yield f'"{match[0]}": write {instead or "something else"}'


def check_references(text, root):
    for name in FILE.findall(text):
        if not (root / name).exists() and not INVENTED.search(name):
            yield f"there is no file {name}"


def prose(page):
    """Yields (line, text) of the lines of a page that are prose: no tables, code, pictures or blank lines."""
    in_block = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            in_block = not in_block
        elif not in_block and not line.startswith(("|", "    ", "![")):
            yield number, line


def check_page(text):
    paragraph, begin = 0, 0
    last = 0
    for number, line in prose(text):
        for reason in check_phrases(re.sub(r"`[^`]*`", "``", line)):
            yield number, reason
        if len(line) > LINE_LIMIT and "](" not in line:
            yield number, f"{len(line)} columns, at most {LINE_LIMIT}"
        starts = not line.strip() or line.startswith(("#", "*", "-", ">")) or re.match(r"\d+\. ", line) or number != last + 1
        if starts:
            paragraph, begin = 0, number
        if line.strip() and not line.startswith("#"):
            paragraph += 1
            if paragraph == PARAGRAPH_LIMIT + 1:
                yield begin, f"a paragraph of more than {PARAGRAPH_LIMIT} lines"
        last = number
    rows = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.startswith("|")]
    before = -1
    for index, (number, line) in enumerate(rows):
        if number != before + 1 and not (index + 1 < len(rows) and rows[index + 1] == (number + 1, rows[index + 1][1]) and
                                         re.fullmatch(r"\|( *:?-+:? *\|)+", rows[index + 1][1].strip())):
            yield number, "a table without a header: a blank line cuts it, or its second row is missing"
        before = number


def files(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            mark = SOURCES.get(path.name, SOURCES.get(path.suffix))
            if mark and path.is_file():
                yield path, mark
    for path in [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]:
        if path.relative_to(root).as_posix() not in EXEMPT_PAGES:
            yield path, None


def check_tree(root):
    """Returns the number of files and the breaches as (path, line, reason)."""
    count, breaches = 0, []
    for path, mark in files(root):
        name = path.relative_to(root).as_posix()
        if path.name == Path(__file__).name:
            continue
        count += 1
        text = path.read_text(encoding="utf-8")
        if mark is None:
            breaches += [(name, line, reason) for line, reason in check_page(text)]
            if not name.startswith("docs/benchmarks/"):  # Reports name the files of their commit.
                breaches += [(name, number, reason) for number, line in enumerate(text.splitlines(), 1) for reason in check_references(line, root)]
            continue
        found = list(comments(text, mark)) + (list(docstrings(text)) if path.suffix == ".py" else [])
        breaches += [(name, line, reason) for line, comment in found for reason in [*check_comment(comment), *check_references(comment, root)]]
        breaches += [(name, line, reason) for line, text in messages(path, root) for reason in check_phrases(text)]
    return count, breaches


def sentences(page):
    """Yields (line, text) of each sentence of a page and of each cell of its tables."""
    paragraph, begin, last = "", 0, 0
    lines = list(prose(page)) + [(len(page.splitlines()) + 2, "")]
    for number, line in lines:
        starts = not line.strip() or line.startswith(("#", "* ", "- ")) or re.match(r"\d+\. ", line) or number != last + 1
        if starts and paragraph:
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\"])", " ".join(paragraph.split())):
                yield begin, sentence
            paragraph = ""
        if not paragraph:
            begin = number
        paragraph += line.lstrip("#*->") + "\n"
        last = number
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line)[1:-1]:
                yield number, re.sub(r"^(`[^`]*`,? ?)+$", "", cell.strip())


def literals(text, suffix):
    """Yields (line, text, whether it describes an option) of each string literal. Literals that stand next to each other are one."""
    if suffix == ".py":
        text = re.sub(r'"""(.*?)"""', lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"(?m)(^|[ \t])(//|#).*$", "", text)
    for match in re.finditer(r'(?:f?"(?:[^"\\\n]|\\.)*"\s*)+', text):
        literal = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[0]))
        before = re.split(r"[;{}]", text[: match.start()])[-1] if suffix != ".py" else text[: match.start()].rsplit("\n", 1)[-1]
        if suffix == ".sh" and not re.search(r"\b(echo|say|die|refuse)\b[^;|]*$", before):
            continue
        yield text[: match.start()].count("\n") + 1, literal, bool(re.search(r"add_(option|flag)\w*\([^()]*,\s*$|\bhelp=$|Help =\s*$", before))


def items(root):
    """Returns all (kind, file, line, text) that a sample is drawn from."""
    found = []
    for path, mark in files(root):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        if mark is None:
            found += [("sentence", name, number, sentence) for number, sentence in sentences(text)]
            continue
        remarks = list(comments(text, mark)) + (list(docstrings(text)) if path.suffix == ".py" else [])
        found += [("comment", name, number, comment) for number, comment in remarks if not comment.startswith(("shellcheck ", "SBATCH "))]
        if path.suffix in (".cpp", ".h", ".py", ".sh") and not name.startswith("tests/") and path.name not in ("config_keys.cpp", "model_fields.h", Path(__file__).name):
            found += [("option" if describes else "message", name, number, literal) for number, literal, describes in literals(text, path.suffix)]
    config = root / "docs/config.md"
    for number, line in enumerate(config.read_text(encoding="utf-8").splitlines() if config.exists() else [], 1):
        if re.match(r"\| `\w+(\.\w+)*` \| .* \| .* \| .* \|", line):
            found.append(("option", "docs/config.md", number, " | ".join(line.split(" | ")[0:2]).lstrip("| ")))
    least = {"comment": 3, "sentence": 5, "option": 3, "message": 5}
    return [item for item in found if sum(bool(re.fullmatch(r"\W*[A-Za-z'-]+\W*", word)) for word in item[3].split()) >= least[item[0]]]


def messages(path, root):
    """Yields (line, text) of each message of a source of the program, formats included. Overrides (KEY=VALUE) are no messages."""
    folder = path.relative_to(root).parts[0]
    if path.suffix in (".h", ".cpp", ".cu", ".cuh") and folder not in ("tests", "scripts") and path.name != "config_keys.cpp":
        for number, literal, _ in literals(path.read_text(encoding="utf-8"), path.suffix):
            overrides = all("=" in word for word in literal.split())
            if " " in literal and not overrides and len(re.findall(r"[A-Za-z]+", literal)) >= 3:
                yield number, literal


def sample(root, count, seed, folders):
    drawn = random.Random(seed)
    of_kind = {kind: [] for kind in ("comment", "sentence", "option", "message")}
    for kind, name, number, text in items(root):
        if not folders or name.startswith(tuple(folders)):
            of_kind[kind].append(f"{kind:8} {name}:{number}: {text}")
    of_kind = {kind: texts for kind, texts in of_kind.items() if texts}
    for rank, texts in enumerate(of_kind.values()):
        share = count // len(of_kind) + (rank < count % len(of_kind))
        print("\n".join(drawn.sample(texts, min(share, len(texts)))))


def self_test():
    # Each file with the number of breaches that must be found in it.
    planted = {
        "core/opening.h": ("// Of a run.\nint a;  // That it has.\nint b;  // As text.\n// The same again.\nint c;\n", 4),
        "core/clause.h": ("// What a run keeps.\nint a;\n// What is kept? The weights.\nint b;\n", 1),
        "core/phrase.cpp": ("// Passes over nothing.\n// It passes over bad lines and is made anew.\nint a;\n", 2),
        "core/sentence.h": ('// Returns the file that a run writes.\nint a;  // Number of runs.\nconst char* b = "// Of a text";\n', 0),
        "core/continued.h": ("// Returns the mean\n// As a number.\nint a;\n", 0),
        "scripts/script.py": ('"""Again and again."""\n# And a comment.\nx = "# Of a text"\n', 2),
        "core/text.cpp": ('fail("the file was made anew");\nfail("the file was written again");\n', 1),
        "docs/long.md": ("x" * 141 + "\n\n" + "y " * 60 + "\n\n| " + "z" * 200 + " |\n| --- |\n", 1),
        "docs/paragraph.md": ("a\n" * 9 + "\n" + "a\n" * 8, 1),
        "docs/table.md": ("| a |\n| --- |\n| b |\n\n| c |\n", 1),
        "core/reference.h": ("// Reads the format of core/gone.h (core/opening.h).\nint a;\n", 1),
        "docs/reference.md": ("See `core/gone.h` and `kernels/layers/geglu.h`.\n", 1),
        "docs/block.md": ("```text\n" + "x" * 200 + "\n```\nThe file is made anew.\n", 1),
    }
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for name, (text, _) in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        _, breaches = check_tree(root)
        (root / "core/message.cpp").write_text('// Opens a file.\nfail("the file {} cannot "\n     "be opened");\nadd_flag("--all", all, "print all of them");\n')
        kinds = {(kind, text) for kind, name, _, text in items(root) if name == "core/message.cpp"}
    failed = kinds != {("comment", "Opens a file."), ("message", "the file {} cannot be opened"), ("option", "print all of them")}
    for name, (_, expected) in planted.items():
        found = [breach for breach in breaches if breach[0] == name]
        if len(found) != expected:
            print(f"self-test: {name}: expected {expected} breaches, found {found}")
            failed = True
    print(f"self-test: {len(planted)} files, {len(breaches)} breaches found" + (", FAILED" if failed else ""))
    return 1 if failed else 0


def main():
    arguments = sys.argv[1:]
    here = Path(__file__).resolve().parent.parent
    if arguments == ["--self-test"]:
        return self_test()
    if arguments[:1] == ["--sample"]:
        sample(here, int(arguments[1]), int(arguments[2]), arguments[3:])
        return 0
    if arguments == ["--messages"]:
        listed = {f"{path.relative_to(here).parts[0]}: {text}" for path, _ in files(here) for _, text in messages(path, here)}
        print("\n".join(sorted(listed)))
        return 0
    root = Path(arguments[0]) if arguments else here
    count, breaches = check_tree(root)
    for name, line, reason in breaches:
        print(f"{name}:{line}: {reason}")
    print(f"{count} files, {len(breaches)} breaches of the rules for English")
    return 1 if breaches or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
