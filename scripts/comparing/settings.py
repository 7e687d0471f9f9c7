"""Reads what a comparison with a peer needs to know of a config, through the program itself. Needs only the standard library."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field

RECOMPUTE_MODES = ("none", "selective", "full")  # Fastest first. Each mode needs less memory than the one before it.


class Refused(Exception):
    """The config asks for something that Octavo and the peer cannot be compared with. The message is one sentence."""


@dataclass(frozen=True)
class Peer:
    """A program that Octavo is compared with."""

    title: str
    module: str  # Module of this package that trains with it.
    recompute: tuple  # Modes of recomputation that the peer has, in the order of RECOMPUTE_MODES.
    substitutes: dict = field(default_factory=dict)  # Values of precision.linear that it lacks, and what it runs instead.
    only: dict = field(default_factory=dict)  # Config keys for which the peer supports a single value, with that value.
    one_gpu: bool = False  # Whether its training step is for one GPU, in bfloat16.


PEERS = {
    "torch": Peer("PyTorch", "training", RECOMPUTE_MODES, substitutes=dict.fromkeys(("fp8_delayed", "fp8_blockwise"), "fp8_tensorwise")),
    "te": Peer("Transformer Engine", "te_training", ("none",), substitutes={"fp8_rowwise": "fp8_tensorwise"}, one_gpu=True,
               only={"data.document_mask": False, "model.tie_word_embeddings": False})}


@dataclass(frozen=True)
class Shape:
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float
    rope_scaling: dict | None
    rms_norm_eps: float
    tie_word_embeddings: bool


@dataclass(frozen=True)
class Variant:
    """Settings that a search may change. They change no result, only speed and memory."""

    micro_batch: int
    recompute: str  # none, selective, full. Octavo also has auto.
    reshard: str = "always"  # Whether weights are gathered again in backward: always, never. Octavo also has auto.
    weights: str = "fsdp"  # Peer torch only. fsdp: FSDP2 casts the weights; autocast: torch.autocast does, on one GPU.

    def text(self):
        parts = [f"micro-batch {self.micro_batch}", f"recompute {self.recompute}", f"reshard {self.reshard}"]
        return ", ".join(parts + ([f"weights by {self.weights}"] if self.weights != "fsdp" else []))


@dataclass(frozen=True)
class Settings:
    peer: str  # Key of PEERS
    octavo: str
    launcher: list  # Command before the program that starts its ranks. Empty for one rank.
    config: str
    overrides: list
    device: str  # cpu or cuda
    compute: str  # bfloat16 or float32
    ranks: int
    replicate: int
    shard: int
    tensor: int
    parameters: int | None  # None if the model is not Octavo's
    shape: Shape = field(default=None)
    seq_len: int = 0
    document_mask: bool = False
    global_batch: int = 0
    micro_batch: int = 0
    recompute: str = "auto"
    linear: str = "bfloat16"
    fp8_head: bool = False
    fp8_all_gather: bool = True
    bf16_first_layers: int = 0
    bf16_last_layers: int = 0
    reduce: str = "float32"
    betas: list = field(default_factory=list)
    eps: float = 0.0
    weight_decay: float = 0.0
    grad_clip: float = 0.0
    seed: int = 0
    notes: list = field(default_factory=list)  # Sentences about what differs between the two programs.

    @property
    def linear_format(self):
        """Number format of Octavo's linears. precision.linear bfloat16 means precision.compute."""
        return self.compute if self.linear == "bfloat16" else self.linear

    @property
    def peer_linear(self):
        """Number format of the peer's linears, as a value of precision.linear."""
        return PEERS[self.peer].substitutes.get(self.linear, self.linear)

    @property
    def local_batch(self):
        """Sequences per step of one data-parallel rank."""
        return self.global_batch // (self.replicate * self.shard)

    @property
    def tokens_per_rank(self):
        """Tokens per step and GPU."""
        return self.global_batch * self.seq_len / self.ranks

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
        return Settings(**values | {"shape": Shape(**values["shape"])})


def parse_config(text):
    """Returns {section.key: value} of the config that `octavo config CONFIG --json` printed."""
    values = {}
    for section, content in json.loads(text).items():
        values |= {f"{section}.{key}": value for key, value in content.items()} if isinstance(content, dict) else {section: content}
    return values


