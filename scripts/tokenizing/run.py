"""One run: inputs -> parts, by a pool of processes -> token files."""

import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
from concurrent.futures.process import BrokenProcessPool

from tokenizing.documents import read_piece
from tokenizing.encoding import describe, encode_part, file_hash, find_special_tokens, load_tokenizer, start_worker
from tokenizing.errors import InputError, RunError
from tokenizing.inputs import Sources, find_sources
from tokenizing.merge import Merger
from tokenizing.part_files import TOKENIZER, PartsFolder, write_whole
from tokenizing.plan import Piece, Planner, choose_part_bytes
from tokenizing.progress import Progress
from tokenizing.token_files import SUFFIXES, TokenFileWriter, dataset_files, publish, read_sidecar
from tokenizing.tokenizer_files import tokenizer_path
from tokenizing.training import BOS, EOS, MIN_ENTRIES, TOKENIZER_CONFIG, train_bpe

MAX_NAMED = 20  # Maximum number of skipped documents that are named.
# Number of parts per worker that are being made or wait for the worker, so that no worker idles. With more parts, more of a compressed file
# would be in memory.
PARTS_PER_WORKER = 2


def parse_part(text):
    """Returns (I, N) of "I/N"."""
    found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise InputError(f"--part is {text}, expected I/N with I from 1 to N, such as 3/8")
    return number, count


