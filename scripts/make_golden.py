#!/usr/bin/env python3
"""Makes the project's small golden cases with Hugging Face transformers in float64.

    make_golden.py [OUT_DIR] [CASE...]       OUT_DIR is tests/golden by default. Needs torch and transformers 5

Each case is a folder:

    config.json          the model, as transformers writes it
    model.safetensors    the initial weights in float32
    golden.json          the loss and gradient norm of one batch, and the trajectory of a short AdamW or Muon run
    golden.safetensors   input_ids and labels [batch, seq] of that batch, its logits and every gradient (grad.NAME);
                         train_tokens [steps, batch, seq + 1], the tokens of each step, whose inputs and targets overlap;
                         with documents also document_start [batch, seq], the position of the first token of each token's
                         document, and document_lengths, the lengths of the documents of train_tokens in their order
    final.safetensors    the weights after the run

Weights are rounded to float32 before anything is computed, so a program that computes in float32 starts from the same numbers. Norm
weights are drawn around 1 and not set to 1, so that a gradient that ignores them is noticed. transformers computes norms and rope in
float32 for every dtype of the model. This script replaces both by float64 and checks the loss against that of the library.
"""

import json
import math
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

STEPS, WARMUP, LR, MIN_LR_RATIO = 8, 2, 3e-3, 0.1
WEIGHT_DECAY, BETAS, EPS, CLIP = 0.1, (0.9, 0.95), 1e-8, 1.0
IGNORED = -1  # Label of targets that do not count.

SHAPE = {
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attention_bias": False,
    "mlp_bias": False,
}
# Grouped-query attention with a separate output matrix; attention is wider than the model.
GQA = SHAPE | {
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 112,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
# Tied embeddings and Llama 3.1's rope scaling, with an original length so short that all three branches of the scaling occur.
TIED = SHAPE | {
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 96,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
# RMSNorm of each query and key head before rope, as Qwen3 has it; attention twice as wide as the model.
QWEN3 = SHAPE | {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 144,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}
ARCHITECTURES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
}
# Heads that attention within documents has kernels for on GPUs.
WIDE_HEADS = GQA | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
# name: (config, batch, seq, seed, the longest document or None for one document per sequence, optimizer)
CASES = {
    "gqa": (GQA, 2, 40, 1, None, "adamw"),
    "tied_ropescaled": (TIED, 2, 48, 2, None, "adamw"),
    "documents": (WIDE_HEADS, 2, 40, 3, 25, "adamw"),
    "muon": (GQA, 2, 40, 4, None, "muon"),
    "qwen3": (QWEN3, 2, 128, 5, None, "adamw"),
}
MOMENTUM = 0.95  # Momentum of Muon.


def make_model(config, seed):
    """Returns a float32 model with random weights."""
    torch.manual_seed(seed)
    shape = dict(config)
    make_config, make = (getattr(transformers, name) for name in ARCHITECTURES[shape.pop("model_type", "llama")])
    model = make(make_config(**shape, attn_implementation="sdpa"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.05)
            else:
                parameter.normal_(1.0, 0.1)
    return model.float().eval()


def make_exact(model, config):
    """Returns the model in float64 throughout."""
    model = model.double()
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = exact_rms_norm(module)
        if hasattr(module, "inv_freq"):
            module.forward = exact_rope(exact_inv_freq(config))
    return model


def exact_rms_norm(module):
    def forward(x):
        return module.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon)

    return forward


def exact_inv_freq(config):
    """Returns theta^(-2i/D) in float64, with Llama 3.1's scaling if the config asks for it."""
    rope, head_dim = config["rope_parameters"], config["head_dim"]
    inv_freq = rope["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope["rope_type"] == "default":
        return inv_freq
    turns = rope["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    smooth = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    smooth = smooth.clamp(0.0, 1.0)
    return (1 - smooth) * inv_freq / rope["factor"] + smooth * inv_freq


def exact_rope(inv_freq):
    def forward(x, position_ids, *_, **__):
        angles = position_ids[..., None].double() * inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    return forward


def learning_rate(step):
    """Returns the learning rate of a step from 1: linear warm-up, then cosine down to MIN_LR_RATIO."""
    if step <= WARMUP:
        return LR * step / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return LR * (MIN_LR_RATIO + (1 - MIN_LR_RATIO) * (1 + math.cos(math.pi * progress)) / 2)


def draw_document_lengths(tokens, longest, generator):
    """Returns lengths from 1 to `longest` that sum to `tokens`."""
    lengths = []
    while sum(lengths) < tokens:
        length = int(torch.randint(1, longest + 1, (1,), generator=generator))
        lengths.append(min(length, tokens - sum(lengths)))
    return torch.tensor(lengths, dtype=torch.int32)


def first_tokens(lengths, shape):
    """Returns for each token of consecutive sequences whether it is the first of its document."""
    first = torch.zeros(math.prod(shape), dtype=torch.bool)
    first[torch.cumsum(lengths, 0)[:-1]] = True
    return first.reshape(shape)


def labels_of(tokens, first):
    """Returns the label of each token, which is the next token, or IGNORED if the next token begins a document."""
    return tokens[:, 1:] if first is None else tokens[:, 1:].masked_fill(first[:, 1:], IGNORED)


def loss_of(model, tokens, first):
    """Returns the mean cross entropy of [batch, seq + 1] tokens, and the logits. `first` marks the beginnings of documents, within
    which tokens attend."""
    mask = None
    if first is not None:
        document = torch.cumsum(first[:, :-1], dim=1)
        mask = (document[:, :, None] == document[:, None, :]).tril()[:, None]
    logits = model(input_ids=tokens[:, :-1], attention_mask=mask, use_cache=False).logits
    labels = labels_of(tokens, first).flatten()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORED), logits


def backward(model, tokens, first):
    model.zero_grad(set_to_none=True)
    loss, logits = loss_of(model, tokens, first)
    loss.backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))
    return loss.item(), norm, logits.detach()


