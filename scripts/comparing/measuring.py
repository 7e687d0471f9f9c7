"""Code that all peers of a comparison share: initial weights, batches, the check that models are equal, and the timed steps."""

import gc
import random
import statistics
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.attention.flex_attention import create_block_mask

from comparing.settings import Variant

MEAN_DOCUMENT = 1024  # Mean length in tokens of the documents that `octavo bench` makes.
LEARNING_RATE = 1e-5  # The learning rate of `octavo bench`.
PARITY_LEARNING_RATE = 1e-4  # Large enough that a step changes weights in bfloat16.
PARITY_LAYERS = 2  # In 24 layers of parity_weights(), two attention kernels of PyTorch itself differ by 0.77 in a token's loss.


def local_part(parameter):
    """Returns what this rank holds of a parameter."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


@torch.no_grad()
def init_weights(model, settings):
    """Sets norms to 1 and draws all other weights from a normal distribution with a standard deviation of 0.02. Each
    rank fills its own part."""
    torch.manual_seed(settings.seed + dist.get_rank())
    for parameter in model.parameters():
        local = local_part(parameter)
        local = getattr(local, "_tensor", local)  # torchao wraps weights that it casts before the all-gather
        if parameter.dim() == 1:
            local.fill_(1.0)
        else:
            local.normal_(0.0, 0.02)


def document_ends(settings, generator):
    """Returns the ends of the documents in one sequence. Lengths are exponentially distributed, as in `octavo bench`."""
    ends = []
    while not ends or ends[-1] < settings.seq_len:
        ends.append(min(settings.seq_len, (ends[-1] if ends else 0) + 1 + int(generator.expovariate(1 / MEAN_DOCUMENT))))
    return ends


class Batch:
    """One micro-batch: inputs, targets, and what attention needs to know of its documents."""

    def __init__(self, tokens, kind, ends):
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.documents = None
        rows, seq_len = self.inputs.shape
        if ends is None:
            return
        for row, row_ends in enumerate(ends):
            self.targets[row, [end - 1 for end in row_ends[:-1]]] = -1
        if kind == "varlen":
            all_ends = [row * seq_len + end for row, row_ends in enumerate(ends) for end in row_ends]
            longest = max(end - begin for begin, end in zip([0, *all_ends], all_ends))
            self.documents = (torch.tensor([0, *all_ends], dtype=torch.int32, device=tokens.device), longest)
        else:
            document = torch.stack([torch.searchsorted(torch.tensor(row_ends), torch.arange(seq_len), right=True) for row_ends in ends])
            document = document.to(tokens.device)
            self.documents = create_block_mask(lambda b, h, q, k: (q >= k) & (document[b, q] == document[b, k]), rows, None, seq_len,
                                               seq_len, device=tokens.device)


def random_batches(settings, micro_batch, kind, device):
    """Returns random micro-batches for one step. Ranks of a tensor-parallel group get equal ones."""
    data_rank = dist.get_rank() // settings.tensor
    generator = torch.Generator(device=device).manual_seed(settings.seed + data_rank)
    lengths = random.Random(settings.seed + data_rank)
    batches = []
    for _ in range(settings.local_batch // micro_batch):
        tokens = torch.randint(0, settings.shape.vocab_size, (micro_batch, settings.seq_len + 1), device=device, generator=generator)
        ends = [document_ends(settings, lengths) for _ in range(micro_batch)] if settings.document_mask else None
        batches.append(Batch(tokens, kind, ends))
    return batches


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def mark(device):
    """Returns a time stamp in the work that is queued on the device, so that the host need not wait between steps."""
    if device == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def milliseconds(begin, end):
    return 1e3 * (end - begin) if isinstance(begin, float) else begin.elapsed_time(end)


def slowest(values, device):
    """Returns the maximum over all ranks of each value."""
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def attention_ms(attention, settings, micro_batch):
    """Returns the milliseconds of forward and backward of attention(q, k, v), whose arguments are [batch, tokens, heads, head_dim]."""
    shape = settings.shape

    def make(heads):
        x = torch.randn(micro_batch, settings.seq_len, heads // settings.tensor, shape.head_dim, device="cuda", dtype=torch.bfloat16)
        return x.requires_grad_()

    q, k, v = make(shape.num_heads), make(shape.num_kv_heads), make(shape.num_kv_heads)
    for i in range(8):
        if i == 3:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        out = attention(q, k, v)
        out.backward(out.detach())
    torch.cuda.synchronize()
    return slowest([1e3 * (time.perf_counter() - begin) / 5], "cuda")[0]


def count_targets(batches, settings):
    """Returns the number of targets per step on all ranks. Tensor-parallel ranks have the same targets."""
    count = torch.tensor(sum(int((batch.targets >= 0).sum()) for batch in batches), device=settings.device)
    dist.all_reduce(count)
    return int(count) / settings.tensor


def free_memory(device):
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measure(make_trainer, settings, variant, kind, warmup, steps):
    """Times steps of the trainer that make_trainer(settings, variant, kind) returns. Returns a dict of times, memory
    and loss, where step_ms is the median, or {"failed": reason}. Frees all memory afterwards."""
    trainer = batches = None
    try:
        trainer = make_trainer(settings, variant, kind)
        batches = random_batches(settings, variant.micro_batch, kind, trainer.device)
        num_targets = count_targets(batches, settings)
        begin = time.perf_counter()
        for _ in range(max(1, warmup)):
            loss = trainer.step(batches, num_targets)
        synchronize(settings.device)
        start_s = time.perf_counter() - begin
        dist.barrier()
        marks = [mark(settings.device)]
        for _ in range(steps):
            loss = trainer.step(batches, num_targets)
            marks.append(mark(settings.device))
        synchronize(settings.device)
        times = [milliseconds(begin, end) for begin, end in zip(marks, marks[1:])]
        times = slowest(times, settings.device)
        memory = torch.cuda.max_memory_reserved() / 2**30 if settings.device == "cuda" else 0.0
        return {"step_ms": statistics.median(times), "step_ms_min": min(times), "step_ms_max": max(times),
                "memory_gib": slowest([memory], settings.device)[0], "start_s": start_s, "loss": loss.item()}
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}
    finally:
        del trainer, batches
        free_memory(settings.device)


def losses(make_trainer, settings, variant, kind, rows, steps, lr):
    """Trains on given rows of tokens and returns the mean loss of each step. For runs on one rank."""
    trainer = make_trainer(settings, variant, kind)
    set_learning_rate(trainer, lr)
    result = []
    for step in range(steps):
        tokens = torch.tensor(rows[step * settings.global_batch:(step + 1) * settings.global_batch], device=trainer.device)
        batches = [Batch(part, kind, None) for part in tokens.split(variant.micro_batch)]
        result.append(trainer.step(batches, count_targets(batches, settings)).item())
    return result


def set_learning_rate(trainer, lr):
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr


@torch.no_grad()
def parity_weights(trainer):
    """Returns weights in bfloat16. Those of q, k and v are tripled, so that a token attends to few others and its loss depends on their
    positions. For runs on one rank."""
    return {name: (weight * (3 if "qkv" in name else 1)).bfloat16() for name, weight in trainer.named_weights()}


@torch.no_grad()
def set_weights(trainer, weights):
    for name, weight in trainer.named_weights():
        weight.copy_(weights[name])


def parity(make_reference, make_trainer, settings, kind):
    """Trains the first layers of two models from equal weights. Returns the mean difference of a token's loss before the first step, and
    the mean loss of each model after it. For runs on one rank."""
    shape = replace(settings.shape, num_layers=min(PARITY_LAYERS, settings.shape.num_layers))
    settings = replace(settings, shape=shape, parameters=None, global_batch=1, micro_batch=1, linear="bfloat16", fp8_head=False)
    weights, losses_before, losses_after = None, [], []
    for make in (make_reference, make_trainer):
        trainer = make(settings, Variant(1, "none"), kind)
        weights = weights or parity_weights(trainer)
        set_weights(trainer, weights)
        set_learning_rate(trainer, PARITY_LEARNING_RATE)
        batches = random_batches(settings, 1, kind, trainer.device)
        losses_before.append(trainer.token_losses(batches[0]).flatten())
        trainer.step(batches, count_targets(batches, settings))
        losses_after.append(trainer.token_losses(batches[0]).mean().item())
        del trainer, batches
        free_memory(settings.device)
    return (losses_before[0] - losses_before[1]).abs().mean().item(), *losses_after