class Run:
    def __init__(self, arguments):
        self.arguments = arguments
        if "" in (arguments.output, arguments.hold_out_output):
            raise InputError("--output or --hold-out-output is empty, expected a PREFIX such as corpus/train")
        if arguments.hold_out_every == 1:
            raise InputError("--hold-out-every is 1, expected 0 (off) or at least 2")
        self.part = parse_part(arguments.part) if arguments.part is not None else None
        if self.part and arguments.train_bpe:
            raise InputError("--part with --train-bpe would train another tokenizer for each part; train one without --part, and give it to "
                             "each part with --tokenizer")
        self.outputs = [arguments.output]
        if arguments.hold_out_every:
            self.outputs.append(arguments.hold_out_output or arguments.output + "_held_out")
        self.prefixes = list(map(self.prefix_of, self.outputs))
        for output in self.outputs if self.part else ():
            if os.path.exists(output + ".idx"):
                raise InputError(f"{output}.idx: exists already, and training would read it instead of the parts in the folder {output}; "
                                 "remove it, or give another output")
        if arguments.hold_out_every:
            if os.path.realpath(self.prefixes[0] + ".bin") == os.path.realpath(self.prefixes[1] + ".bin"):
                raise InputError(f"{self.outputs[0]} is both the output and the held-out output")
        elif arguments.hold_out_output:
            raise InputError("--hold-out-output needs --hold-out-every")
        elif os.path.exists(held_out := self.prefix_of(arguments.output + "_held_out") + ".idx"):
            raise InputError(f"{held_out} has documents that were held out of this output, and this "
                             "run would include them; remove it, or give --hold-out-every again")
        self.folder = PartsFolder(self.prefixes[0] + ".parts")
        self.trained_tokenizer = arguments.output + ".tokenizer.json"
        self.tokenizer_config = arguments.output + ".tokenizer_config.json"

    def prefix_of(self, output):
        """Returns the prefix of the token files. With --part the output is a folder, which has one prefix for each part."""
        return os.path.join(output, "part-{:05}-of-{:05}".format(*self.part)) if self.part else output

    def find_inputs(self):
        ends = [suffix + end for suffix in SUFFIXES for end in ("", ".tmp")]
        written = {os.path.abspath(prefix + end) for prefix in self.prefixes for end in ends}
        if self.arguments.train_bpe:
            written |= {os.path.abspath(self.trained_tokenizer), os.path.abspath(self.tokenizer_config)}
        folders = (self.folder.path, *(self.outputs if self.part else ()))
        folders = tuple(os.path.join(os.path.abspath(folder), "") for folder in folders)
        self.files = Sources(self.arguments.skip_bad)
        self.sources = find_sources(
            self.arguments.input,
            self.files,
            lambda path: os.path.abspath(path) in written or os.path.abspath(path).startswith(folders),
            self.arguments.text_field,
        )
        self.files.check(len(self.sources), self.arguments.allow_skipped)
        if not self.sources:
            raise InputError("the inputs have no documents")
        for line in self.files.describe_rest():
            print(line, file=sys.stderr)
        for source in self.sources:
            if source.kind != "text":  # Reading the first document detects a wrong field or column.
                next(read_piece(Piece(source), self.arguments.text_field, Sources(self.arguments.skip_bad)), None)

    def make_journal(self, tokenizer_hash):
        """Sets the size of the parts, and the journal, which has everything that determines the output."""
        arguments = self.arguments
        self.part_bytes = arguments.part_bytes or choose_part_bytes(self.sources)
        self.journal = {
            "tokenizer": tokenizer_hash or f"--train-bpe {arguments.train_bpe}",
            "parse_special_tokens": arguments.parse_special_tokens,
            "text_field": arguments.text_field if len(arguments.text_field) > 1 else arguments.text_field[0],
            "skip_bad": arguments.skip_bad > 0,
            "shuffle": arguments.shuffle,
            "hold_out_every": arguments.hold_out_every and f"{arguments.hold_out_every} by hash",
            "inputs": [[os.path.abspath(s.path), s.named, s.size_bytes, s.mtime_ns] for s in self.sources],
        }
        # Other machines may have the inputs in other folders, copied at other times.
        inputs = [[os.path.basename(source.path), source.size_bytes] for source in self.sources]
        self.parts_of = hashlib.sha256(json.dumps([self.journal | {"inputs": inputs}, self.part_bytes]).encode()).hexdigest()[:32]
        if self.part:
            self.journal["part"] = list(self.part)
        self.fingerprint = hashlib.sha256(json.dumps(self.journal).encode()).hexdigest()
        self.journal["part_bytes"] = self.part_bytes

    def is_complete(self):
        sidecars = [read_sidecar(prefix) for prefix in self.prefixes]
        return all(sidecar and sidecar.get("made_from") == self.fingerprint for sidecar in sidecars)

    def check_outputs(self):
        """Refuses existing outputs unless an earlier run of this command was ended while it renamed them."""
        found = [path for prefix in self.prefixes for path in dataset_files(prefix)]
        if self.arguments.train_bpe and os.path.exists(self.trained_tokenizer):
            found.append(self.trained_tokenizer)
        if found and not self.arguments.overwrite and self.folder.read_journal() != self.journal:
            raise InputError(f"{found[0]}: exists already, made from other inputs or with other options; --overwrite replaces it")

    def train_tokenizer(self, planner):
        path = self.folder.file(TOKENIZER)
        if not os.path.exists(path):
            progress = Progress("reading to train", self.input_bytes())
            try:
                train_bpe(planner, self.arguments.train_bpe, self.arguments.workers, self.arguments.skip_bad, path, progress)
            finally:
                progress.close()
        return path

    def input_bytes(self):
        return sum(source.size_bytes for source in self.sources)

    def make_parts(self, planner, tokenizer_path, typecode):
        """Yields the finished parts in order."""
        arguments = self.arguments
        pool = concurrent.futures.ProcessPoolExecutor(
            arguments.workers,
            multiprocessing.get_context("spawn"),  # A forked process would share the locks of the threads that trained.
            start_worker,
            (self.folder.path, tokenizer_path, arguments.parse_special_tokens, typecode, arguments.text_field, arguments.skip_bad),
        )
        self.progress = Progress("tokenizing", self.input_bytes() // (self.part[1] if self.part else 1))
        self.found = 0
        names, pending = [], {}
        try:
            for number, part in enumerate(planner.parts(self.is_last_block)):
                names.append(part.name)
                if finished := self.folder.finished(part.name):
                    self.files.skip(*finished.summary["skipped"])
                    self.found += 1
                    self.progress.add(part.input_bytes, found=True)
                    continue
                if len(pending) >= PARTS_PER_WORKER * arguments.workers:
                    self.collect(pending, concurrent.futures.FIRST_COMPLETED)
                pending[pool.submit(encode_part, part)] = (number, part.input_bytes)
            self.collect(pending, concurrent.futures.ALL_COMPLETED)
        except BrokenProcessPool as error:
            raise RunError("a worker process was killed, perhaps because memory ran out") from error
        finally:
            pool.shutdown(cancel_futures=True)
            self.progress.close()
        return [self.folder.finished(name) for name in names]

    def is_last_block(self, name):
        part = self.folder.finished(name)
        return part and part.summary["last_block"]

    def collect(self, pending, until):
        """Waits for parts. If several parts failed, raises the error of the part that is first in the input, even if another failed earlier."""
        while pending:
            done, _ = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
            if any(future.exception() for future in done):
                concurrent.futures.wait(pending)
                failed = [(number, future) for future, (number, _) in pending.items() if future.exception()]
                raise min(failed)[1].exception()
            for future in done:
                self.files.skip(*future.result()["skipped"])
                self.progress.add(pending.pop(future)[1], future.result()["tokens"])
            if until == concurrent.futures.FIRST_COMPLETED:
                return

    def merge(self, parts, description):
        token_bytes = sum(part.token_bytes for part in parts)
        shuffle = self.arguments.shuffle
        progress = Progress("writing", token_bytes * (1 if shuffle is None else 2))
        buckets = self.folder.file("shuffle")
        writers = []
        try:
            for prefix in self.prefixes:
                writers.append(TokenFileWriter(prefix, description["vocab_size"]))
            merger = Merger(writers, self.arguments.hold_out_every, progress)
            if not self.part:
                documents = sum(part.summary["documents"] for part in parts)
                if documents < self.arguments.hold_out_every:
                    raise InputError(f"the inputs have {documents} documents, too few to hold out one in {self.arguments.hold_out_every}")
                merger.choose_both(parts)
            if shuffle is None:
                merger.in_order(parts)
            else:
                merger.shuffled(parts, shuffle, buckets)
            if not self.part and not all(writer.documents for writer in writers):
                if len(writers) == 1:
                    raise InputError("the inputs have no documents")
                raise InputError(f"the inputs have {sum(writer.documents for writer in writers)} documents with the same tokens, too few for "
                                 "one in the dataset and one held out")
            if self.part:
                description |= dict(zip(("part", "parts"), self.part), parts_of=self.parts_of)
            for writer in writers:
                writer.close(description | {"made_from": self.fingerprint})
            if self.arguments.train_bpe:
                with open(self.folder.file(TOKENIZER), encoding="utf-8") as file:
                    write_whole(self.trained_tokenizer, file.read())
                write_whole(self.tokenizer_config, json.dumps(TOKENIZER_CONFIG, indent=2) + "\n")
            publish(writers)
        except BaseException as error:
            for writer in writers:
                writer.discard()
            shutil.rmtree(buckets, ignore_errors=True)
            if isinstance(error, OSError):
                raise RunError(f"{self.prefixes[0]}: cannot be written: {error.strerror or error}") from error
            raise
        finally:
            progress.close()
        return writers

    def make_dataset(self):
        arguments = self.arguments
        share = (self.part[0] - 1, self.part[1]) if self.part else (0, 1)
        planner = Planner(self.sources, arguments.text_field, self.part_bytes, None, share)
        path = self.train_tokenizer(planner) if arguments.train_bpe else arguments.tokenizer
        tokenizer, content = load_tokenizer(path)
        planner.key = [file_hash(content), arguments.parse_special_tokens, arguments.skip_bad > 0]
        description = self.describe(tokenizer, content)
        parts = self.make_parts(planner, path, "H" if description["vocab_size"] < 65536 else "i")
        for part in parts:
            self.files.add(part.summary["taken"], part.summary["left_out"])
        if self.files.left_out:
            print(self.files.describe_left_out(), file=sys.stderr)
        self.files.check(self.files.taken + planner.texts_of_others, arguments.allow_skipped)
        self.report_special_texts(parts)
        self.report_skipped()
        seconds = self.progress.seconds()
        writers = self.merge(parts, description)
        self.report(writers, parts, seconds)

    def describe(self, tokenizer, content):
        """Returns what PREFIX.json says about the tokenizer, and reports bos and eos."""
        arguments = self.arguments
        given = {"bos": arguments.bos, "eos": arguments.eos}
        if arguments.train_bpe:
            given = {"bos": arguments.bos or BOS, "eos": arguments.eos or EOS}
        path = self.trained_tokenizer if arguments.train_bpe else arguments.tokenizer
        special = find_special_tokens(content, path, given)
        if not arguments.train_bpe:
            report_special_tokens(special)
        return describe(tokenizer, content, path, special) | {"parse_special_tokens": arguments.parse_special_tokens}

    def update_sidecars(self):
        """Rewrites the sidecars of finished token files if the tokenizer's part of them has changed, such as the bos. The tokens do not
        depend on it."""
        path = self.trained_tokenizer if self.arguments.train_bpe else self.arguments.tokenizer
        if not os.path.exists(path):
            return
        description = self.describe(*load_tokenizer(path))
        for prefix in self.prefixes:
            sidecar = read_sidecar(prefix)
            updated = {key: description.get(key, value) for key, value in (description | sidecar).items()}
            if updated != sidecar:
                write_whole(f"{prefix}.json", json.dumps(updated, indent=2) + "\n")
                print(f"{prefix}.json: names bos {updated['bos']} and eos {updated['eos']} now")

    def report_skipped(self):
        skipped = sorted(self.files.skipped)
        for sentence in skipped[:MAX_NAMED]:
            print(f"skipped: {sentence}", file=sys.stderr)
        if skipped:
            print(f"skipped {len(skipped)} bad documents of at most {self.arguments.skip_bad}", file=sys.stderr)

    def report_special_texts(self, parts):
        count = sum(part.summary["documents_with_special_text"] for part in parts)
        if count:
            effect = ("is encoded as that token" if self.arguments.parse_special_tokens else
                      "is encoded as text; --parse-special-tokens encodes it as that token")
            print(f"{count} documents have the name of a special token in their text, which {effect}", file=sys.stderr)

    def report(self, writers, parts, seconds):
        for writer in writers:
            print(f"{writer.prefix}: {writer.documents} documents, {writer.tokens} tokens")
        tokens, workers = self.progress.tokens, self.arguments.workers
        found = f"; {self.found} of {len(parts)} parts were finished before" if self.found else ""
        print(f"tokenized {tokens} tokens in {seconds:.1f} s with {workers} workers: {tokens / seconds:.0f} tokens/s{found}")


def report_special_tokens(special):
    """Says where bos and eos come from, and warns if there are none or if one is guessed."""
    words = [f"{kind} {'none' if token.id is None else token.id}" + (f" ({token.source})" if token.source else "")
             for kind, token in special.items()]
    print(", ".join(words), file=sys.stderr)
    for kind, token in special.items():
        if token.guessed:
            print(f"warning: {kind} is {token.source}, because no file beside the tokenizer that transformers reads names one; "
                  f"--{kind} overrides the guess", file=sys.stderr)
    if all(token.id is None for token in special.values()):
        print("warning: there is neither a bos nor an eos, so documents run together in training; --bos or --eos names one", file=sys.stderr)


def tokenize(arguments):
    tokenizer_hash = None
    if arguments.train_bpe is None:
        arguments.tokenizer = tokenizer_path(arguments.tokenizer)
    run = Run(arguments)
    if arguments.train_bpe is None:
        content = load_tokenizer(arguments.tokenizer)[1]
        tokenizer_hash = file_hash(content)
        # Refuses a wrong --bos or file before anything is tokenized.
        find_special_tokens(content, arguments.tokenizer, {"bos": arguments.bos, "eos": arguments.eos})
    elif arguments.train_bpe < MIN_ENTRIES:
        raise InputError(f"--train-bpe is {arguments.train_bpe}, expected at least {MIN_ENTRIES} entries for a byte-level tokenizer")
    run.find_inputs()
    run.make_journal(tokenizer_hash)
    if not arguments.overwrite and run.is_complete():
        print(f"{run.prefixes[0]}: is complete already, made from these inputs with these options")
        run.update_sidecars()
        if run.folder.read_journal() in (None, run.journal):
            run.folder.remove()  # An earlier run was killed before it removed the folder.
    else:
        run.check_outputs()
        run.folder.open(run.journal, arguments.overwrite)
        try:
            run.make_dataset()
        except (InputError, RunError) as error:
            if isinstance(error, InputError):
                run.folder.forget_journal()  # The corrected command has other inputs or options, and may reuse the parts.
            if run.folder.keep_finished():
                raise type(error)(f"{error}; {run.folder.path} keeps the finished parts for the next run") from error
            raise
        run.folder.remove()
