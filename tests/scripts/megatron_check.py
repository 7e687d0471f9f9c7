"""Checks that Octavo and Megatron can read each other's token files: IndexedDataset reads the output of tokenize_hf.py, and `octavo
inspect` reads that of IndexedDatasetBuilder. The check is skipped (exit code 77) without the Python packages `megatron-core`, which needs
torch and numpy, and `tokenizers`."""

import sys
import tempfile
import warnings
from pathlib import Path

from tokenizing_cases import inspect, make_tokenizer, random_texts, read_dataset, run, write_jsonl

try:
    warnings.simplefilter("ignore")  # This hides warnings about optional packages of Megatron.
    import numpy
    import tokenizers  # noqa: F401
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def check_megatron_reads(scratch, documents):
    """Checks everything that training reads from a dataset: documents, parts of them, lengths and the document index, with and without
    mmap."""
    for mmap in (True, False):
        dataset = IndexedDataset(str(scratch / "ours"), mmap=mmap)
        assert dataset.index.dtype == numpy.uint16 and len(dataset) == len(documents)
        assert [dataset[i].tolist() for i in range(len(dataset))] == documents
        assert [tokens.tolist() for tokens in dataset[2:9]] == documents[2:9]
        assert dataset.get(5, offset=1, length=2).tolist() == documents[5][1:3]
        assert dataset.sequence_lengths.tolist() == [len(tokens) for tokens in documents]
        assert dataset.document_indices.tolist() == list(range(len(documents) + 1))


def write_by_megatron(prefix, documents, dtype):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for tokens in documents:
        builder.add_document(torch.tensor(tokens), [len(tokens)])
    builder.finalize(f"{prefix}.idx")


def check_same_bytes(scratch, documents):
    write_by_megatron(scratch / "theirs", documents, numpy.uint16)
    for suffix in (".bin", ".idx"):
        assert (scratch / f"theirs{suffix}").read_bytes() == (scratch / f"ours{suffix}").read_bytes(), suffix
    assert read_dataset(scratch / "theirs") == documents


def check_octavo_reads(scratch, documents):
    """Checks 32-bit tokens and documents of several sequences."""
    tokens = sum(map(len, documents))
    builder = IndexedDatasetBuilder(f"{scratch}/sentences.bin", dtype=numpy.int32)
    for document in documents:
        for sentence in (document[: len(document) // 2], document[len(document) // 2 :]):
            builder.add_item(torch.tensor(sentence, dtype=torch.int32))
        builder.end_document()
    builder.finalize(f"{scratch}/sentences.idx")
    for name, dtype, sequences in [("ours", "uint16", 1), ("theirs", "uint16", 1), ("sentences", "int32", 2)]:
        found = inspect(scratch / name)
        if found is None:
            print("without `octavo inspect`: OCTAVO_BINARY is not set")
            return
        assert found["intact"] and found["dtype"] == dtype, found
        assert (found["documents"], found["tokens"]) == (len(documents), tokens), found
        assert found["sequences"] == sequences * len(documents), found


def main():
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        tokenizer = make_tokenizer(scratch / "tokenizer.json")
        texts = random_texts(200, seed=4)
        write_jsonl(scratch / "a.jsonl", texts)
        run("--tokenizer", scratch / "tokenizer.json", "--input", scratch / "a.jsonl", "--output", scratch / "ours")
        documents = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        check_megatron_reads(scratch, documents)
        check_same_bytes(scratch, documents)
        check_octavo_reads(scratch, documents)


if __name__ == "__main__":
    main()
