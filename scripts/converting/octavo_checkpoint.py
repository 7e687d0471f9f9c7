"""Reads and writes Octavo's checkpoints (checkpoint/checkpoint_format.h): manifest.json and shards in the safetensors format."""

import json
import os
from pathlib import Path

import numpy
import torch
import xxhash

from tokenizing.errors import InputError

MANIFEST = "manifest.json"
SHARD = "rank_00000.safetensors"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def canonical(manifest):
    """Returns the bytes over which the checksum of a manifest is computed."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class OctavoCheckpoint:
    """A checkpoint that is open for reading. tensor() verifies the checksums of what it reads."""

    def __init__(self, folder):
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        if not path.is_file():
            raise InputError(f"{folder}: has no {MANIFEST}, expected one checkpoint, such as runs/mine/checkpoints/step_00000500")
        try:
            manifest = json.loads(path.read_bytes())
            self.step, self.meta = manifest["step"], manifest["meta"]
            self.model = {"qk_norm": False} | manifest["model"]  # Manifests of 0.1.0 may lack this field.
            self.tensors = {tensor["name"]: tensor for tensor in manifest["tensors"]}
            is_intact = manifest.pop("xxh3") == xxhash.xxh3_64_hexdigest(canonical(manifest))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}: is not the manifest of an octavo checkpoint ({type(error).__name__} {error})") from error
        if not is_intact:
            raise InputError(f"{path}: is damaged: its checksum differs from that of its contents")

    def tensor(self, name):
        """Returns a tensor in float32."""
        if name not in self.tensors:
            raise InputError(f"{self.folder}: has no tensor {name}, expected a checkpoint of a run with AdamW")
        info = self.tensors[name]
        if info["dtype"] not in DTYPES:
            raise InputError(f"{self.folder}: {name} is {info['dtype']}, expected float32 or bfloat16; resume the run with "
                             "optimizer.state_dtype=float32 and convert its next checkpoint")
        tensor = torch.empty(info["shape"])
        for piece in info["pieces"]:
            part = self.piece(piece, DTYPES[info["dtype"]])
            if "columns" not in piece:
                tensor.view(-1)[piece["begin"]:piece["end"]].copy_(part)
                continue
            begin, end = piece["columns"]
            # A piece of a range of columns may begin and end in the middle of a row.
            columns = tensor[:, begin:end].reshape(-1)
            columns[piece["begin"]:piece["end"]].copy_(part)
            tensor[:, begin:end] = columns.view(-1, end - begin)
        return tensor

    def piece(self, piece, dtype):
        path = self.folder / piece["file"]
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(length))[piece["key"]]["data_offsets"]
        content = numpy.fromfile(path, numpy.uint8, end - begin, offset=8 + length + begin)
        if xxhash.xxh3_64_hexdigest(content) != piece["xxh3"]:
            raise InputError(f"{path}: {piece['key']} is damaged: its checksum differs from that of the manifest")
        return torch.from_numpy(content).view(dtype)


def write_checkpoint(folder, step, model, meta, shapes, read):
    """Writes a checkpoint with float32 tensors of these shapes into an empty folder. `read(name)` returns the values of one."""
    header, offset, tensors = {}, 0, []
    for name, shape in shapes.items():
        end = offset + 4 * numpy.prod(shape, dtype=int).item()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / SHARD).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            content = read(name).contiguous().numpy()
            content.tofile(file)
            piece = {"file": SHARD, "key": name, "begin": 0, "end": content.size, "xxh3": xxhash.xxh3_64_hexdigest(content)}
            tensors.append({"name": name, "shape": shape, "dtype": "float32", "pieces": [piece]})
        file.flush()
        os.fsync(file.fileno())
    shard = {"file": SHARD, "bytes": (folder / SHARD).stat().st_size, "header_xxh3": xxhash.xxh3_64_hexdigest(text)}
    manifest = {"format": "octavo checkpoint", "version": 1, "step": step, "model": model, "mesh": {"ranks": 1}, "meta": meta, "shards": [shard],
                "tensors": tensors}
    manifest["xxh3"] = xxhash.xxh3_64_hexdigest(canonical(manifest))
    with (folder / MANIFEST).open("wb") as file:
        file.write(canonical(manifest) + b"\n")
        os.fsync(file.fileno())
