"""A tokenizer.json and the files beside it: where it is, which tokenizer it is, and which tokens begin and end its documents."""

import dataclasses
import hashlib
import json
import os
import shlex
import struct

from tokenizing.errors import InputError

NAME = "tokenizer.json"
# Files that say how transformers uses the tokenizer. SpecialTokens states their precedence.
CONFIG, SPECIAL_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
ID_FILES = ("generation_config.json", "config.json")
# Names that are guessed if no file names a token, in this order.
USUAL_NAMES = {
    "bos": ("<|begin_of_text|>", "<s>", "<|startoftext|>", "<bos>"),
    "eos": ("<|end_of_text|>", "</s>", "<|endoftext|>", "<eos>"),
}


def tokenizer_path(path):
    """Returns the path of the tokenizer.json that `path`, a file or a folder, names."""
    if not os.path.isdir(path):
        return path
    found = os.path.join(path, NAME)
    if os.path.exists(found):
        return found
    others = [name for name in ("tokenizer.model", "vocab.json", "merges.txt") if os.path.exists(os.path.join(path, name))]
    if not others:
        raise InputError(f"{path}: has no {NAME}")
    convert = "from sys import argv; from transformers import AutoTokenizer; AutoTokenizer.from_pretrained(argv[1]).save_pretrained(argv[1])"
    raise InputError(f"{path}: has {' and '.join(others)}, but no {NAME}; python3 -c '{convert}' {shlex.quote(path)} makes one")


