"""Joins the parts into the token files, in the order of the documents or shuffled.

The shuffled order is that of a keyed 64-bit hash of the document numbers. It is a pseudo-random permutation that depends only on the
seed. The documents are first distributed over files by the leading bits of their hashes, so that each file fits in memory. Then one file
after the other is sorted and written. This reads and writes every token twice, always in long sequences. Reading documents in random
order from the parts would need no second copy, but one seek per document, which takes days for a billion documents. Only the order of
the documents needs memory, so memory is bounded.
"""

import hashlib
import os
import shutil
import struct

RECORD = struct.Struct("<QQI")  # Hash of a document, its number, and the number of bytes. Its tokens follow.
HASH_BITS = 64
BUCKET_BYTES = 1 << 28  # Bytes that are sorted in memory.
RECORD_BYTES = 200  # Bytes of the Python objects of a document while it is sorted.
MAX_FANOUT_BITS = 8  # Limit on the number of files that are written at once. If it is not enough, the files are divided again.


FEW_TIMES = 40  # With fewer than FEW_TIMES * hold_out_every documents, the hash might hold out none, or all.


def digest_of(packed):
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


class Merger:
    """Adds documents to the training file or to the held-out file. A hash of a document's tokens decides whether it is
    held out, on average one document in `hold_out_every`. So documents with equal tokens go to the same file, and runs
    that share the inputs (--part) hold out the same documents as a single run."""

    def __init__(self, writers, hold_out_every, progress):
        self.writers, self.hold_out_every, self.progress = writers, hold_out_every, progress
        self.moved = set()  # Digests of documents for which choose_both() decides otherwise than the hash.

    def choose_both(self, parts):
        """If there are few documents, makes sure that at least one is held out and at least one is not. A run with
        --part must not call this, because it does not know the documents of the other runs."""
        if not 0 < sum(part.summary["documents"] for part in parts) < FEW_TIMES * self.hold_out_every:
            return
        digests = {digest_of(packed) for part in parts for packed in part.documents()}
        if len(digests) > 1 and len({self.is_held_out(digest) for digest in digests}) == 1:
            self.moved = {min(digests)}

    def is_held_out(self, digest):
        return (digest % self.hold_out_every == 0) != (digest in self.moved)

    def add(self, packed):
        held_out = self.hold_out_every and self.is_held_out(digest_of(packed))
        self.writers[1 if held_out else 0].add_document(packed)

    def in_order(self, parts):
        for part in parts:
            if self.hold_out_every:
                for packed in part.documents():
                    self.add(packed)
            else:
                self.copy(part)
            self.progress.add(part.token_bytes)

    def copy(self, part):
        with open(part.path, "rb", buffering=0) as file:
            left = part.token_bytes
            while left and (block := file.read(min(left, 1 << 20))):
                self.writers[0].bin.write(block)
                left -= len(block)
        self.writers[0].add_lengths(part.lengths())

    def shuffled(self, parts, seed, folder):
        shutil.rmtree(folder, ignore_errors=True)  # Remains of a killed run.
        os.makedirs(folder)
        hash_of = document_hash(seed)
        root = Bucket(os.path.join(folder, "b"), sum(bucket_cost(p.token_bytes, p.summary["documents"]) for p in parts))

        def records():
            number = 0
            for part in parts:
                for packed in part.documents():
                    yield hash_of(number), number, packed
                    number += 1
                self.progress.add(part.token_bytes)

        for bucket in distribute(records(), root, 0):
            self.add_sorted(bucket)
        shutil.rmtree(folder)

    def add_sorted(self, bucket):
        if bucket.cost > BUCKET_BYTES and bucket.documents > 1 and bucket.bits < HASH_BITS:
            smaller = distribute(bucket.records(), bucket, bucket.bits)
            os.unlink(bucket.path)
            for child in smaller:
                self.add_sorted(child)
            return
        for _, _, packed in sorted(bucket.records()):
            self.add(packed)
            self.progress.add(len(packed))
        os.unlink(bucket.path)


def document_hash(seed):
    keyed = hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "little"))

    def hash_of(number):
        state = keyed.copy()
        state.update(number.to_bytes(8, "little"))
        return int.from_bytes(state.digest(), "little")

    return hash_of


def bucket_cost(token_bytes, documents):
    return token_bytes + RECORD_BYTES * documents


class Bucket:
    """A file of documents whose hashes agree in the leading `bits`."""

    def __init__(self, path, cost=0, bits=0):
        self.path, self.cost, self.bits = path, cost, bits
        self.documents = 0
        self.file = None

    def add(self, record):
        hashed, number, packed = record
        self.file.write(RECORD.pack(hashed, number, len(packed)))
        self.file.write(packed)
        self.cost += bucket_cost(len(packed), 1)
        self.documents += 1

    def records(self):
        with open(self.path, "rb", buffering=1 << 20) as file:
            while head := file.read(RECORD.size):
                hashed, number, length = RECORD.unpack(head)
                yield hashed, number, file.read(length)


def distribute(records, parent, bits):
    """Yields the buckets of `records`, whose hashes agree in the leading `bits`, in the order of the hashes."""
    fanout_bits = min(max((2 * parent.cost // BUCKET_BYTES).bit_length(), 1), MAX_FANOUT_BITS, HASH_BITS - bits)
    buckets = [Bucket(f"{parent.path}{i:02x}", bits=bits + fanout_bits) for i in range(1 << fanout_bits)]
    try:
        for bucket in buckets:
            bucket.file = open(bucket.path, "wb", buffering=1 << 18)
        shift, mask = HASH_BITS - bits - fanout_bits, (1 << fanout_bits) - 1
        for record in records:
            buckets[record[0] >> shift & mask].add(record)
    finally:
        for bucket in buckets:
            if bucket.file:
                bucket.file.close()
    return buckets
