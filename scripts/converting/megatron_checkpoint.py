"""Reads distributed checkpoints of Megatron-Core (torch_dist): a checkpoint of torch.distributed.checkpoint with common.pt and metadata.json.

Tensors of the layers are stacked along a first axis, or have the number of the layer in their names. The states of the optimizer have the
shapes of the weights: optimizer.state.STATE.NAME, where STATE is exp_avg, exp_avg_sq or, for the master weights, fp32_param or param.
"""

import json
from pathlib import Path

import torch

from converting import llama_names as names
from converting.torch_checkpoint import described, one_step
from tokenizing.errors import InputError

MOMENTS, MASTERS = ("exp_avg", "exp_avg_sq"), ("fp32_param", "param")
NORM = "decoder.final_layernorm.weight"
GATE, UP = (f"mlp.{part}_proj.weight" for part in ("gate", "up"))
SPLIT_FC1 = {GATE: "mlp.linear_fc1.weight_w", UP: "mlp.linear_fc1.weight_v"}
LAYOUT = names.Layout(
    {names.EMBEDDING: "embedding.word_embeddings.weight", "model.norm.weight": NORM, names.HEAD: "output_layer.weight"},
    {"input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight", names.QUERY: "self_attention.linear_qkv.weight",
     names.KEY: "self_attention.linear_qkv.weight", names.VALUE: "self_attention.linear_qkv.weight",
     "self_attn.o_proj.weight": "self_attention.linear_proj.weight", "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
     "self_attn.k_norm.weight": "self_attention.k_layernorm.weight", "post_attention_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
     GATE: "mlp.linear_fc1.weight", UP: "mlp.linear_fc1.weight", "mlp.down_proj.weight": "mlp.linear_fc2.weight"},
    "decoder.layers", False)
# Other names of a norm or of half of linear_fc1, by Octavo's names.
OTHERS = {"input_layernorm.weight": "input_layernorm.weight", "post_attention_layernorm.weight": "pre_mlp_layernorm.weight"} | SPLIT_FC1


def is_megatron(checkpoint):
    return (checkpoint.folder / "metadata.json").is_file() or any(name.endswith(NORM) for name in checkpoint.names())


class Unread:
    """Stands for a value of any class that the pickle in common.pt names. The class itself is never used."""

    def __init__(self, *_):
        pass

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else {})


def read_common(path):
    """Returns the values in common.pt. Values with classes other than those of weights_only are instances of Unread."""
    if not path.is_file():
        raise InputError(f"{path.parent}: has no common.pt, expected a complete checkpoint of Megatron-Core")
    with described(path):
        unread = [(type("Unread", (Unread,), {}), name) for name in torch.serialization.get_unsafe_globals_in_checkpoint(path)]
        with torch.serialization.safe_globals(unread):
            common = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(common, dict):
            raise InputError("is not the dictionary of a checkpoint")
        return common


def expected_arguments(model):
    """Returns the options of Megatron-LM that must have these values for the model to compute what Octavo computes."""
    return {"normalization": "RMSNorm", "position_embedding_type": "rope", "swiglu": True, "num_attention_heads": model["num_heads"],
            "kv_channels": model["head_dim"], "norm_epsilon": model["rms_norm_eps"], "rotary_base": model["rope_theta"], "rotary_percent": 1,
            "rotary_interleaved": False, "rotary_seq_len_interpolation_factor": None, "apply_layernorm_1p": False, "window_size": None,
            "multi_latent_attention": False, "attention_output_gate": False, "softmax_type": "vanilla", "qk_l2_norm": False}


class MegatronSource:
    """A GPTModel with the shape of a Llama in a checkpoint of Megatron-Core, under Octavo's names."""

    layout_name = "megatron"

    def __init__(self, checkpoint, model):
        self.checkpoint, self.model, self.folder = checkpoint, model, Path(checkpoint.folder)
        self.shapes = names.parameters(model)
        self.common = read_common(self.folder / "common.pt")
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
            sharding = self.optimizer.get("param_state_sharding_type", "fully_reshardable")
        if sharding != "fully_reshardable":
            raise InputError(f"{self.folder}: has the states of the optimizer as {sharding}, expected tensors with the shapes of the weights, "
                             "which Megatron saves with --dist-ckpt-optim-fully-reshardable (distrib_optim_sharding_type fully_reshardable)")
        found = vars(self.common["args"]) if isinstance(self.common.get("args"), Unread) else {}
        for option, value in expected_arguments(self.model).items():
            if option in found and found[option] != value:
                raise InputError(f"{self.folder}/common.pt: args.{option} is {found[option]}, but Octavo's model requires {value}")

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
        for name, (weight, _) in self.places.items():
            for theirs in (weight, *(self.state(state, name) for state in states)):
                known.add(theirs)
                self.checkpoint.check_shape(theirs, self.saved_shape(name))
            if not self.master and self.checkpoint.entries[weight].properties.dtype != torch.float32:
                raise InputError(f"{self.folder}: {weight} is {self.checkpoint.entries[weight].properties.dtype} and has no float32 master "
                                 "weight, expected the states of an optimizer with mixed precision")
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
        tensor = self.checkpoint.numbers(theirs, moment == "exp_avg_sq", index)
        if inner in (names.QUERY, names.KEY, names.VALUE):
            return names.split_fused(self.model, tensor)[inner]
        if inner in (GATE, UP) and weight.endswith("linear_fc1.weight"):
            return tensor.chunk(2)[inner == UP]
        return tensor[:self.shapes[name][0]]

    def options(self):
        """Yields the parameters, the name and the value of each option of the optimizer. Megatron saves no names of parameters."""
        with described(self.folder / "common.pt"):
            for group in self.groups():
                parameters = ["norm"] if group.get("wd_mult", 1) == 0 else ["weight"]
                yield from ((parameters, option, value) for option, value in group.items())

    def notes(self):
        """Returns sentences about what was left out."""
        return [f"the last {self.dropped_rows} rows of the embedding and the head are padding of Megatron and were left out. Its loss includes "
                f"them. model.vocab_size={self.model['vocab_size'] + self.dropped_rows} keeps them"] if self.dropped_rows else []
