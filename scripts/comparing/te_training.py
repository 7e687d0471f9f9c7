"""A training step of Transformer Engine for the settings of a comparison, on one GPU: fused modules, cuDNN's attention, FusedAdam."""

from importlib.metadata import version

import torch
import transformer_engine.pytorch as te
from transformer_engine.pytorch.attention.dot_product_attention import _attention_backends

from comparing.measuring import LEARNING_RATE, attention_ms, init_weights
from comparing.te_model import Llama, shared_name


def versions(settings):
    cudnn = ".".join(map(str, te.get_cudnn_version()))
    return f"Transformer Engine {version('transformer_engine')}, PyTorch {torch.__version__}, cuDNN {cudnn}"


def linears(settings):
    return settings.peer_linear


def choose_attention(settings):
    """Returns the attention that Transformer Engine chooses itself, and a sentence with its time."""
    shape = settings.shape
    attention = te.DotProductAttention(shape.num_heads, shape.head_dim, num_gqa_groups=shape.num_kv_heads, attention_dropout=0.0,
                                       qkv_format="bshd", attn_mask_type="causal")
    ms = attention_ms(attention, settings, settings.micro_batch)
    kind = next((kind for kind in ("flash", "fused", "unfused") if _attention_backends[f"use_{kind}_attention"]), "unknown")
    return kind, f"Transformer Engine's attention, forward and backward: {kind} {ms:.2f} ms"


def other_variants(settings, best):
    """Returns no variants, because Variant has no other fields that apply to one GPU."""
    return []


class Trainer:
    """A model and its optimizers. Gradients are accumulated in precision.reduce, weights and moments are updated in float32."""

    def __init__(self, settings, variant, kind, mesh, compiles, weights=None):
        self.settings, self.device = settings, torch.device("cuda")
        self.model = Llama(settings)
        found = sum(parameter.numel() for parameter in self.model.parameters())
        assert settings.parameters in (None, found), f"{found:,} parameters in Transformer Engine, {settings.parameters:,} in Octavo"
        init_weights(self.model, settings)
        parameters = list(self.model.parameters())
        self.norms = [p for p in parameters if p.dim() == 1]
        matrices = [p for p in parameters if p.dim() == 2 and p is not self.model.embedding.weight]
        for parameter in self.norms + matrices:
            parameter.main_grad = torch.zeros_like(parameter, dtype=getattr(torch, settings.reduce))
            parameter.decoupled_grad = parameter.main_grad
        options = {"lr": LEARNING_RATE, "betas": tuple(settings.betas), "eps": settings.eps}
        embedding = [{"params": [self.model.embedding.weight], "weight_decay": settings.weight_decay}]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": self.norms, "weight_decay": 0.0}]
        # A bfloat16 weight and its remainder of 16 bits are a float32 weight.
        masters = {"master_weights": True, "store_param_remainders": True, "use_decoupled_grad": True}
        self.optimizers = [te.optimizers.FusedAdam(embedding, **options), te.optimizers.FusedAdam(groups, **masters, **options)]

    def named_weights(self):
        return [(shared_name(name), parameter) for name, parameter in self.model.named_parameters()]

    @torch.no_grad()
    def token_losses(self, batch):
        return self.loss(self.model(batch.inputs, None), batch.targets)

    @staticmethod
    def loss(logits, targets):
        """Returns the loss of each token. Backward writes the gradient over the logits."""
        return te.parallel_cross_entropy(logits, targets, ignore_idx=-1, overwrite_input=True)

    def step(self, batches, num_targets):
        """Runs one optimizer step and returns the sum of the mean losses of the micro-batches."""
        total = torch.zeros((), device=self.device)
        for i, batch in enumerate(batches):
            # In the first micro-batch FP8 weights are cast, and the weight gradients of linears overwrite those of the last step.
            loss = self.loss(self.model(batch.inputs, i == 0), batch.targets).sum() / num_targets
            loss.backward()
            total += loss.detach()
            self.accumulate_norms(first=i == 0)
        gradients = [p.main_grad for p in self.model.parameters() if hasattr(p, "main_grad")] + [self.model.embedding.weight.grad]
        if self.settings.grad_clip > 0:
            norm = torch.nn.utils.get_total_norm(gradients, 2.0, False, True)
            torch._foreach_mul_(gradients, (self.settings.grad_clip / (norm + 1e-6)).clamp(max=1.0))
        for optimizer in self.optimizers:
            optimizer.step()
        self.model.embedding.weight.grad = None
        return total

    def accumulate_norms(self, first):
        """Adds the gradients of the norms' weights, which Transformer Engine leaves in `grad`, to `main_grad`."""
        sums, gradients = [p.main_grad for p in self.norms], [p.grad for p in self.norms]
        if first:
            torch._foreach_copy_(sums, gradients)
        else:
            torch._foreach_add_(sums, gradients)
        for parameter in self.norms:
            parameter.grad = None
