"""Reads distributed checkpoints of Megatron-Core (torch_dist): a checkpoint of torch.distributed.checkpoint with common.pt and metadata.json.

Tensors of the layers are stacked along a first axis, or have the number of the layer in their names. The states of the optimizer have the
shapes of the weights: optimizer.state.STATE.NAME, where STATE is exp_avg, exp_avg_sq or, for the master weights, fp32_param or param. In the
older fully_sharded_model_space, a state [rows, columns] of R x C shards has the shape [R, C, elements of a shard].
"""

import json
import math
from pathlib import Path

import torch

from converting import llama_names as names
from converting.torch_checkpoint import described, load_values, one_step
from tokenizing.errors import InputError

SHARDINGS = (None, "fully_reshardable", "fully_sharded_model_space")  # Formats of a DistributedOptimizer that are read.
MOMENTS, MASTERS = ("exp_avg", "exp_avg_sq"), ("fp32_param", "param")
MEGATRON_SCALING = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}  # It has no options for these.
LAYOUT = names.MEGATRON
# Other names of a norm or of half of linear_fc1, by Octavo's names.
OTHERS = {"input_layernorm.weight": "input_layernorm.weight", "post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
          names.GATE: "mlp.linear_fc1.weight_w", names.UP: "mlp.linear_fc1.weight_v"}
NORM = LAYOUT.outside["model.norm.weight"]


def is_megatron(checkpoint):
    return (checkpoint.folder / "metadata.json").is_file() or any(name.endswith(NORM) for name in checkpoint.names())


def expected_arguments(model):
    """Returns the options of Megatron-LM that must have these values for the model to compute what Octavo computes."""
    scaling = model["rope_scaling"]
    return {"normalization": "RMSNorm", "position_embedding_type": "rope", "swiglu": True, "num_attention_heads": model["num_heads"],
            "kv_channels": model["head_dim"], "norm_epsilon": model["rms_norm_eps"], "rotary_base": model["rope_theta"], "rotary_percent": 1,
            "rotary_interleaved": False, "use_rope_scaling": scaling is not None, "rotary_seq_len_interpolation_factor": None,
            **({"rope_scaling_factor": scaling["factor"]} if scaling else {}), "no_rope_freq": None,
            "apply_layernorm_1p": False, "window_size": None, "multi_latent_attention": False, "attention_output_gate": False,
            "softmax_type": "vanilla", "qk_l2_norm": False}


def is_sharded(found, shape):
    """Returns whether `found` is [the number of shards along each axis..., elements of a shard] for a tensor of this shape."""
    return (len(found) == len(shape) + 1 and all(shards and size % shards == 0 for shards, size in zip(found, shape))
            and math.prod(found) == math.prod(shape))


