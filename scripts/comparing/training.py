"""A training step of PyTorch for the settings of a comparison: FSDP2, tensor parallelism, torchao float8, torch.compile, AdamW."""

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
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from comparing.measuring import LEARNING_RATE, attention_ms, free_memory, init_weights, local_part, random_batches
from comparing.model import Llama, attend, clean_name, hugging_face_names, rope_table

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
    return settings.peer_linear.removeprefix("fp8_")


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
def load_weights(model, folder):
    """Loads a model that `octavo export` wrote. For runs on one rank."""
    from safetensors.torch import load_file

    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    for name, weight in named_weights(model):
        weight.copy_(torch.cat([tensors[part].float() for part in hugging_face_names(name)]))


def named_weights(model):
    """Returns the names that the model had before it was wrapped, and what this rank holds of each weight."""
    return [(clean_name(name), local_part(parameter)) for name, parameter in model.named_parameters()]


def summed_loss(logits, targets, reduction="sum"):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1), ignore_index=-1, reduction=reduction)


class Trainer:
    """A model, its optimizer and the batches of a step. `kind` is the kind of attention (attend())."""

    def __init__(self, settings, variant, kind, mesh, compiles, weights=None):
        self.settings, self.device = settings, torch.device(settings.device)
        compute = getattr(torch, settings.compute)
        fsdp = variant.weights == "fsdp"
        with torch.device("meta"):
            model = Llama(settings.shape, kind, settings.tensor, compute)
        found = sum(parameter.numel() for parameter in model.parameters())
        assert settings.parameters in (None, found), f"{found:,} parameters in PyTorch, {settings.parameters:,} in Octavo"
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
        self.optimizers = [torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=tuple(settings.betas), eps=settings.eps, fused=True)]
        self.rope = rope_table(settings.shape, settings.seq_len, self.device)
        self.loss = torch.compile(summed_loss, dynamic=False) if compiles else summed_loss
        self.precision = nullcontext
        if not fsdp and compute != torch.float32:
            self.precision = partial(torch.autocast, settings.device, compute)
        if self.after_step:
            self.after_step()

    def named_weights(self):
        return named_weights(self.model)

    @torch.no_grad()
    def token_losses(self, batch):
        with self.precision():
            return summed_loss(self.model(batch.inputs, self.rope, batch.documents), batch.targets, reduction="none")

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
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.after_step:
            self.after_step()
        return total


def versions(settings):
    return f"PyTorch {torch.__version__}" + (f", torchao {TORCHAO_VERSION}" if float8 else "")


def linears(settings):
    """Returns the number format of PyTorch's linears, with a note if it is not the one of the config."""
    recipe = float8_recipe(settings)
    if settings.linear.startswith("fp8") and not recipe:
        return f"{settings.compute} only, because torchao is not installed (pip install torchao==0.17.0)"
    return f"torchao {recipe}" if recipe else settings.compute


def choose_attention(settings):
    """Returns the fastest kind of attention and a sentence with the times of all."""
    times = attention_times(settings, settings.micro_batch)
    measured = {kind: ms for kind, ms in times.items() if isinstance(ms, float)}
    if not measured:
        raise SystemExit(f"compare_peers.sh: PyTorch has no attention that runs here: {times}")
    kind = min(measured, key=measured.get)
    found = ", ".join(f"{kind} {ms:.2f} ms" if isinstance(ms, float) else f"{kind}: {ms}" for kind, ms in times.items())
    return kind, f"PyTorch's attention, forward and backward: {found}; used: {kind}"


def other_variants(settings, best):
    """Returns what else a search tries with the best micro-batch and recomputation."""
    others = [replace(best, reshard="never")]
    if settings.ranks == 1 and settings.compute == "bfloat16":
        others.append(replace(best, weights="autocast"))
    return others


def attention_times(settings, micro_batch):
    """Returns the milliseconds of forward and backward of each kind of attention that runs here, or the reason why it does not."""
    if settings.device == "cpu":
        return {"flex" if settings.document_mask else "default": 0.0}
    result, run = {}, torch.compile(attend, fullgraph=True, dynamic=False)
    for kind in ("flex", "varlen") if settings.document_mask else ("cudnn", "flash"):
        try:
            documents = random_batches(replace(settings, global_batch=settings.global_batch // settings.local_batch * micro_batch),
                                       micro_batch, kind, "cuda")[0].documents
            result[kind] = attention_ms(lambda q, k, v: run(kind, q, k, v, documents), settings, micro_batch)
        except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
            result[kind] = str(error).splitlines()[0]
    free_memory("cuda")
    return result
