"""A training step of PyTorch for the settings of a comparison: FSDP2, tensor parallelism, torchao float8, torch.compile, AdamW."""

import gc
import random
import statistics
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # noqa: F401  (registers the collectives that SAVED names)
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from comparing.model import Llama, attend, clean_name, hugging_face_names, rope_table

MEAN_DOCUMENT = 1024  # Mean length in tokens of the documents that `octavo bench` makes.
LEARNING_RATE = 1e-5  # The learning rate of `octavo bench`.

try:
    from torchao import float8
    from torchao import __version__ as TORCHAO_VERSION
    from torchao.float8 import float8_tensor_parallel
except ImportError:
    float8 = None


def float8_recipe(settings):
    """Returns torchao's recipe that corresponds to the recipe of the config, or None for bfloat16."""
    if float8 is None or not settings.linear.startswith("fp8"):
        return None
    return "rowwise" if settings.linear == "fp8_rowwise" else "tensorwise"


def apply_float8(model, settings, variant):
    """Converts the linears that Octavo runs in FP8. Returns the function to call after each optimizer step, or None."""
    recipe = float8_recipe(settings)
    if recipe is None:
        return None
    gathers = recipe == "tensorwise" and variant.weights == "fsdp" and settings.fp8_all_gather
    if recipe == "tensorwise":
        config = float8.Float8LinearConfig(enable_fsdp_float8_all_gather=gathers)
    else:
        config = float8.Float8LinearConfig.from_recipe_name(recipe)
        torch._inductor.config.emulate_precision_casts = True  # Torchtitan sets this for rowwise scales (PyTorch issue 150859).
    first, last = settings.bf16_first_layers, settings.shape.num_layers - settings.bf16_last_layers

    def is_float8(module, name):
        if name == "output":
            return settings.fp8_head
        return isinstance(module, torch.nn.Linear) and first <= int(name.split(".")[1]) < last

    float8.convert_to_float8_training(model, config=config, module_filter_fn=is_float8)
    return partial(float8.precompute_float8_dynamic_scale_for_fsdp, model) if gathers else None


def apply_tensor_parallel(model, mesh, settings):
    """Applies torchtitan's plan: sequence parallel norms and residuals, vocabulary parallel loss, FP8 casts before the gather."""
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    column, row, prepare = ColwiseParallel, RowwiseParallel, PrepareModuleInput
    in_bfloat16 = settings.bf16_first_layers + settings.bf16_last_layers
    if float8_recipe(settings) == "tensorwise" and not in_bfloat16:
        column, row = float8_tensor_parallel.Float8ColwiseParallel, float8_tensor_parallel.Float8RowwiseParallel
        prepare = float8_tensor_parallel.PrepareFloat8ModuleInput
    for block in model.layers.values():
        parallelize_module(block, mesh, {
            "attention_norm": SequenceParallel(),
            "attention": prepare(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)),
            "attention.qkv": column(),
            "attention.o": row(output_layouts=Shard(1)),
            "mlp_norm": SequenceParallel(),
            "mlp": prepare(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate_up": column(),
            "mlp.down": row(output_layouts=Shard(1))})


def saved_ops():
    """Returns the operations whose results selective recomputation saves: those of torchtitan, with every matrix multiplication."""
    aten = torch.ops.aten
    names = ("mm", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
             "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu", "max")
    return {getattr(aten, name).default for name in names} | {
        torch.ops._c10d_functional.reduce_scatter_tensor.default, torch.ops.higher_order.flex_attention,
        torch.ops.torch_attn._varlen_attn.default}


def selective_contexts(saved):
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE

    return lambda: create_selective_checkpoint_contexts(policy)


def apply_recompute(model, mode):
    if mode == "none":
        return
    options = {"context_fn": selective_contexts(saved_ops())} if mode == "selective" else {}
    for name, block in list(model.layers.named_children()):
        model.layers.register_module(name, checkpoint_wrapper(block, preserve_rng_state=False, **options))


def apply_compile(model):
    for name, block in list(model.layers.named_children()):
        model.layers.register_module(name, torch.compile(block, fullgraph=True, dynamic=False))


def apply_fsdp(model, mesh, settings, variant):
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, settings.compute), reduce_dtype=getattr(torch, settings.reduce),
                                  cast_forward_inputs=False)
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
    for block in model.layers.values():
        shard(block, reshard_after_forward=variant.reshard == "always")
    shard(model, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is divided by all targets of the step already, so gradients are summed.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@torch.no_grad()
def init_weights(model, settings):
    """Norms are ones, all else is normal with a standard deviation of 0.02. Each rank fills what it holds."""
    torch.manual_seed(settings.seed + dist.get_rank())
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        local = getattr(local, "_tensor", local)  # torchao wraps weights that it casts before the all-gather
        if "norm" in name:
            local.fill_(1.0)
        else:
            local.normal_(0.0, 0.02)


@torch.no_grad()
def load_weights(model, folder):
    """Loads a model that `octavo export` wrote. For runs on one rank."""
    from safetensors.torch import load_file

    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        local.copy_(torch.cat([tensors[part].float() for part in hugging_face_names(clean_name(name))]))


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
    """Returns random tokens for one step. Ranks of a tensor-parallel group have the same."""
    data_rank = dist.get_rank() // settings.tensor
    generator = torch.Generator(device=device).manual_seed(settings.seed + data_rank)
    lengths = random.Random(settings.seed + data_rank)
    batches = []
    for _ in range(settings.local_batch // micro_batch):
        tokens = torch.randint(0, settings.shape.vocab_size, (micro_batch, settings.seq_len + 1), device=device, generator=generator)
        ends = [document_ends(settings, lengths) for _ in range(micro_batch)] if settings.document_mask else None
        batches.append(Batch(tokens, kind, ends))
    return batches


def summed_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1), ignore_index=-1, reduction="sum")


