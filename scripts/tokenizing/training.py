"""Makes a byte-level BPE tokenizer.json on the corpus."""

import os

from tokenizing.documents import read_piece
from tokenizing.encoding import import_tokenizers
from tokenizing.errors import InputError
from tokenizing.inputs import Sources
from tokenizing.part_files import write_whole
from tokenizing.plan import EXPANSION

BOS, EOS, PAD = SPECIAL_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"]  # These get the ids 0, 1 and 2.
# Names the special tokens for transformers.
TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "clean_up_tokenization_spaces": False}
MIN_ENTRIES = 256 + len(SPECIAL_TOKENS)
TRAINING_BYTES = 1 << 30  # Bytes of text. More text adds few merges, and every different word takes memory.
# Llama 3's pattern that divides text into words. BPE merges pairs of tokens only within a word.
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")


def training_texts(planner, skip_bad, progress):
    """Yields all documents, or those of every k-th part if the corpus is larger than the training sample."""
    text_bytes = sum(source.size_bytes * (EXPANSION if source.compression else 1) for source in planner.sources)
    stride = -(-text_bytes // TRAINING_BYTES)
    sources = Sources(skip_bad)
    for number, part in enumerate(planner.parts()):
        if number % stride == 0:
            for piece in part.pieces:
                yield from read_piece(piece, planner.fields, sources)
        progress.add(part.input_bytes)


def train_bpe(planner, entries, workers, skip_bad, path, progress):
    """Trains a tokenizer. The bytes of the result do not depend on the number of workers."""
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    tokenizers = import_tokenizers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=entries,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    failures = []

    def texts():
        try:
            yield from training_texts(planner, skip_bad, progress)
            progress.say(f"training: merging pairs for {entries} entries")
        except BaseException as error:  # Saved, because train_from_iterator() raises an exception of another type instead.
            failures.append(error)
            raise

    try:
        tokenizer.train_from_iterator(texts(), trainer)
    except BaseException:
        if failures:
            raise failures[0] from None
        raise
    found = tokenizer.get_vocab_size(with_added_tokens=True)
    if found != entries:
        raise InputError(f"--train-bpe is {entries}, but the inputs have pairs for {found} entries only")
    write_whole(path, tokenizer.to_str(pretty=True) + "\n")
