#!/usr/bin/env python3
"""Serves a Hugging Face tokenizer as a child process that reads one JSON object per line and answers with one per line.

    hf_tokenizer.py tokenizer.json

    {"encode": "text"}      ->  {"ids": [1, 2, 3]}        without added special tokens
    {"decode": [1, 2, 3]}   ->  {"text": "text"}          without special tokens
    anything else           ->  {"error": "sentence"}     and continues with the next line

The first line of output is {"vocab_size": N, "bos": ID, "ends": [IDS]}: bos is the token that transformers puts before a text, or null,
and ends are the tokens that end a generated text. If the tokenizer cannot be loaded, the line is {"error": ...}, and the exit code is 2.
`octavo generate` starts this script for models with a Hugging Face tokenizer. Training never needs it.
"""

import json
import sys

from python_packages import find_packages
from tokenizing.errors import InputError
from tokenizing.tokenizer_files import FilesBeside, SpecialTokens, parse_tokenizer


def reply(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def answer(tokenizer, line):
    try:
        request = json.loads(line)
    except json.JSONDecodeError as error:
        return {"error": f"not JSON: {error}"}
    if isinstance(request, dict) and isinstance(request.get("encode"), str):
        return {"ids": tokenizer.encode(request["encode"], add_special_tokens=False).ids}
    ids = request.get("decode") if isinstance(request, dict) else None
    if not isinstance(ids, list) or not all(isinstance(i, int) and 0 <= i < 2**32 for i in ids):
        return {"error": 'expected {"encode": TEXT} or {"decode": [IDS]}'}
    # Ids that the model has but the tokenizer lacks (a rounded-up vocabulary) are omitted.
    return {"text": tokenizer.decode(ids, skip_special_tokens=True)}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problem = find_packages("tokenizers")
    if problem:
        reply({"error": problem})
        return 2
    import tokenizers

    path = sys.argv[1]
    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
        with open(path, "rb") as file:
            special = SpecialTokens(parse_tokenizer(file.read(), path), FilesBeside(path))
        hello = {"bos": special.added_bos(), "ends": special.ends_of_text()}
    except InputError as error:
        reply({"error": str(error)})
        return 2
    except Exception as error:  # The package raises Exception itself, not a subclass.
        reply({"error": f"{path}: is not a Hugging Face tokenizer.json: {error}"})
        return 2
    # A tokenizer.json may cut every text, or fill it up, to a fixed number of tokens, which is meant for batches.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    reply({"vocab_size": tokenizer.get_vocab_size(with_added_tokens=True)} | hello)
    for line in sys.stdin:
        if line.strip():
            reply(answer(tokenizer, line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
