"""Llama 3 of Transformer Engine's modules, as its documentation builds it, with one matrix for qkv and one for gate and up."""

from contextlib import nullcontext

import torch
import torch.nn as nn
import transformer_engine.pytorch as te
from transformer_engine.common import recipe

from comparing.model import rope_angles

RECIPES = {
    "fp8_tensorwise": lambda: recipe.Float8CurrentScaling(fp8_format=recipe.Format.HYBRID),
    "fp8_delayed": lambda: recipe.DelayedScaling(fp8_format=recipe.Format.HYBRID, amax_history_len=16, amax_compute_algo="max",
                                                 reduce_amax=False),
    "fp8_blockwise": recipe.Float8BlockScaling}
# The parts of a TransformerLayer and of the output layer, and the parts of comparing.model that have the same weights.
NAMES = {
    "self_attention.layernorm_qkv.layer_norm_weight": "attention_norm.weight",
    "self_attention.layernorm_qkv.weight": "attention.qkv.weight",
    "self_attention.proj.weight": "attention.o.weight",
    "layernorm_mlp.layer_norm_weight": "mlp_norm.weight",
    "layernorm_mlp.fc1_weight": "mlp.gate_up.weight",
    "layernorm_mlp.fc2_weight": "mlp.down.weight",
    "output.layer_norm_weight": "norm.weight"}


def shared_name(name):
    """Returns the name that comparing.model gives to a parameter."""
    prefix = ".".join(name.split(".")[:2]) + "." if name.startswith("layers.") else ""
    part = name.removeprefix(prefix)
    return prefix + NAMES.get(part, part)


class Llama(nn.Module):
    """Has bfloat16 weights, except for a float32 embedding. Linears add their weight gradients to `main_grad` of the weight."""

    def __init__(self, settings):
        super().__init__()
        shape = settings.shape
        common = {"params_dtype": torch.bfloat16, "fuse_wgrad_accumulation": True, "normalization": "RMSNorm", "bias": False}
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size, device="cuda")
        self.layers = nn.ModuleList(
            te.TransformerLayer(shape.hidden_size, shape.intermediate_size, shape.num_heads, num_gqa_groups=shape.num_kv_heads,
                                kv_channels=shape.head_dim, layernorm_epsilon=shape.rms_norm_eps, hidden_dropout=0.0,
                                attention_dropout=0.0, layer_number=i + 1, self_attn_mask_type="causal", attn_input_format="bshd",
                                activation="swiglu", fuse_qkv_params=True, qkv_weight_interleaved=False, **common)
            for i in range(shape.num_layers))
        self.output = te.LayerNormLinear(shape.hidden_size, shape.vocab_size, eps=shape.rms_norm_eps, **common)
        angles = rope_angles(shape, settings.seq_len, "cuda").float()
        self.rope = torch.cat([angles, angles], dim=-1)[:, None, None].contiguous()
        self.recipe = RECIPES[settings.peer_linear]() if settings.linear.startswith("fp8") else None
        self.first, self.last = settings.bf16_first_layers, shape.num_layers - settings.bf16_last_layers
        self.fp8_head = settings.fp8_head

    def forward(self, tokens, is_first_micro_batch):
        def precision(fp8):
            return nullcontext() if fp8 else te.autocast(enabled=False)

        x = self.embedding(tokens).bfloat16()
        with te.autocast(enabled=self.recipe is not None, recipe=self.recipe):
            for i, layer in enumerate(self.layers):
                with precision(self.first <= i < self.last):
                    x = layer(x, rotary_pos_emb=self.rope, is_first_microbatch=is_first_micro_batch)
            with precision(self.fp8_head):
                return self.output(x, is_first_microbatch=is_first_micro_batch)
