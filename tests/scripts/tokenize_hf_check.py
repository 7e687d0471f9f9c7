"""Runs tokenize_hf.py and hf_tokenizer.py with a small tokenizer and compares their output with the encoding of the `tokenizers` library:
for several numbers of workers, after kills, with a shuffle, and with a tokenizer that the script trains. The check is skipped (exit code
77) if the Python package `tokenizers` is not installed."""

import contextlib
import fcntl
import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenizing_cases import SCRIPTS, TEXTS, command, inspect, make_tokenizer, random_texts, read_dataset, refuse, run, write_jsonl

try:
    import tokenizers
except ImportError:
    print("skipped: the Python package `tokenizers` is not installed")
    sys.exit(77)


def check_tokenize(scratch, tokenizer):
    write_jsonl(scratch / "texts.jsonl", TEXTS)
    arguments = ["--tokenizer", scratch / "tokenizer.json", "--workers", "2", "--input", scratch / "texts.jsonl"]
    arguments += ["--output", scratch / "out", "--hold-out-every", "10"]
    result = run(*arguments)
    assert "tokens/s" in result.stdout, result
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    held_out = read_dataset(scratch / "out_held_out")
    assert 0 < len(held_out) < 60 and held_out == [ids for ids in expected if ids in held_out], len(held_out)
    assert read_dataset(scratch / "out") == [ids for ids in expected if ids not in held_out]
    sidecar = json.loads((scratch / "out.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", sidecar["tokenizer_hash"]), sidecar
    assert (sidecar["vocab_size"], sidecar["bos"], sidecar["eos"]) == (tokenizer.get_vocab_size(), 0, 1), sidecar
    assert (sidecar["documents"], sidecar["tokens"]) == (250 - len(held_out), sum(len(ids) for ids in expected if ids not in held_out))
    inspect(scratch / "out")
    assert not (scratch / "out.parts").exists()
    assert "is complete already" in run(*arguments).stdout
    refuse("out.bin: exists already", *arguments[:-1], "20")
    run(*arguments[:-1], "20", "--overwrite")
    assert all(ids in held_out for ids in read_dataset(scratch / "out_held_out")), "a document in 20 is also one in 10"


def check_special_texts(scratch, tokenizer):
    """Names of special tokens in a document are text by default, and tokens on request, also for a tokenizer that the script trains."""
    texts = ["x<|end_of_text|>y", "plain", "<|begin_of_text|>"]
    write_jsonl(scratch / "special.jsonl", texts)
    for name, made_by in (("given", ["--tokenizer", scratch / "tokenizer.json"]), ("trained", ["--train-bpe", 259])):
        arguments = [*made_by, "--workers", 1, "--input", scratch / "special.jsonl", "--output", scratch / name]
        result = run(*arguments)
        assert "2 documents have the name of a special token in their text, which is encoded as text" in result.stderr, result
        documents = read_dataset(scratch / name)
        assert not {0, 1} & set(sum(documents, [])), documents
        used = tokenizer if name == "given" else tokenizers.Tokenizer.from_file(str(scratch / "trained.tokenizer.json"))
        assert [used.decode(ids) for ids in documents] == texts
        refuse("--overwrite", *arguments, "--parse-special-tokens")
        result = run(*arguments, "--parse-special-tokens", "--overwrite")
        assert "2 documents have" in result.stderr and "is encoded as that token" in result.stderr, result
        assert read_dataset(scratch / name)[2] == [0] and 1 in read_dataset(scratch / name)[0]
        assert json.loads((scratch / f"{name}.json").read_text())["parse_special_tokens"] is True


def contents(prefix):
    return [Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx", ".json")]


def check_workers_and_shuffle(scratch, tokenizer):
    """The output of 1, 2 and 3 workers has equal bytes, and a shuffle changes only the order."""
    texts = random_texts(400, seed=1)
    write_jsonl(scratch / "corpus.jsonl", texts)
    arguments = ["--tokenizer", scratch / "tokenizer.json", "--input", scratch / "corpus.jsonl", "--hold-out-every", "50"]
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    run(*arguments, "--workers", 1, "--output", scratch / "unshuffled")
    held_out, plain = read_dataset(scratch / "unshuffled_held_out"), read_dataset(scratch / "unshuffled")
    assert held_out and sorted(held_out + plain) == sorted(ids)
    orders = {}
    for workers, part_bytes, seed in [(1, 2000, 7), (2, 9000, 7), (3, 2000, 7), (2, 100_000, 8)]:
        name = scratch / f"shuffled_{workers}_{seed}"
        run(*arguments, "--workers", workers, "--part-bytes", part_bytes, "--shuffle", seed, "--output", name)
        written = [*contents(name)[:2], *contents(f"{name}_held_out")[:2]]
        orders.setdefault(seed, set()).add(b"".join(written))
        documents = read_dataset(name)
        assert documents != plain and sorted(documents) == sorted(plain)
        assert sorted(read_dataset(f"{name}_held_out")) == sorted(held_out)
    assert len(orders[7]) == 1 and orders[7] != orders[8], {seed: len(found) for seed, found in orders.items()}


def check_parts(scratch):
    """The parts of any number of runs have the documents of one run, and hold out the same ones."""
    (scratch / "divided").mkdir()
    write_jsonl(scratch / "divided/b.jsonl", random_texts(200, seed=6) + ["twice"] * 9)
    for number in range(30):
        (scratch / f"divided/{number}.txt").write_text(f"file {number} {'x' * number}" if number % 3 else "twice")
    (scratch / "divided/a.png").write_bytes(b"\x89PNG\0")
    arguments = ["--tokenizer", scratch / "tokenizer.json", "--input", scratch / "divided", "--hold-out-every", "9", "--part-bytes", 3000,
                 "--workers", "1", "--output"]
    run(*arguments, scratch / "one")
    one = [sorted(read_dataset(scratch / name)) for name in ("one", "one_held_out")]
    for count in (1, 3, 40):
        # The folder of the parts is in the inputs, as on a shared file system.
        output = scratch / f"divided/out{count}"
        parts = [(scratch / f"divided/out{count}{end}") for end in ("", "_held_out")]
        for number in range(1, count + 1) if count < 40 else (1, 2, 3, 39, 40):
            run(*arguments, output, "--part", f"{number}/{count}", *(["--shuffle", 3] if count == 3 else []))
        names = [sorted(path.with_suffix("") for path in folder.glob("*.idx")) for folder in parts]
        found = [sorted(itertools.chain(*map(read_dataset, prefixes))) for prefixes in names]
        if count < 40:
            assert found == one, [len(documents) for documents in found]
            assert [prefix.name for prefix in names[0]] == [f"part-{i:05}-of-{count:05}" for i in range(1, count + 1)]
            assert not [path for path in parts[0].iterdir() if path.suffix not in (".bin", ".idx", ".json")]
        sidecars = [json.loads(prefix.with_suffix(".json").read_text()) for prefix in itertools.chain(*names)]
        assert len({sidecar["parts_of"] for sidecar in sidecars}) == 1 and {sidecar["parts"] for sidecar in sidecars} == {count}
        assert sidecars[0]["part"] == 1 and "part" not in json.loads((scratch / "one.json").read_text())
    assert not read_dataset(output / "part-00040-of-00040"), "there are fewer groups of documents than parts"
    inspect(output / "part-00040-of-00040")
    assert "is complete already" in run(*arguments, output, "--part", "1/40").stdout
    refuse("part-00001-of-00040.bin: exists already", *arguments, output, "--part", "1/40", "--text-field", "content", "text")
    refuse("one.idx: exists already, and training would read it", *arguments, scratch / "one", "--part", "1/2")


def part_files(folder):
    """Returns {name: (inode, time of writing)} of the finished parts."""
    try:
        return {e.name: (e.inode(), e.stat().st_mtime_ns) for e in os.scandir(folder) if "." not in e.name and len(e.name) == 32}
    except FileNotFoundError:
        return {}


def runs_in_group(group):
    """Returns whether a process of this process group is running."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, its_group = path.read_text().rsplit(")", 1)[1].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def check_kills(scratch):
    """SIGKILL arrives at random moments. Finished parts stay, and the result equals that of an uninterrupted run."""
    draw = random.Random()
    seed = draw.getrandbits(32)
    draw.seed(seed)
    print(f"kills drawn with seed {seed}")
    write_jsonl(scratch / "killed.jsonl", random_texts(600, seed=2))
    arguments = ["--tokenizer", scratch / "tokenizer.json", "--input", scratch / "killed.jsonl", "--part-bytes", "2000",
                 "--workers", "2", "--shuffle", "3", "--hold-out-every", "7"]
    run(*arguments, "--output", scratch / "whole")
    folder, output = scratch / "killed.parts", scratch / "killed"
    before = {}
    for kill in range(5):
        # With its own process group, the check can also wait for a worker that starts right before the kill and would otherwise finish a
        # part later.
        process = subprocess.Popen(command(*arguments, "--output", output), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   start_new_session=True)
        more = draw.randint(0, 12)
        at_the_end = kill == 4
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if Path(f"{output}.bin.tmp").exists() if at_the_end else len(part_files(folder)) >= len(before) + more:
                break
            time.sleep(0.001)
        time.sleep(draw.random() * 0.02)
        process.kill()
        process.communicate()
        ended = time.monotonic() + 60
        while runs_in_group(process.pid):
            assert time.monotonic() < ended, "workers outlive their main process"
            time.sleep(0.01)
        assert process.returncode in (0, -signal.SIGKILL), process.returncode
        # The script was renaming its outputs or removing the parts, or had ended.
        publishes = Path(f"{output}.bin").exists()
        if publishes:
            break
        after = part_files(folder)
        assert before.items() <= after.items(), "finished parts were done again"
        before = after
    if before and not publishes:
        refuse("another shuffle (3, now 4)", *arguments, "--output", output, "--shuffle", "4")
        with open(folder / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            refuse("another process", *arguments, "--output", output)
        assert before.items() <= part_files(folder).items()
    result = run(*arguments, "--output", output)
    assert not before or publishes or f"; {len(before)} of " in result.stdout, (len(before), result.stdout)
    for end in ("", "_held_out"):
        assert contents(f"{output}{end}") == contents(scratch / f"whole{end}")
    assert not folder.exists() and not list(scratch.glob("*.tmp"))


def check_train_bpe(scratch):
    """The trained tokenizer has exactly N entries, decodes every text exactly, and does not depend on the number of workers."""
    arguments = ["--train-bpe", "400", "--input", scratch / "killed.jsonl", "--output"]
    for workers in (1, 3):
        run(*arguments, scratch / f"trained_{workers}", "--workers", workers)
    first, second = ((scratch / f"trained_{workers}.tokenizer.json").read_bytes() for workers in (1, 3))
    assert first == second and contents(scratch / "trained_1")[:2] == contents(scratch / "trained_3")[:2]
    tokenizer = tokenizers.Tokenizer.from_file(str(scratch / "trained_1.tokenizer.json"))
    assert tokenizer.get_vocab_size() == 400
    sidecar = json.loads((scratch / "trained_1.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", sidecar["tokenizer_hash"]), sidecar
    assert (sidecar["vocab_size"], sidecar["bos"], sidecar["eos"]) == (400, 0, 1), sidecar
    config = json.loads((scratch / "trained_1.tokenizer_config.json").read_text())
    assert [tokenizer.token_to_id(config[name]) for name in ("bos_token", "eos_token", "pad_token")] == [0, 1, 2], config
    assert [tokenizer.decode(ids) for ids in read_dataset(scratch / "trained_1")] == random_texts(600, seed=2)
    refuse("entries only", "--train-bpe", "90000", "--input", scratch / "killed.jsonl", "--output", scratch / "bad")
    refuse("at least 259", "--train-bpe", "100", "--input", scratch / "killed.jsonl", "--output", scratch / "bad")
    assert not list(scratch.glob("bad*"))


def check_bad_input(scratch):
    tokenizer, good = scratch / "tokenizer.json", scratch / "texts.jsonl"
    output = ["--output", scratch / "bad"]
    refuse("texts.jsonl: is not a Hugging Face tokenizer.json", "--tokenizer", good, "--input", good, *output)
    refuse("none.json: cannot be read: No such file", "--tokenizer", scratch / "none.json", "--input", good, *output)
    refuse('texts.jsonl:1: expected a JSON object with a string in the field "body"', "--tokenizer", tokenizer, "--input", good,
           *output, "--text-field", "body")
    refuse("*.none: no file matches", "--tokenizer", tokenizer, "--input", scratch / "*.none", *output)
    assert not list(scratch.glob("bad*"))

    lines = good.read_text().splitlines()
    lines[200] = '{"text": 5}'
    (scratch / "late.jsonl").write_text("\n".join(lines))
    late = ["--tokenizer", tokenizer, "--input", scratch / "late.jsonl", *output, "--part-bytes", "1000", "--workers", "2"]
    refuse("late.jsonl:201: expected", *late)
    assert [path.name for path in scratch.glob("bad*")] == ["bad.parts"] and part_files(scratch / "bad.parts")
    lines[200] = '{"text": "mended"}'
    (scratch / "late.jsonl").write_text("\n".join(lines))
    run(*late)
    assert len(read_dataset(scratch / "bad")) == 250 and not (scratch / "bad.parts").exists()

    # A command that is refused, at its end too, leaves nothing that the corrected command must overwrite.
    few = ["--tokenizer", tokenizer, "--input", good, "--output", scratch / "few", "--part-bytes", "1000", "--hold-out-every"]
    refuse("expected 0 (off) or at least 2", *few, "1")
    assert not list(scratch.glob("few*"))
    refuse("250 documents, too few to hold out one in 251", *few, "251")
    assert "parts were finished before" in run(*few, "10").stdout
    assert len(read_dataset(scratch / "few")) + len(read_dataset(scratch / "few_held_out")) == 250 and not (scratch / "few.parts").exists()


def check_skip_bad(scratch):
    """At most N bad documents are skipped. They are counted over all parts, including parts that were finished earlier, and each is
    named."""
    lines = [json.dumps({"text": text}) for text in random_texts(300, seed=5)]
    lines[0], lines[150], lines[299] = '{"text": 5}', "no JSON", '{"text": "\\ud800"}'
    (scratch / "dirty.jsonl").write_text("\n".join(lines))
    (scratch / "dirty.txt").write_bytes(b"caf\xe9")
    arguments = ["--tokenizer", scratch / "tokenizer.json", "--input", scratch / "dirty.jsonl", scratch / "dirty.txt", "--output", scratch / "dirty"]
    arguments += ["--part-bytes", "4000"]
    refuse("--skip-bad 3 does not skip more", *arguments, "--skip-bad", "3")
    result = run(*arguments, "--skip-bad", "4")
    for place in ("dirty.jsonl:1:", "dirty.jsonl:151:", "dirty.jsonl:300:", "dirty.txt: is invalid UTF-8", "skipped 4 bad documents of at most 4"):
        assert place in result.stderr, (place, result.stderr)
    assert len(read_dataset(scratch / "dirty")) == 297
    refuse("dirty.jsonl:1: ", *arguments)


def check_full_disk(scratch):
    """A limit on the file size makes writes fail, as on a full disk."""
    arguments = ["--tokenizer", scratch / "tokenizer.json", "--input", scratch / "killed.jsonl", "--workers", "1"]
    arguments += ["--part-bytes", "4000", "--output", scratch / "full"]
    limit = lambda size: lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    refuse("cannot be written: File too large", *arguments, code=1, preexec_fn=limit(1000))
    refuse("full: cannot be written: File too large", *arguments, code=1, preexec_fn=limit(20_000))
    assert [path.name for path in scratch.glob("full*")] == ["full.parts"], list(scratch.glob("full*"))
    run(*arguments)
    assert len(read_dataset(scratch / "full")) == 600


def check_what_is_left_out(scratch):
    """A folder with only other formats is refused instead of giving an empty corpus."""
    folder = scratch / "mixed"
    folder.mkdir()
    for name in ("a.png", "b.png", "c.zip", "readme.txt"):
        (folder / name).write_bytes(b"\x89PNG\0" if name != "readme.txt" else b"some text")
    arguments = ["--tokenizer", scratch / "tokenizer.json", "--input", folder, "--output", scratch / "mixed_out"]
    refuse("skipped 3 files: 2 .png, 1 .zip", *arguments)
    assert not list(scratch.glob("mixed_out*"))
    result = run(*arguments, "--allow-skipped")
    assert "1 documents" in result.stdout and "skipped 3 files" in result.stderr, result


def check_special_tokens(scratch, tokenizer):
    """bos and eos come from the files beside the tokenizer, and the options override them, also for finished files."""
    folder = scratch / "with_config"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|begin_of_text|>", "add_bos_token": false}')
    arguments = ["--tokenizer", folder, "--input", scratch / "texts.jsonl", "--output", scratch / "special", "--workers", "1"]

    def tokens(*more):
        result = run(*arguments, *more)
        sidecar = json.loads((scratch / "special.json").read_text())
        return sidecar["bos"], sidecar["eos"], result

    assert tokens()[:2] == (None, 0)
    content = (scratch / "special.bin").stat()
    assert tokens("--bos", "none", "--eos", "<|end_of_text|>")[:2] == (None, 1)
    bos, eos, result = tokens("--eos", "none")
    assert (bos, eos) == (None, None) and "documents run together" in result.stderr, result
    assert tokens("--bos", "1", "--eos", "0")[:2] == (1, 0)
    assert (scratch / "special.bin").stat() == content, "the tokens do not depend on bos and eos"
    refuse("--eos is '<none>'", *arguments, "--eos", "<none>")
    (folder / "tokenizer_config.json").unlink()
    bos, eos, result = tokens()
    assert (bos, eos) == (0, 1) and "bos is guessed from the name <|begin_of_text|>" in result.stderr, result


def check_child_process(scratch, tokenizer):
    requests = [{"encode": TEXTS[3]}, {"decode": tokenizer.encode(TEXTS[3]).ids}, {"decode": [5000, -1]}, {"encode": "é"}]
    # Truncation and padding in the file are meant for batches.
    padded = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    padded.enable_truncation(4)
    padded.enable_padding(length=64)
    padded.save(str(scratch / "padded.json"))
    result = subprocess.run(
        [sys.executable, SCRIPTS / "hf_tokenizer.py", scratch / "padded.json"],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        check=True,
    )
    hello, ids, text, error, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert hello == {"vocab_size": tokenizer.get_vocab_size(), "bos": 0, "ends": [1]}, hello
    assert ids["ids"] == tokenizer.encode(TEXTS[3], add_special_tokens=False).ids
    assert text["text"] == TEXTS[3], text
    assert "error" in error and last["ids"], (error, last)


def main():
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        tokenizer = make_tokenizer(scratch / "tokenizer.json")
        check_tokenize(scratch, tokenizer)
        check_special_texts(scratch, tokenizer)
        check_workers_and_shuffle(scratch, tokenizer)
        check_parts(scratch)
        check_kills(scratch)
        check_train_bpe(scratch)
        check_bad_input(scratch)
        check_skip_bad(scratch)
        check_full_disk(scratch)
        check_what_is_left_out(scratch)
        check_special_tokens(scratch, tokenizer)
        check_child_process(scratch, tokenizer)


if __name__ == "__main__":
    main()
