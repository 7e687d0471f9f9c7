"""Reads and writes checkpoints of torch.distributed.checkpoint: a folder with .metadata and *.distcp.

.metadata is a pickle, and a pickle can run any program. So it is read by an unpickler that knows only the classes of such metadata and changes
none of them, and the values in the other files are read with weights_only.
"""

import io
import math
import os
import pickle
from collections import OrderedDict
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata, planner

from tokenizing.errors import InputError

FILE = "__0_0.distcp"
METADATA_CLASSES = ("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
                    "TensorStorageMetadata", "_MEM_FORMAT_ENCODING")
# Classes of the plans that Megatron-Core adds to the metadata.
PLAN_CLASSES = ("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
STATE_MODULES = (metadata.__name__, planner.__name__, filesystem.__name__)  # Modules of the classes whose instances have a state.


class MetadataUnpickler(pickle._Unpickler):
    """Accepts the classes of a checkpoint's metadata only."""

    def load_build(self):
        """Sets the state of an instance. By default this operation of a pickle also sets attributes of classes and functions."""
        state = self.stack.pop()
        instance = self.stack[-1]
        if type(instance) is metadata.TensorProperties:
            instance.__setstate__(state)
        elif type(instance).__module__ in STATE_MODULES and not isinstance(instance, Enum) and isinstance(state, dict):
            vars(instance).update(state)
        else:
            raise InputError(f"its pickle changes a {type(instance).__name__}, which no metadata of a checkpoint does")

    dispatch = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}

    def find_class(self, module, name):
        if module == metadata.__name__ and name in METADATA_CLASSES:
            return getattr(metadata, name)
        if module == planner.__name__ and name in PLAN_CLASSES:
            return getattr(planner, name)
        if module == "megatron.core.dist_checkpointing.strategies.torch" and name in ("MCoreMetadata", "MCoreSavePlan"):  # Until 0.15.
            return metadata.Metadata if name == "MCoreMetadata" else planner.SavePlan
        if module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)):
            return getattr(torch, name)
        if module.startswith("pathlib") and name in ("PosixPath", "WindowsPath"):  # The path at which the checkpoint was saved.
            return lambda *parts: "/".join(map(str, parts))
        known = {(filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo, ("collections", "OrderedDict"): OrderedDict,
                 ("torch.serialization", "_get_layout"): torch.serialization._get_layout}
        if (module, name) not in known:
            raise InputError(f"its pickle names {module}.{name}, which no metadata of a checkpoint has, so nothing was executed")
        return known[module, name]


@contextmanager
def described(where):
    """Turns whatever a damaged file raises into an InputError that begins with `where`."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # Pickles and archives that are damaged raise errors of any class.
        reason = str(error).strip().splitlines()
        raise InputError(f"{where}: {reason[0] if reason else type(error).__name__}") from error


class Unread:
    """Stands for a value of a class that weights_only does not accept. The class itself is never used."""

    def __init__(self, *_):
        pass

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else {})


def load_values(path):
    """Returns the dictionary in a file of torch.save(). Values with classes that weights_only does not accept are instances of Unread."""
    with described(path):
        unread = [(type("Unread", (Unread,), {}), name) for name in torch.serialization.get_unsafe_globals_in_checkpoint(path)]
        with torch.serialization.safe_globals(unread):
            values = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(values, dict):
            raise InputError("is not a dictionary of values")
        return values


def one_step(steps):
    """Returns the number of steps. All of the pairs (name, number of steps) must have the same."""
    first = None
    for key, step in steps:
        if type(step) not in (int, float) or not 1 <= step <= 10**9 or step % 1:
            raise InputError(f"{key} is {step}, expected a positive integer of at most 10^9")
        first = first or (key, step)
        if step != first[1]:
            raise InputError(f"{key} is {step}, but {first[0]} is {first[1]}, expected one step for all")
    return int(first[1])


def is_valid(entry):
    """Returns whether the metadata of a tensor has values of the right types, and parts that lie in the tensor and are not larger together.
    If such parts overlap, elements are missing elsewhere."""
    size = entry.size
    return (isinstance(entry.properties, metadata.TensorProperties) and isinstance(entry.properties.dtype, torch.dtype)
            and all(len(chunk.offsets) == len(chunk.sizes) == len(size) for chunk in entry.chunks)
            and all(0 <= begin <= begin + length <= end for chunk in entry.chunks for begin, length, end in zip(chunk.offsets, chunk.sizes, size))
            and sum(math.prod(chunk.sizes) for chunk in entry.chunks) <= math.prod(size))


class TorchCheckpoint:
    """A checkpoint that is open for reading. Each call of a method reads what it returns from the files."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.last = None, None
        path = self.folder / ".metadata"
        if not path.is_file():
            raise InputError(f"{folder}: has no .metadata, expected a complete checkpoint of torch.distributed.checkpoint")
        with described(path), path.open("rb") as file:
            found = MetadataUnpickler(file).load()
            if type(found) is not metadata.Metadata or not all(isinstance(name, str) for name in found.state_dict_metadata):
                raise InputError("is not the metadata of a checkpoint")
            self.entries, self.places = dict(found.state_dict_metadata), dict(found.storage_data)
            for name, entry in self.entries.items():
                if isinstance(entry, metadata.TensorStorageMetadata) and not is_valid(entry):
                    raise InputError(f"describes {name} by sizes that contradict each other")

    def names(self):
        return self.entries.keys()

    def shape(self, name):
        """Returns the shape of a tensor, or None for another value."""
        with described(f"{self.folder}: {name}"):
            entry = self.entries[name]
            return tuple(entry.size) if isinstance(entry, metadata.TensorStorageMetadata) else None

    def value(self, name):
        """Returns a value that is not a tensor, or a tensor with one element as a number."""
        if self.shape(name) is not None:
            return self.tensor(name).item()
        with described(f"{self.folder}: {name}"):
            return self.load(metadata.MetadataIndex(name))

    def check_shape(self, name, shape):
        if name not in self.entries:
            raise InputError(f"{self.folder}: has no {name}, expected one of shape {list(shape)}")
        found = self.shape(name)
        if found != shape:
            raise InputError(f"{self.folder}: {name} is {found and list(found)}, but the shape in the config requires {list(shape)}")

    def tensor(self, name, index=None):
        """Returns a tensor of floating-point numbers in float32, or one number of any dtype. Elements that no file has are NaN. With an index
        the function returns and reads only this slice of the first axis."""
        with described(f"{self.folder}: {name}"):
            entry = self.entries[name]
            tensor = torch.full(entry.size if index is None else (1, *entry.size[1:]), math.nan)
            for chunk in entry.chunks:
                if index is not None and not chunk.offsets[0] <= index < chunk.offsets[0] + chunk.sizes[0]:
                    continue
                part = self.load(metadata.MetadataIndex(name, chunk.offsets))
                if not part.is_floating_point() and part.dim():
                    raise InputError(f"is {part.dtype}, expected floating-point numbers")
                if part.shape != chunk.sizes:
                    raise InputError(f"a part is {list(part.shape)}, but .metadata says {list(chunk.sizes)}")
                place = [slice(begin, begin + size) for begin, size in zip(chunk.offsets, chunk.sizes, strict=True)]
                if index is not None:
                    part, place[0] = part[index - chunk.offsets[0]:][:1], slice(0, 1)
                tensor[tuple(place)].copy_(part)
            return tensor if index is None else tensor[0]

    def numbers(self, name, is_square, index=None):
        """Returns a tensor like tensor() and refuses numbers that are not finite, and squares that are negative. Keeps the last tensor, because
        several parameters may be parts of one matrix and are then read one after the other."""
        if self.last[0] == (name, index):
            return self.last[1]
        tensor = self.tensor(name, index)
        if not tensor.isfinite().all() or (is_square and (tensor < 0).any()):
            expected = "finite numbers that are not negative" if is_square else "finite numbers"
            raise InputError(f"{self.folder}: {name} lacks elements or has wrong ones, expected {expected}")
        self.last = (name, index), tensor
        return tensor

    def load(self, index):
        place = self.places.get(index)
        if place is None:
            raise InputError(f".metadata names no file with its part at {index.offset}")
        if place.transform_descriptors:
            raise InputError(f"is stored with {place.transform_descriptors}, expected plain storage")
        if not isinstance(place.relative_path, str) or Path(place.relative_path).name != place.relative_path:
            raise InputError(f"is in {place.relative_path!r}, expected a file in the folder of the checkpoint")
        with (self.folder / place.relative_path).open("rb") as file:
            file.seek(place.offset)
            content = file.read(place.length)
        if len(content) < place.length:
            raise InputError(f"{place.relative_path} ends before byte {place.offset + place.length}, so it is truncated")
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def save(folder, state, read):
    """Writes a checkpoint into an empty folder. `read(name)` returns the values of a tensor that is on the device meta in the state dict.

    dcp.save() keeps all tensors of a file in memory until the file is complete. This function makes the same files with one tensor in memory.
    """
    planner = dcp.DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    (plan,), saved = planner.create_global_plan([planner.create_local_plan()])
    saved.storage_data, saved.storage_meta = {}, metadata.StorageMeta()
    with (folder / FILE).open("wb") as file:
        for item in planner.finish_plan(plan).items:
            begin, value = file.tell(), planner.resolve_data(item)
            if isinstance(value, torch.Tensor):
                torch.save(read(item.index.fqn) if value.is_meta else value, file)
            else:
                file.write(value.getbuffer())
            saved.storage_data[item.index] = filesystem._StorageInfo(FILE, begin, file.tell() - begin)
        file.flush()
        os.fsync(file.fileno())
    with (folder / ".metadata").open("wb") as file:
        pickle.dump(saved, file)