def weights(model):
    # The tied output matrix is the embedding table and is stored once.
    return {name: p.detach().float().contiguous().clone() for name, p in model.named_parameters()}


class Muon(torch.optim.Optimizer):
    """Jordan's Muon in Moonlight's version (arXiv 2502.16982, and toy_train.py of its repository), in the parameters' dtype."""

    def __init__(self, params, lr, weight_decay):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @staticmethod
    def orthogonalized(update):
        x = update.T if update.size(0) > update.size(1) else update
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return x.T if update.size(0) > update.size(1) else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(MOMENTUM).add_(p.grad)
                x = self.orthogonalized(p.grad + MOMENTUM * momentum)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * 0.2 * math.sqrt(max(p.shape)) * x)


def make_optimizers(model, name):
    """Returns the optimizers. If `name` is muon, Muon updates the matrices of the blocks, and AdamW everything else. AdamW applies
    weight decay to all matrices, tables included."""
    named = list(model.named_parameters())
    matrices = [p for key, p in named if name == "muon" and ".layers." in key and p.dim() == 2]
    others = [p for _, p in named if all(p is not m for m in matrices)]
    groups = [
        {"params": [p for p in others if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    return [adamw, Muon(matrices, LR, WEIGHT_DECAY)] if matrices else [adamw]


def train(model, train_tokens, firsts, optimizer_name):
    optimizers = make_optimizers(model, optimizer_name)
    trajectory = []
    for step, (tokens, first) in enumerate(zip(train_tokens, firsts), 1):
        loss, norm, _ = backward(model, tokens, first)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            optimizer.step()
        trajectory.append({"step": step, "loss": loss, "grad_norm": norm, "lr": learning_rate(step)})
    return trajectory


def make_case(out_dir, name):
    config, batch, seq, seed, longest, optimizer = CASES[name]
    model = make_model(config, seed)
    generator = torch.Generator().manual_seed(100 + seed)
    train_tokens = torch.randint(0, config["vocab_size"], (STEPS, batch, seq + 1), generator=generator)
    firsts = [None] * STEPS
    if longest:
        lengths = draw_document_lengths(train_tokens.numel(), longest, generator)
        firsts = first_tokens(lengths, train_tokens.shape)

    folder = Path(out_dir) / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(model), folder / "model.safetensors", metadata={"format": "pt"})

    with torch.no_grad():
        library_loss = loss_of(model, train_tokens[0], firsts[0])[0].item()
    model = make_exact(model, config)
    loss, norm, logits = backward(model, train_tokens[0], firsts[0])
    assert logits.dtype == torch.float64 and abs(loss - library_loss) < 2e-6 * loss, (loss, library_loss)
    tensors = {f"grad.{key}": p.grad.float().contiguous() for key, p in model.named_parameters()}
    tensors["loss"] = torch.tensor([loss], dtype=torch.float64)
    tensors["logits"] = logits.float().contiguous()
    tensors["input_ids"] = train_tokens[0, :, :-1].int().contiguous()
    tensors["labels"] = labels_of(train_tokens[0], firsts[0]).int().contiguous()
    tensors["train_tokens"] = train_tokens.int().contiguous()
    if longest:
        positions = torch.arange(seq) * firsts[0, :, :-1]
        tensors["document_start"] = torch.cummax(positions, dim=1).values.int().contiguous()
        tensors["document_lengths"] = lengths
    save_file(tensors, folder / "golden.safetensors")

    golden = {
        "case": name,
        "batch": batch,
        "seq": seq,
        "loss": loss,
        "grad_norm": norm,
        "steps": STEPS,
        "warmup": WARMUP,
        "lr": LR,
        "min_lr_ratio": MIN_LR_RATIO,
        "weight_decay": WEIGHT_DECAY,
        "weight_decay_on": "tensors of 2 or more dimensions",
        "beta1": BETAS[0],
        "beta2": BETAS[1],
        "eps": EPS,
        "clip": CLIP,
        "precision": "float64",
        "document_mask": longest is not None,
        "trajectory": train(model, train_tokens, firsts, optimizer),
    }
    if optimizer == "muon":
        golden |= {"optimizer": optimizer, "momentum": MOMENTUM}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    save_file(weights(model), folder / "final.safetensors")
    model.config.save_pretrained(folder)
    last = golden["trajectory"][-1]
    print(f"{name}: loss {loss:.6f} -> {last['loss']:.6f}, {sum(p.numel() for p in model.parameters())} parameters")


def main():
    out_dir = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "tests" / "golden"
    for name in sys.argv[2:] or CASES:
        make_case(out_dir, name)


if __name__ == "__main__":
    main()
