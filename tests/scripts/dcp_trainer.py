"""Trains a small Llama with PyTorch's FSDP2 and AdamW on the CPU, and saves or loads it with torch.distributed.checkpoint.

    torchrun --nproc-per-node 2 dcp_trainer.py SETTINGS.json

SETTINGS has "model" (a shape), "optimizer", "titan" (the names and the rope of torchtitan instead of Hugging Face's), "flat" (the form of the
optimizer's state), "steps" (the first and the end), and the paths "samples", "load", "save" and "save_at". Rank 0 prints a list of losses.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

# The names of torchtitan and of Hugging Face: outside of the layers, and in a layer.
TITAN = ("tok_embeddings norm output", "layers", "attention.wq attention.wk attention.wv attention.wo feed_forward.w1 feed_forward.w3 "
         "feed_forward.w2 attention_norm ffn_norm")
HUGGING_FACE = ("model.embed_tokens model.norm lm_head", "model.layers", "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
                "mlp.gate_proj mlp.up_proj mlp.down_proj input_layernorm post_attention_layernorm")


def rotate(x, angles, titan):
    """Rotates [batch, tokens, heads, head_dim] by pairs (2i, 2i + 1) as torchtitan does, or by pairs (i, i + head_dim / 2)."""
    if titan:
        turns = torch.polar(torch.ones_like(angles), angles)[None, :, None]
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Llama(nn.Module):
    def __init__(self, shape, titan):
        super().__init__()
        self.shape, self.titan = shape, titan
        outside, self.layers_name, inside = TITAN if titan else HUGGING_FACE
        self.outside, self.inside = outside.split(), inside.split()
        hidden, mlp, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
        queries, keys = shape["num_heads"] * head, shape["num_kv_heads"] * head
        torch.manual_seed(7)
        table = (shape["vocab_size"], hidden)
        for name, size in zip(self.outside, (table, (hidden,), table)):
            if name != self.outside[2] or not shape["tie_word_embeddings"]:
                self.add(name, size)
        for layer in range(shape["num_layers"]):
            for name, size in zip(self.inside, ((queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries), (mlp, hidden),
                                                (mlp, hidden), (hidden, mlp), (hidden,), (hidden,))):
                self.add(f"{self.layers_name}.{layer}.{name}", size)

    def add(self, name, size):
        module = self
        for part in name.split("."):
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part]
        module.weight = nn.Parameter(torch.randn(size) * 0.05 if len(size) == 2 else 1 + torch.randn(size) * 0.1)

    def weight(self, name):
        return self.get_parameter(name + ".weight")

    def forward(self, tokens):
        shape = self.shape
        eps, head = shape["rms_norm_eps"], shape["head_dim"]
        frequencies = shape["rope_theta"] ** -(torch.arange(0, head, 2, dtype=torch.float64) / head)
        angles = torch.outer(torch.arange(tokens.shape[1], dtype=torch.float64), frequencies).float()
        x = F.embedding(tokens, self.weight(self.outside[0]))
        for layer in range(shape["num_layers"]):
            w = [self.weight(f"{self.layers_name}.{layer}.{name}") for name in self.inside]
            h = F.rms_norm(x, x.shape[-1:], w[7], eps)
            q, k, v = (F.linear(h, w[i]).unflatten(-1, (-1, head)) for i in range(3))
            q, k = rotate(q, angles, self.titan), rotate(k, angles, self.titan)
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            x = x + F.linear(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2), w[3])
            h = F.rms_norm(x, x.shape[-1:], w[8], eps)
            x = x + F.linear(F.silu(F.linear(h, w[4])) * F.linear(h, w[5]), w[6])
        x = F.rms_norm(x, x.shape[-1:], self.weight(self.outside[1]), eps)
        return F.linear(x, self.weight(self.outside[0 if shape["tie_word_embeddings"] else 2]))


class State:
    """The state of the trainer as torch.distributed.checkpoint saves and loads it."""

    def __init__(self, model, optimizer, flat):
        self.model, self.optimizer = model, optimizer
        self.options = StateDictOptions(flatten_optimizer_state_dict=flat)

    def state_dict(self, titan, step):
        weights, states = get_state_dict(self.model, self.optimizer, options=self.options)
        if not titan:
            return {"model": weights, "optimizer": states}
        return weights | {"optimizer": states, "train_state": {"step": step, "ntokens_seen": 0}}

    def load(self, titan, path):
        state = self.state_dict(titan, 0)
        dcp.load(state, checkpoint_id=path)
        weights = state["model"] if not titan else {k: v for k, v in state.items() if k not in ("optimizer", "train_state")}
        set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=state["optimizer"], options=self.options)


def main():
    settings = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Llama(settings["model"], settings["titan"])
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    options = settings["optimizer"]
    groups = [{"params": [p for p in model.parameters() if p.dim() == dim], "weight_decay": decay}
              for dim, decay in ((1, 0.0), (2, options["weight_decay"]))]
    optimizer = torch.optim.AdamW(groups, lr=options["lr"], betas=options["betas"], eps=options["eps"])
    # Optimizers of torchtitan have a schedule, which adds this option.
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    state = State(model, optimizer, settings["flat"])
    if settings.get("load"):
        state.load(settings["titan"], settings["load"])
    rows = torch.tensor([json.loads(line)["tokens"] for line in Path(settings["samples"]).read_text().splitlines()])
    losses = []
    for step in range(*settings["steps"]):
        batch = rows[step * settings["batch"]:(step + 1) * settings["batch"]].chunk(ranks)[rank]
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), options["grad_clip"])
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
        if step + 1 == settings.get("save_at"):
            dcp.save(state.state_dict(settings["titan"], step + 1), checkpoint_id=settings["save"])
    if rank == 0:
        print(json.dumps(losses), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
