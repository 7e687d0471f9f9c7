#!/usr/bin/env python3
"""Loads a directory written by `octavo export` with Hugging Face transformers in float32 and compares its loss.

    check_export.py HF_DIR --golden tests/golden/gqa      compares with the loss in golden.json on the tokens in golden.safetensors.
                                                          HF_DIR must be an export of the case's initial weights
    check_export.py HF_DIR --tokens tokens.json --loss L  compares with L on the tokens in tokens.json. The file is a list of lists
                                                          [[id, ...], ...] of seq_len + 1 ids each, or has one object per line
                                                          with a list "tokens", as `octavo inspect --samples` prints
    --tolerance T                                         largest accepted difference, 1e-4 by default

The exit code is 1 if the losses differ by more, or if the directory lacks a tensor or has an additional one.
"""

import argparse
import json
import sys
from pathlib import Path

from python_packages import need_packages

need_packages("torch", "transformers", "safetensors")

import torch  # noqa: E402
import transformers  # noqa: E402


def read_tokens(path):
    text = Path(path).read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        rows = json.loads(text)
    else:
        rows = [json.loads(line)["tokens"] for line in text.splitlines() if line.strip()]
    return torch.tensor(rows, dtype=torch.long)


def read_golden(folder):
    from safetensors.torch import load_file

    tensors = load_file(Path(folder) / "golden.safetensors")
    tokens = torch.cat([tensors["input_ids"], tensors["labels"][:, -1:]], dim=1).long()
    return tokens, json.loads((Path(folder) / "golden.json").read_text())["loss"]


def load_model(folder):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    # With tied embeddings the export has no lm_head.weight.
    missing = [key for key in report["missing_keys"] if not (model.config.tie_word_embeddings and key == "lm_head.weight")]
    wrong = list(missing) + list(report["unexpected_keys"]) + [str(key) for key in report["mismatched_keys"]]
    if wrong:
        sys.exit(f"{folder}: tensors missing, unexpected or of the wrong shape: {wrong}")
    return model.eval()


@torch.no_grad()
def loss_of(model, tokens):
    """Returns the mean cross entropy, computed row by row so that long rows fit into memory."""
    losses = []
    for row in tokens:
        logits = model(input_ids=row[None, :-1], use_cache=False).logits[0].float()
        losses.append(torch.nn.functional.cross_entropy(logits, row[1:], reduction="none").double())
    return torch.cat(losses).mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hf_dir", type=Path)
    parser.add_argument("--golden", type=Path, help="folder in tests/golden, with tokens and the loss that is expected for them")
    parser.add_argument("--tokens", type=Path, help="JSON file of tokens")
    parser.add_argument("--loss", type=float, help="loss that Octavo printed for these tokens")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    if arguments.golden:
        tokens, expected = read_golden(arguments.golden)
    elif arguments.tokens and arguments.loss is not None:
        tokens, expected = read_tokens(arguments.tokens), arguments.loss
    else:
        parser.error("give --golden, or both --tokens and --loss")
    model = load_model(arguments.hf_dir)
    if tokens.max() >= model.config.vocab_size:
        sys.exit(f"{arguments.hf_dir}: has a vocabulary of {model.config.vocab_size}, but the largest token is {tokens.max()}")
    loss = loss_of(model, tokens)
    difference = abs(loss - expected)
    print(f"transformers {transformers.__version__}: loss {loss:.6f}, expected {expected:.6f}, difference {difference:.2e}")
    return 0 if difference <= arguments.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