def join_shards(tensor, shape):
    """Returns the tensor of this shape. `tensor` has it already, or has shards as is_sharded() describes."""
    if tensor.dim() == len(shape):
        return tensor
    shards = tensor.shape[:-1]
    axes = tensor.view(*shards, *(size // count for size, count in zip(shape, shards, strict=True)))
    return axes.permute(*(axis for i in range(len(shape)) for axis in (i, i + len(shape)))).reshape(shape)


class MegatronSource:
    """A GPTModel with the shape of a Llama in a checkpoint of Megatron-Core, under Octavo's names."""

    layout_name = "megatron"

    def __init__(self, checkpoint, model):
        self.checkpoint, self.model, self.folder = checkpoint, model, Path(checkpoint.folder)
        self.shapes = names.parameters(model)
        self.common = load_values(self.folder / "common.pt")
        self.check_format()
        prefixes = [name.removesuffix(NORM) for name in checkpoint.names() if name.endswith(NORM) and not name.startswith("optimizer.")]
        if len(prefixes) != 1:
            raise InputError(f"{self.folder}: has {len(prefixes)} tensors {NORM}, expected the one of a GPTModel")
        self.prefix = prefixes[0]
        self.places = {name: self.place(name) for name in self.shapes}
        self.dropped_rows = self.find_padding()
        self.check_names()
        with described(self.folder / "common.pt"):
            self.step = self.find_step()

    def check_format(self):
        path = self.folder / "metadata.json"
        with described(path):
            backend = json.loads(path.read_text())["sharded_backend"]
            if backend != "torch_dist":
                raise InputError(f"sharded_backend is {backend}, expected torch_dist, which --ckpt-format torch_dist saves")
        with described(self.folder / "common.pt"):
            self.optimizer = self.common.get("optimizer", {})
            sharding = self.optimizer.get("param_state_sharding_type")
        if sharding not in SHARDINGS:
            raise InputError(f"{self.folder}: has the states of the optimizer as {sharding}, expected tensors with the shapes of the weights, "
                             "which Megatron saves with --dist-ckpt-optim-fully-reshardable (distrib_optim_sharding_type fully_reshardable)")
        arguments = self.common.get("args", {})
        found = arguments if isinstance(arguments, dict) else vars(arguments)
        for option, value in expected_arguments(self.model).items():
            with described(self.folder / "common.pt"):
                if option in found and found[option] != value:
                    raise InputError(f"args.{option} is {found[option]}, but the model in the config requires {value}")
        scaling = self.model["rope_scaling"]
        if scaling and found.get("use_rope_scaling") and any(scaling[key] != value for key, value in MEGATRON_SCALING.items()):
            raise InputError(f"{self.folder}: Megatron scales rope with {MEGATRON_SCALING}, but model.rope_scaling has other values")

    def place(self, name):
        """Returns the name of the weight that has a parameter, and the number of its slice if it is stacked, or None."""
        layer, inner = names.split_name(name)
        if layer is None:
            return self.prefix + LAYOUT.outside[inner], None
        choices = [LAYOUT.in_layers[inner], *([OTHERS[inner]] if inner in OTHERS else [])]
        for choice in choices:
            for theirs, index in ((f"decoder.layers.{choice}", int(layer)), (f"decoder.layers.{layer}.{choice}", None)):
                if self.prefix + theirs in self.checkpoint.names():
                    return self.prefix + theirs, index
        raise InputError(f"{self.folder}: has neither {self.prefix}decoder.layers.{choices[0]} nor the same of layer {layer}")

    def find_padding(self):
        """Returns the number of rows of the embedding after the vocabulary."""
        theirs, vocabulary = self.places[names.EMBEDDING][0], self.model["vocab_size"]
        rows = (self.checkpoint.shape(theirs) or (0,))[0] if theirs in self.checkpoint.names() else vocabulary
        # Megatron pads to a multiple of 128 per tensor-parallel rank, each of which saves a part of the rows.
        limit = 128 * len({chunk.offsets[0] for chunk in self.checkpoint.entries[theirs].chunks}) if rows > vocabulary else 1
        if rows - vocabulary >= limit:
            raise InputError(f"{self.folder}: {theirs} has {rows} rows, which is not model.vocab_size {vocabulary} with the padding of Megatron "
                             f"(fewer than {limit} rows); model.vocab_size={rows} keeps all rows")
        return max(rows - vocabulary, 0)

    def saved_shape(self, name):
        """Returns the shape of the tensor in which the checkpoint has a parameter."""
        (theirs, index), shape = self.places[name], self.shapes[name]
        if name in (names.EMBEDDING, names.HEAD):
            shape = (shape[0] + self.dropped_rows, shape[1])
        if theirs.endswith("linear_qkv.weight"):
            shape = names.fused_shape(self.model)
        if theirs.endswith("linear_fc1.weight"):
            shape = (2 * shape[0], shape[1])
        return shape if index is None else (self.model["num_layers"], *shape)

    def check_names(self):
        """Refuses a checkpoint that lacks a tensor, has one in another shape, or has another one."""
        known = set()
        self.master = next((master for master in MASTERS if self.state(master, names.EMBEDDING) in self.checkpoint.names()), None)
        states = MOMENTS + ((self.master,) if self.master else ())
        for name, (weight, index) in self.places.items():
            shape, theirs = self.saved_shape(name), [self.state(state, name) for state in states]
            known |= {weight, *theirs}
            for tensor in (weight, *theirs):
                found = tensor in self.checkpoint.names() and self.checkpoint.shape(tensor)
                # Layers that are stacked are never in one shard.
                if tensor == weight or not found or not is_sharded(found, shape) or (index is not None and found[0] != shape[0]):
                    self.checkpoint.check_shape(tensor, shape)
            trained = self.state(self.master, name) if self.master else weight
            if self.checkpoint.entries[trained].properties.dtype != torch.float32:
                raise InputError(f"{self.folder}: {trained} is {self.checkpoint.entries[trained].properties.dtype}, expected float32 weights or "
                                 "float32 master weights in the states of the optimizer")
        for theirs in self.checkpoint.names():
            # Values of other classes have such names: states of Transformer Engine, of random numbers and of the reruns.
            is_object = self.checkpoint.shape(theirs) is None and "/shard_" in theirs
            if theirs not in known and not is_object:
                raise InputError(f"{self.folder}: has {theirs}, which a Llama of the shape in the config and AdamW do not have")

    def state(self, state, name):
        return f"optimizer.state.{state}.{self.places[name][0]}"

    def groups(self):
        return self.optimizer.get("optimizer", self.optimizer)["param_groups"]

    def find_step(self):
        """Returns the number of steps that AdamW has taken."""
        steps = {f"param_groups[{i}].step": group["step"] for i, group in enumerate(self.groups()) if "step" in group}
        state = self.optimizer.get("optimizer", self.optimizer).get("state", {})
        steps |= {"common_step": state["common_step"]} if "common_step" in state else {}
        if not steps:
            raise InputError("has no step of the optimizer, which the bias correction of AdamW needs")
        steps |= {"iteration": self.common["iteration"]} if "iteration" in self.common else {}
        return one_step((key, value.item() if isinstance(value, torch.Tensor) else value) for key, value in steps.items())

    def tensor(self, ours):
        """Returns a weight NAME or a moment MOMENT.NAME in Octavo's order. The weight is the master weight if there is one."""
        moment, _, name = ours.partition(".")
        if moment not in MOMENTS:
            moment, name = None, ours
        (weight, index), inner = self.places[name], names.split_name(name)[1]
        theirs = self.state(moment or self.master, name) if moment or self.master else weight
        shape = self.saved_shape(name) if index is None else self.saved_shape(name)[1:]
        tensor = join_shards(self.checkpoint.numbers(theirs, moment == "exp_avg_sq", index), shape)
        if inner in (names.QUERY, names.KEY, names.VALUE):
            return names.split_fused(self.model, tensor)[inner]
        if inner in (names.GATE, names.UP) and weight.endswith("linear_fc1.weight"):
            return tensor.chunk(2)[inner == names.UP]
        return tensor[:self.shapes[name][0]]

    def options(self):
        """Yields the parameters, the name and the value of each option of the optimizer. Megatron saves no names of parameters."""
        with described(self.folder / "common.pt"):
            for group in self.groups():
                group = {option: value for option, value in group.items() if not isinstance(value, torch.Tensor)}
                parameters = ["norm"] if group.get("wd_mult", 1) == 0 else ["weight"]
                yield from ((parameters, option, value) for option, value in group.items())

    def notes(self):
        """Returns sentences about what was left out."""
        return [f"the last {self.dropped_rows} rows of the embedding and the head are padding of Megatron and were left out. Its loss includes "
                f"them. model.vocab_size={self.model['vocab_size'] + self.dropped_rows} keeps them"] if self.dropped_rows else []
