"""Trains a small GPTModel of Megatron-Core with its own optimizers on the CPU, and saves it with megatron.core.dist_checkpointing.

    torchrun --nproc-per-node 2 megatron_trainer.py SETTINGS.json

SETTINGS has "model" (a shape of Octavo), "optimizer", "rows" (of the embedding, with padding), "scored" (how many of them the loss has), "tp",
"pp", "kind" (fp32, bf16 or the sharding type of a DistributedOptimizer), "metadata" (of sharded_state_dict), "fused_norms" (the names of the
norms), "steps", "batch", and the paths "samples", "save" and "save_at". Rank 0 prints a list of losses. After the save a bf16 model becomes a
float32 model with the master weights.
"""

import contextlib
import json
import os
import sys
import warnings
from argparse import Namespace
from pathlib import Path

warnings.simplefilter("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402


def pretend_cuda():
    """Makes the optimizers of Megatron-Core, which ask for tensors of CUDA, take tensors of the CPU."""
    def on_cpu(function):
        return lambda *arguments, **options: function(*arguments, **{name: "cpu" if name == "device" and str(value).startswith("cuda") else value
                                                                     for name, value in options.items()})

    for name in ("tensor", "zeros", "empty", "ones"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    type_of = torch.Tensor.type
    torch.Tensor.type = lambda self, *dtype: type_of(self, *dtype) if dtype else type_of(self).replace("torch.", "torch.cuda.")
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None


pretend_cuda()
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.enums import AttnBackend  # noqa: E402


class Trainer:
    def __init__(self, settings, kind):
        shape, options = settings["model"], settings["optimizer"]
        is_bf16, is_distributed = kind == "bf16", kind not in ("fp32", "bf16")
        dtype = torch.bfloat16 if is_bf16 else torch.float32
        config = TransformerConfig(
            num_layers=shape["num_layers"], hidden_size=shape["hidden_size"], ffn_hidden_size=shape["intermediate_size"],
            num_attention_heads=shape["num_heads"], num_query_groups=shape["num_kv_heads"], kv_channels=shape["head_dim"],
            normalization="RMSNorm", layernorm_epsilon=shape["rms_norm_eps"], add_bias_linear=False, gated_linear_unit=True,
            activation_func=F.silu, hidden_dropout=0.0, attention_dropout=0.0, qk_layernorm=shape["qk_norm"],
            use_cpu_initialization=True, bf16=is_bf16, params_dtype=dtype, pipeline_dtype=dtype, tensor_model_parallel_size=settings["tp"],
            pipeline_model_parallel_size=settings["pp"], bias_dropout_fusion=False, bias_activation_fusion=False,
            masked_softmax_fusion=False, apply_rope_fusion=False, gradient_accumulation_fusion=False)
        config.finalize_model_grads_func = finalize_model_grads
        torch.manual_seed(7)
        spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=shape["qk_norm"])
        if not settings["fused_norms"]:  # By default the norms have the names of Transformer Engine's fused linear layers.
            spec.submodules.sharded_state_dict_keys_map = {}
        self.model = GPTModel(config, spec, settings["rows"], 64, pre_process=parallel_state.is_pipeline_first_stage(),
                              post_process=parallel_state.is_pipeline_last_stage(), parallel_output=False, position_embedding_type="rope",
                              rotary_base=int(shape["rope_theta"]), share_embeddings_and_output_weights=shape["tie_word_embeddings"])
        for name, weight in self.model.named_parameters():
            if weight.dim() == 1:  # Norms that all have weights of one could be exchanged without an effect.
                torch.nn.init.normal_(weight, 1, 0.1, generator=torch.Generator().manual_seed(len(name)))
        if is_bf16:
            self.model.bfloat16()
        ddp = DistributedDataParallelConfig(use_distributed_optimizer=is_distributed, overlap_grad_reduce=False)
        self.chunk = DistributedDataParallel(config, ddp, self.model)
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(optimizer="adam", lr=options["lr"], weight_decay=options["weight_decay"], adam_beta1=options["betas"][0],
                            adam_beta2=options["betas"][1], adam_eps=options["eps"], clip_grad=options["grad_clip"], bf16=is_bf16,
                            params_dtype=config.params_dtype, use_distributed_optimizer=is_distributed), [self.chunk])
        decay = options["weight_decay"]
        self.schedule = OptimizerParamScheduler(self.optimizer, options["lr"], options["lr"], options["lr"], 0, 1000, "constant", decay, decay,
                                                0, "constant")
        self.metadata = settings["metadata"] | ({"distrib_optim_sharding_type": kind} if is_distributed else {})

    def step(self, rows, scored):
        def forward(batches, model):
            batch = next(batches)
            inputs = batch[:, :-1]
            return model(inputs, torch.arange(inputs.shape[1]).expand_as(inputs), None), lambda logits: loss_of(logits, batch[:, 1:])

        def loss_of(logits, targets):
            loss = F.cross_entropy(logits[..., :scored].float().flatten(0, 1), targets.flatten())
            return loss, {"loss": loss.detach()}

        self.chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward, data_iterator=iter([rows]), model=[self.chunk], num_microbatches=1, seq_length=rows.shape[1] - 1,
            micro_batch_size=len(rows), forward_only=False)
        self.optimizer.step()
        self.schedule.step(1)
        # Only the last stage of a pipeline has losses.
        loss = sum(loss["loss"] for loss in losses) * torch.ones((), dtype=torch.float64)
        dist.all_reduce(loss)
        return loss.item() * parallel_state.get_pipeline_model_parallel_world_size() / dist.get_world_size()

    def save(self, folder, step):
        metadata = self.metadata | {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
        state = {"model": self.model.sharded_state_dict(metadata=metadata), "iteration": step, "checkpoint_version": 3.0}
        # The program Megatron-LM saves its options, among which are values with classes of Megatron.
        state["args"] = Namespace(iteration=step, rotary_interleaved=False, normalization="RMSNorm", attention_backend=AttnBackend.auto)
        state["opt_param_scheduler"] = self.schedule.state_dict()
        state["optimizer"] = self.optimizer.sharded_state_dict(state["model"], metadata=metadata)
        if dist.get_rank() == 0:
            os.makedirs(folder)
        dist.barrier()
        dist_checkpointing.save(state, folder, content_metadata=self.metadata)

    def load_masters(self, other):
        """Takes the master weights and the moments of another trainer with a bf16 model."""
        ours, theirs = self.optimizer.chained_optimizers[0], other.optimizer.chained_optimizers[0]
        with torch.no_grad():
            for model, masters in zip(theirs.float16_groups, theirs.fp32_from_float16_groups, strict=True):
                for weight, master in zip(model, masters, strict=True):
                    name = next(name for name, found in other.model.named_parameters() if found is weight)
                    weight = self.model.get_parameter(name)
                    weight.copy_(master)
                    ours.optimizer.state[weight] = {key: value.clone() for key, value in theirs.optimizer.state[master].items()}


def main():
    settings = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(settings["tp"], settings["pp"])
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    rank, ranks = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    trainer = Trainer(settings, settings["kind"])
    samples = torch.tensor([json.loads(line)["tokens"] for line in Path(settings["samples"]).read_text().splitlines()])
    losses = []
    for step in range(settings["steps"]):
        batch = samples[step * settings["batch"]:(step + 1) * settings["batch"]].chunk(ranks)[rank]
        losses.append(trainer.step(batch, settings["scored"]))
        if step + 1 == settings["save_at"]:
            trainer.save(settings["save"], step + 1)
            if settings["kind"] == "bf16":
                bf16, trainer = trainer, Trainer(settings, "fp32")
                trainer.load_masters(bf16)
    if dist.get_rank() == 0:
        print(json.dumps(losses), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