class Trainer:
    """A model, its optimizer and the batches of a step. `kind` is the kind of attention (attend())."""

    def __init__(self, settings, variant, kind, mesh, compiles, weights=None):
        self.settings, self.device = settings, torch.device(settings.device)
        compute = getattr(torch, settings.compute)
        fsdp = variant.weights == "fsdp"
        with torch.device("meta"):
            model = Llama(settings.shape, kind, settings.tensor, compute)
        found = sum(parameter.numel() for parameter in model.parameters())
        assert found == settings.parameters, f"{found:,} parameters in PyTorch, {settings.parameters:,} in Octavo"
        self.after_step = apply_float8(model, settings, variant)
        if settings.tensor > 1:
            apply_tensor_parallel(model, mesh["tensor"], settings)
        apply_recompute(model, variant.recompute)
        if compiles:
            apply_compile(model)
        if fsdp:
            apply_fsdp(model, mesh["replicate", "shard"] if settings.replicate > 1 else mesh["shard"], settings, variant)
        model.to_empty(device=self.device)
        init_weights(model, settings)
        if weights is not None:
            load_weights(model, weights)
        self.model = model
        self.parameters = list(model.parameters())
        # Weight decay applies to matrices and not to the weights of norms.
        groups = [{"params": [p for p in self.parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
                  {"params": [p for p in self.parameters if p.dim() == 1], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=tuple(settings.betas), eps=settings.eps, fused=True)
        self.rope = rope_table(settings.shape, settings.seq_len, self.device)
        self.loss = torch.compile(summed_loss, dynamic=False) if compiles else summed_loss
        self.precision = nullcontext
        if not fsdp and compute != torch.float32:
            self.precision = partial(torch.autocast, settings.device, compute)
        if self.after_step:
            self.after_step()

    def step(self, batches, num_targets):
        """Runs one optimizer step and returns the sum of the mean losses of this rank's micro-batches."""
        total = torch.zeros((), device=self.device)
        for batch in batches:
            with loss_parallel() if self.settings.tensor > 1 else nullcontext():
                with self.precision():
                    logits = self.model(batch.inputs, self.rope, batch.documents)
                loss = self.loss(logits, batch.targets) / num_targets
                del logits
                loss.backward()
            loss = loss.detach()
            total += loss.full_tensor() if isinstance(loss, DTensor) else loss
        if self.settings.grad_clip > 0:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters], 2.0, False, True)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.settings.grad_clip, norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.after_step:
            self.after_step()
        return total


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


def measure(settings, variant, kind, mesh, compiles, warmup, steps):
    """Times steps of a variant. Returns step_ms (the median) and memory_gib, or `failed`, a reason. Frees all memory afterwards."""
    trainer = batches = None
    try:
        trainer = Trainer(settings, variant, kind, mesh, compiles)
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


def losses(settings, variant, kind, mesh, compiles, weights, rows, steps, lr):
    """Trains on given rows of tokens with given weights and returns the mean loss of each step. For runs on one rank."""
    trainer = Trainer(settings, variant, kind, mesh, compiles, weights)
    for group in trainer.optimizer.param_groups:
        group["lr"] = lr
    result = []
    for step in range(steps):
        tokens = torch.tensor(rows[step * settings.global_batch:(step + 1) * settings.global_batch], device=trainer.device)
        batches = [Batch(part, kind, None) for part in tokens.split(variant.micro_batch)]
        result.append(trainer.step(batches, count_targets(batches, settings)).item())
    return result


def attention_times(settings, micro_batch):
    """Returns the milliseconds of forward and backward of each kind of attention that runs here, or the reason why it does not."""
    if settings.device == "cpu":
        return {"flex" if settings.document_mask else "default": 0.0}
    shape, tensor, result = settings.shape, settings.tensor, {}
    for kind in ("flex", "varlen") if settings.document_mask else ("cudnn", "flash"):
        def make(heads):
            x = torch.randn(micro_batch, settings.seq_len, heads // tensor, shape.head_dim, device="cuda", dtype=torch.bfloat16)
            return x.requires_grad_()

        try:
            q, k, v = make(shape.num_heads), make(shape.num_kv_heads), make(shape.num_kv_heads)
            documents = random_batches(replace(settings, global_batch=settings.global_batch // settings.local_batch * micro_batch),
                                       micro_batch, kind, "cuda")[0].documents
            run = torch.compile(attend, fullgraph=True, dynamic=False)
            for i in range(8):
                if i == 3:
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                out = run(kind, q, k, v, documents)
                out.backward(out.detach())
            torch.cuda.synchronize()
            result[kind] = slowest([1e3 * (time.perf_counter() - begin) / 5], "cuda")[0]
        except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
            result[kind] = str(error).splitlines()[0]
    free_memory("cuda")
    return result
