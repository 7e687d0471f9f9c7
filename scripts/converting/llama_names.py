"""The names and layouts under which PyTorch programs save the parameters of a Llama, and their conversion to those of Octavo.

Octavo has the names of Hugging Face, and rope rotates the pairs (i, i + head_dim / 2) of a head. Torchtitan rotates the pairs (2i, 2i + 1), so
the rows of its query and key weights have another order, and so have their moments.
"""

from typing import NamedTuple

import torch

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
QUERY, KEY, VALUE = (f"self_attn.{part}_proj.weight" for part in "qkv")
GATE, UP = (f"mlp.{part}_proj.weight" for part in ("gate", "up"))


class Layout(NamedTuple):
    """How a program names and orders the parameters."""

    outside: dict  # Maps Octavo's name of a parameter outside of the layers to the program's name.
    in_layers: dict  # Maps the part of a name after "model.layers.N." in Octavo to the part after "layers.N." in the program.
    layers: str  # Prefix of the number of a layer in the names of the program, such as "layers".
    is_interleaved: bool  # Whether rope rotates the pairs (2i, 2i + 1).
    # Name after "layers.N." of a matrix that contains the weights of queries, keys and values. The program may save the moments of
    # this matrix in place of those of the three weights. None if there is no such matrix.
    fused: str | None = None


def torchtitan(attention, head, fused):
    outside = {EMBEDDING: "tok_embeddings.weight", "model.norm.weight": "norm.weight", HEAD: head}
    in_layers = {QUERY: f"{attention}.wq.weight", KEY: f"{attention}.wk.weight", VALUE: f"{attention}.wv.weight",
                 "self_attn.o_proj.weight": "attention.wo.weight", "mlp.gate_proj.weight": "feed_forward.w1.weight",
                 "mlp.up_proj.weight": "feed_forward.w3.weight", "mlp.down_proj.weight": "feed_forward.w2.weight",
                 "input_layernorm.weight": "attention_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight"}
    return Layout(outside, in_layers, "layers", True, fused)


def shapes_in_layers(model):
    hidden, mlp, head = model["hidden_size"], model["intermediate_size"], model["head_dim"]
    queries, keys = model["num_heads"] * head, model["num_kv_heads"] * head
    shapes = {"input_layernorm.weight": (hidden,), QUERY: (queries, hidden), KEY: (keys, hidden), VALUE: (keys, hidden),
              "self_attn.o_proj.weight": (hidden, queries), "post_attention_layernorm.weight": (hidden,),
              "mlp.gate_proj.weight": (mlp, hidden), "mlp.up_proj.weight": (mlp, hidden), "mlp.down_proj.weight": (hidden, mlp)}
    return shapes | ({"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)} if model["qk_norm"] else {})


def shapes_outside(model):
    table = (model["vocab_size"], model["hidden_size"])
    return {EMBEDDING: table, "model.norm.weight": (model["hidden_size"],)} | ({} if model["tie_word_embeddings"] else {HEAD: table})


def parameters(model):
    """Returns the shapes of all parameters by Octavo's names. `model` is the section of a config or manifest."""
    layers = {f"model.layers.{layer}.{name}": shape for layer in range(model["num_layers"]) for name, shape in shapes_in_layers(model).items()}
    return shapes_outside(model) | layers


HUGGING_FACE = Layout({name: name for name in (EMBEDDING, "model.norm.weight", HEAD)},
                      {name: name for name in shapes_in_layers(dict.fromkeys(
                          ("hidden_size", "intermediate_size", "head_dim", "num_heads", "num_kv_heads", "qk_norm"), 1))},
                      "model.layers", False)
# Several parameters are parts of one matrix of Megatron-Core (converting/megatron_checkpoint.py).
MEGATRON = Layout(
    {EMBEDDING: "embedding.word_embeddings.weight", "model.norm.weight": "decoder.final_layernorm.weight", HEAD: "output_layer.weight"},
    {QUERY: "self_attention.linear_qkv.weight", KEY: "self_attention.linear_qkv.weight", VALUE: "self_attention.linear_qkv.weight",
     "self_attn.o_proj.weight": "self_attention.linear_proj.weight", "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
     "self_attn.k_norm.weight": "self_attention.k_layernorm.weight", GATE: "mlp.linear_fc1.weight", UP: "mlp.linear_fc1.weight",
     "mlp.down_proj.weight": "mlp.linear_fc2.weight", "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
     "post_attention_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"},
    "decoder.layers", False)
LAYOUTS = {
    "torchtitan": torchtitan("attention.qkv_linear", "lm_head.weight", "attention.qkv_linear.wqkv.weight"),  # Since 0.3.
    "torchtitan-0.2": torchtitan("attention", "output.weight", None),
    "huggingface": HUGGING_FACE,
}


def split_name(name):
    """Splits model.layers.N.NAME into N and NAME. N is None for a parameter outside of the layers."""
    if not name.startswith("model.layers."):
        return None, name
    _, _, layer, inner = name.split(".", 3)
    return layer, inner


def name_in(layout, name):
    """Returns the layout's name of the parameter `name`."""
    layer, inner = split_name(name)
    return layout.outside[inner] if layer is None else f"{layout.layers}.{layer}.{layout.in_layers[inner]}"


def fused_name(layout, name):
    """Returns the layout's name of the matrix that contains the parameter `name` among others, or None."""
    layer, inner = split_name(name)
    return f"{layout.layers}.{layer}.{layout.fused}" if layout.fused and inner in (QUERY, KEY, VALUE) else None


def fused_shape(model):
    return (model["num_heads"] + 2 * model["num_kv_heads"]) * model["head_dim"], model["hidden_size"]


def split_fused(model, tensor):
    """Splits a fused matrix into queries, keys and values. Its rows are, for each key head in turn: the query heads
    that use this key head, the key head, and the value head."""
    group = model["num_heads"] // model["num_kv_heads"]
    heads = tensor.view(model["num_kv_heads"], group + 2, model["head_dim"], model["hidden_size"])
    parts = {QUERY: heads[:, :group], KEY: heads[:, group], VALUE: heads[:, group + 1]}
    return {name: part.reshape(-1, model["hidden_size"]) for name, part in parts.items()}


def fuse(model, queries, keys, values):
    """Returns the fused matrix of split_fused()."""
    heads = [tensor.view(model["num_kv_heads"], -1, model["head_dim"], model["hidden_size"]) for tensor in (queries, keys, values)]
    return torch.cat(heads, dim=1).reshape(-1, model["hidden_size"])


def reorder(layout, model, name, tensor, to_octavo):
    """Converts the order of the rows between the layout and Octavo."""
    inner = split_name(name)[1]
    if not layout.is_interleaved or inner not in (QUERY, KEY):
        return tensor
    half = model["head_dim"] // 2
    pairs = (half, 2) if to_octavo else (2, half)
    return tensor.view(-1, *pairs, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
