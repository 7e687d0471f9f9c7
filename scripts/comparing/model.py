"""Llama 3 in PyTorch, as a user of torchtitan would write it, with one matrix for qkv and one for gate and up."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.attention.varlen import varlen_attn

SDPA_BACKENDS = {"cudnn": [SDPBackend.CUDNN_ATTENTION], "flash": [SDPBackend.FLASH_ATTENTION]}


def rope_angles(shape, seq_len, device):
    """Returns float64 [seq_len, head_dim / 2], with Llama 3.1's scaling of long wavelengths if the shape has it."""
    frequencies = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float64) / shape.head_dim)
    scaling = shape.rope_scaling
    if scaling:
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        share = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (share + (1 - share) / scaling["factor"])
    return torch.outer(torch.arange(seq_len, device=device, dtype=torch.float64), frequencies)


def rope_table(shape, seq_len, device):
    """Returns cos and sin, float32 [2, seq_len, head_dim / 2]."""
    angles = rope_angles(shape, seq_len, device)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(x, rope):
    """Rotates [batch, tokens, heads, head_dim] by pairs (i, i + head_dim / 2), as Hugging Face does."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = rope[0, None, :, None], rope[1, None, :, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).type_as(x)


def attend(kind, q, k, v, documents):
    """Causal attention of [batch, tokens, heads, head_dim]. Kinds: cudnn, flash, default (SDPA), flex and varlen (within documents)."""
    grouped = q.shape[2] != k.shape[2]
    if kind == "varlen":
        ends, longest = documents
        if grouped:
            k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for x in (k, v))
        return varlen_attn(*(x.flatten(0, 1) for x in (q, k, v)), ends, ends, longest, longest, window_size=(-1, 0)).view_as(q)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if kind == "flex":
        result = flex_attention(q, k, v, block_mask=documents, enable_gqa=grouped)
    elif kind == "default":
        result = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    else:
        with sdpa_kernel(SDPA_BACKENDS[kind], set_priority=True):
            result = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return result.transpose(1, 2)


class Attention(nn.Module):
    """Has the heads of one tensor-parallel rank: q, k and v of a rank are neighbouring rows of its part of qkv."""

    def __init__(self, shape, kind, tensor):
        super().__init__()
        self.kind = kind
        self.head_dim = shape.head_dim
        self.heads = (shape.num_heads // tensor, shape.num_kv_heads // tensor, shape.num_kv_heads // tensor)
        self.qkv = nn.Linear(shape.hidden_size, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim, bias=False)
        self.o = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)

    def forward(self, x, rope, documents):
        qkv = self.qkv(x)
        q, k, v = qkv.view(*qkv.shape[:2], -1, self.head_dim).split(self.heads, dim=2)
        return self.o(attend(self.kind, rotate(q, rope), rotate(k, rope), v, documents).flatten(2))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_up = nn.Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, shape, kind, tensor):
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.attention = Attention(shape, kind, tensor)
        self.mlp_norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x, rope, documents):
        x = x + self.attention(self.attention_norm(x), rope, documents)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, shape, kind, tensor, compute):
        super().__init__()
        self.compute = compute
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleDict({str(i): Block(shape, kind, tensor) for i in range(shape.num_layers)})
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.output = None if shape.tie_word_embeddings else nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    def forward(self, tokens, rope, documents):
        x = self.embedding(tokens).to(self.compute)
        for layer in self.layers.values():
            x = layer(x, rope, documents)
        x = self.norm(x)
        return F.linear(x, self.embedding.weight) if self.output is None else self.output(x)


def clean_name(name):
    """Returns the name of a parameter without the wrappers of torch.compile and recomputation."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def hugging_face_names(name):
    """Returns the names of the tensors of an exported model whose rows, one tensor after the other, form a parameter of this model."""
    if not name.startswith("layers."):
        return ["lm_head.weight" if name == "output.weight" else f"model.{name.replace('embedding', 'embed_tokens')}"]
    _, layer, part, *rest = name.split(".")
    parts = {"attention_norm": ["input_layernorm"], "mlp_norm": ["post_attention_layernorm"],
             "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "attention.o": ["self_attn.o_proj"],
             "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"], "mlp.down": ["mlp.down_proj"]}
    return [f"model.layers.{layer}.{name}.weight" for name in parts[".".join([part, *rest[:-1]])]]