def parse_tokenizer(content, path):
    """Returns the JSON of a tokenizer.json. `content` is its bytes."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not a Hugging Face tokenizer.json: it is not JSON: {error}") from error
    if not isinstance(parsed, dict) or not isinstance(parsed.get("model"), dict):
        raise InputError(f"{path}: is not a Hugging Face tokenizer.json: it has no model")
    return parsed


def is_id(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def vocabulary(tokenizer):
    """Returns (id, token, score) of each entry of the vocabulary without added tokens. The score is None unless the vocabulary is a list of
    tokens with scores, as it is for Unigram."""
    entries = tokenizer["model"].get("vocab", {})
    if isinstance(entries, dict):
        return [(number, token, None) for token, number in entries.items()]
    return [(number, token, float(score)) for number, (token, score) in enumerate(entries)]


def tokenizer_hash(tokenizer):
    """Returns the hash by which a tokenizer is identified. data/tokenizer_identity.h defines it."""
    fields = []

    def add(*texts):
        for text in texts:
            data = text if isinstance(text, bytes) else str(text).encode()
            fields.append(b"%d:" % len(data) + data)

    model = tokenizer["model"]
    add(model.get("type") or "")
    for number, token, score in sorted((number, token.encode(), score) for number, token, score in vocabulary(tokenizer)):
        add("token", number, token)
        if score is not None:
            add(struct.pack("<d", score))
    for merge in model.get("merges") or []:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        add("merge", left, right)
    for token in sorted(tokenizer.get("added_tokens") or [], key=lambda token: (token["id"], token["content"].encode())):
        add("added", token["id"], token["content"], int(token.get("special", False)))
    return hashlib.sha256(b"".join(fields)).hexdigest()


def identify(tokenizer, path):
    try:
        return tokenizer_hash(tokenizer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: is not a Hugging Face tokenizer.json: its vocabulary, merges or added tokens are malformed") from error


class FilesBeside:
    """The JSON files beside a tokenizer. If its name is PREFIX.tokenizer.json, their names begin with "PREFIX." too."""

    def __init__(self, path):
        folder, name = os.path.split(path)
        self.prefix = os.path.join(folder, name[: -len(NAME)] if name.endswith(NAME) else "")

    def read(self, name):
        """Returns the object in a file, or an empty one if there is no such file."""
        path = self.prefix + name
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise InputError(f"{path}: is not a JSON object")
        return content


@dataclasses.dataclass(frozen=True)
class Token:
    """A bos or eos, with the sentence that says where it comes from."""

    id: int = None
    source: str = ""
    guessed: bool = False


class SpecialTokens:
    """bos and eos of a tokenizer, as transformers 4 uses them.

    The first of these that names a token decides: special_tokens_map.json, tokenizer_config.json, generation_config.json, config.json, and
    last a special token with a usual name, which is a guess. If tokenizer_config.json has added_tokens_decoder, special_tokens_map.json is
    not read. null in one of the first two files means that there is none. A tokenizer_config.json in which add_bos_token is false has no
    bos, because transformers puts none before a text. add_eos_token is about prompts, so a document still ends with the eos."""

    def __init__(self, tokenizer, files):
        self.tokenizer, self.files = tokenizer, files
        self.ids = {token: number for number, token, _ in vocabulary(tokenizer)}
        added = tokenizer.get("added_tokens") or []
        self.ids |= {token["content"]: token["id"] for token in added}
        self.special = {token["content"] for token in added if token.get("special")}
        self.size = max(self.ids.values(), default=-1) + 1
        self.config = files.read(CONFIG)

    def find(self, kind):
        """Returns the Token of `kind`, which is "bos" or "eos"."""
        if kind == "bos" and self.config.get("add_bos_token") is False:
            return Token(None, f"{CONFIG} has add_bos_token false")
        key = f"{kind}_token"
        for name in (CONFIG,) if "added_tokens_decoder" in self.config else (SPECIAL_TOKENS, CONFIG):
            content = self.files.read(name)
            if key in content:
                return self.named(content[key], key, name)
        for name in ID_FILES:
            if ids := self.ids_of(name, f"{key}_id"):
                return Token(ids[0], f"{key}_id of {name}")
            value = self.files.read(name).get(f"{key}_id")
            if value not in (None, -1, []):  # These mean that the file names none.
                raise InputError(f"{self.files.prefix}{name}: {key}_id is {json.dumps(value)}, "
                                 f"expected an id of the tokenizer, below {self.size}")
        for name in USUAL_NAMES[kind]:
            if name in self.special:
                return Token(self.ids[name], f"guessed from the name {name}", guessed=True)
        return Token()

    def named(self, value, key, name):
        token = value.get("content", value) if isinstance(value, dict) else value
        if token is None or token == "":
            return Token(None, f"{name} has {key} null")
        if not isinstance(token, str) or token not in self.ids:
            raise InputError(f"{self.files.prefix}{name}: {key} is {json.dumps(token)}, which is no token of the tokenizer")
        return Token(self.ids[token], f"{token}, {key} of {name}")

    def ids_of(self, name, key):
        value = self.files.read(name).get(key)
        return [number for number in (value if isinstance(value, list) else [value]) if is_id(number) and number < self.size]

    def given(self, kind, text):
        """Returns the Token that an option names by its id or its text, or none. A number is an id."""
        if text == "none":
            return Token(None, f"--{kind} none")
        number = int(text) if text.isdecimal() else self.ids.get(text)
        if number is None or number >= self.size:
            raise InputError(f"--{kind} is {text!r}, expected none, a token of the tokenizer or an id below {self.size}")
        return Token(number, f"--{kind}")

    def ends_of_text(self):
        """Returns all ids that end a generated text."""
        for name in ID_FILES:
            if ids := self.ids_of(name, "eos_token_id"):
                return ids
        eos = self.find("eos").id
        return [] if eos is None else [eos]

    def added_bos(self):
        """Returns the id that transformers puts before a text, or None."""
        if isinstance(self.config.get("add_bos_token"), bool):
            return self.find("bos").id
        return first_added_id(self.tokenizer.get("post_processor"))


def first_added_id(processor):
    """Returns the id that a post-processor of a tokenizer.json puts before a text, or None."""
    if not isinstance(processor, dict):
        return None
    if processor.get("type") == "Sequence":
        return next((found for part in processor["processors"] if (found := first_added_id(part)) is not None), None)
    if processor.get("type") in ("BertProcessing", "RobertaProcessing"):
        return processor["cls"][1]
    first = (processor.get("single") or [{}])[0]
    if "SpecialToken" not in first:
        return None
    return processor["special_tokens"][first["SpecialToken"]["id"]]["ids"][0]