def run_octavo(*line):
    result = subprocess.run(line, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Refused(result.stderr.strip().splitlines()[-1].removeprefix("octavo: "))
    return result.stdout


def refuse_what_differs(values, peer):
    expected = {"optimizer.type": "adamw", "parallel.context_parallel": 1, "parallel.pipeline_parallel": 1, "training.z_loss": 0,
                "optimizer.ema_decay": 0} | PEERS[peer].only
    # Fields of the model that the peer's model does not have, such as qk_norm, must be false or 0.
    known = (*Shape.__dataclass_fields__, "preset", "init_from")
    expected |= {key: type(value)() for key, value in values.items()
                 if key.startswith("model.") and key.removeprefix("model.") not in known}
    for key, same in expected.items():
        if values.get(key, same) != same:
            raise Refused(f"{key} is {values[key]}, expected {same}: the {PEERS[peer].title} model of the comparison has no other")
    if values["model.tie_word_embeddings"] and values["parallel.tensor_parallel"] > 1:
        raise Refused("model.tie_word_embeddings is true with parallel.tensor_parallel above 1, which the PyTorch model does not support")


def notes_on(values, compute, peer):
    notes, title, linear = [], PEERS[peer].title, values["precision.linear"]
    if linear in PEERS[peer].substitutes:
        notes.append(f"{title} has no recipe like {linear}, so it runs {PEERS[peer].substitutes[linear]}")
    if values["precision.lm_head"] == "fp8_backward":
        notes.append(f"{title} has nothing like precision.lm_head fp8_backward, so its output layer runs in {compute}")
    if values["optimizer.state_dtype"] != "float32":
        notes.append(f"Octavo's moments are {values['optimizer.state_dtype']}, {title}'s float32")
    if values["data.document_mask"]:
        notes.append("the lengths of documents are drawn from the same distribution, but not the same draw")
    return notes


def read_settings(peer, octavo, launcher, config, overrides, device, ranks):
    """Returns the Settings of a config on `ranks` ranks. Throws Refused."""
    values = parse_config(run_octavo(octavo, "config", config, *overrides, "--json"))
    refuse_what_differs(values, peer)
    title = PEERS[peer].title
    plan = json.loads(run_octavo(octavo, "plan", config, *overrides, "--gpus", str(ranks), "--json"))
    mesh = plan["mesh"]
    compute = values["precision.compute"] or ("bfloat16" if device == "cuda" else "float32")
    if PEERS[peer].one_gpu and (ranks, device, compute) != (1, "cuda", "bfloat16"):
        raise Refused(f"the comparison has {ranks} ranks that compute in {compute} on device {device}, expected one rank that computes in "
                      f"bfloat16 on device cuda, on which {title} is compared")
    settings = Settings(
        peer=peer, octavo=octavo, launcher=launcher, config=config, overrides=overrides, device=device, ranks=ranks,
        compute=compute,
        replicate=mesh["replicate"], shard=mesh["shard"], tensor=mesh["tensor"],
        parameters=plan["parameters"],
        shape=Shape(**{name: values[f"model.{name}"] for name in Shape.__dataclass_fields__}),
        seq_len=values["data.seq_len"], document_mask=values["data.document_mask"],
        global_batch=values["training.global_batch_size"], micro_batch=values["training.micro_batch_size"],
        recompute=values["activation_checkpointing.mode"],
        linear=values["precision.linear"], fp8_head=values["precision.lm_head"] == "fp8",
        fp8_all_gather=values["precision.fp8_all_gather"], bf16_first_layers=values["precision.bf16_first_layers"],
        bf16_last_layers=values["precision.bf16_last_layers"], reduce=values["precision.reduce"],
        betas=values["optimizer.betas"], eps=values["optimizer.eps"], weight_decay=values["optimizer.weight_decay"],
        grad_clip=values["optimizer.grad_clip"], seed=values["training.seed"], notes=notes_on(values, compute, peer))
    if settings.local_batch % settings.micro_batch != 0 or settings.local_batch == 0:
        raise Refused(f"training.global_batch_size is {settings.global_batch}, expected a multiple of training.micro_batch_size "
                      f"{settings.micro_batch} times {settings.replicate * settings.shard} data-parallel ranks")
    modes = ("auto", *PEERS[peer].recompute)
    if settings.recompute not in modes:
        raise Refused(f"activation_checkpointing.mode is {settings.recompute}, expected {', '.join(modes[:-1])} or {modes[-1]}, "
                      f"which {title} has too")
    if settings.document_mask and device == "cpu":
        raise Refused("data.document_mask is true, expected false on the CPU, where PyTorch's FlexAttention has no backward pass")
    return settings


def main():
    """Prints the settings as JSON: settings.py PEER OCTAVO LAUNCHER CONFIG DEVICE RANKS [section.key=value ...]"""
    peer, octavo, launcher, config, device, ranks, *overrides = sys.argv[1:]
    try:
        settings = read_settings(peer, octavo, launcher.split(), config, overrides, device, int(ranks))
    except Refused as refused:
        print(f"compare_peers.sh: {refused}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(settings), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
