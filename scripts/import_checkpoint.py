#!/usr/bin/env python3
"""Converts a distributed checkpoint of PyTorch (a folder with .metadata and *.distcp) to a checkpoint that `octavo train` resumes, and back.

    import_checkpoint.py TORCH_CHECKPOINT FOLDER --config CONFIG.yaml [section.key=value ...]
    import_checkpoint.py CHECKPOINT TORCH_CHECKPOINT --to LAYOUT

The first form reads the weights, the moments of AdamW and the step of a Llama and writes FOLDER/step_N. CONFIG.yaml is the config with which
Octavo will train the model. The script takes the shape of the model from it, and names the options of the optimizer that differ. The
layout of the checkpoint is recognized:

    torchtitan       torchtitan 0.3: layers.0.attention.qkv_linear.wq.weight, lm_head.weight
    torchtitan-0.2   earlier versions: layers.0.attention.wq.weight, output.weight
    huggingface      a model of transformers, such as one that FSDP2 trains: model.layers.0.self_attn.q_proj.weight
    megatron         a dense GPTModel of Megatron-Core (torch_dist): decoder.layers.self_attention.linear_qkv.weight

The optimizer's states must have the names of the parameters, as get_state_dict(), torchtitan and Megatron-Core (fully_reshardable) save them.
A checkpoint with other tensors is refused. The pickles in it cannot run anything: only the classes of a checkpoint's metadata are accepted.

The second form writes a checkpoint in one of the first three layouts, which torch.distributed.checkpoint.load() reads. Keys of param_groups
are flat, as torchtitan and get_state_dict() with flatten_optimizer_state_dict=True have them. Octavo does not decay the weights of norms. If
the optimizer that loads the checkpoint has one group for all parameters, give --decay-norms.

Tensors are converted one at a time. The exit code is 2 for bad input and 1 for a failed run. The script needs the Python packages torch,
numpy and xxhash, and the first form the program octavo (OCTAVO, or build/octavo).
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

from python_packages import ROOT, need_packages
from tokenizing.errors import InputError

need_packages("torch", "numpy", "xxhash")

import torch  # noqa: E402

from converting import llama_names as names  # noqa: E402
from converting import megatron_checkpoint, octavo_checkpoint, torch_checkpoint  # noqa: E402

MOMENTS = ("exp_avg", "exp_avg_sq")
OPTIONS = ("betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize")  # Options of AdamW that are compared.
# Values that Octavo does not read: the groups of the optimizer, whose options are compared, the position of the loader and the schedule, which
# are those of Octavo's config, and tables of rope.
NOT_READ = re.compile(r"(.+\.)?param_groups\..+|(.+\.)?(train_state|dataloader|lr_scheduler|rng)(\..+)?|(.+\.)?(freqs_cis|rotary_emb\.inv_freq)")


def octavo():
    installed = ROOT.parents[1] / "bin/octavo"
    return os.environ.get("OCTAVO") or (installed if installed.exists() and not (ROOT / "build/octavo").exists() else ROOT / "build/octavo")


def read_config(path, overrides):
    """Returns all values of a config."""
    try:
        result = subprocess.run([octavo(), "config", path, *overrides, "--json"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError(f"{octavo()}: cannot be run: {error.strerror}; build it, or set OCTAVO to the program") from error
    if result.returncode:
        raise InputError(result.stderr.strip().splitlines()[-1])
    config = json.loads(result.stdout)
    if config["optimizer"]["type"] != "adamw" or config["optimizer"]["ema_decay"]:
        raise InputError(f"{path}: has optimizer.type {config['optimizer']['type']} and optimizer.ema_decay {config['optimizer']['ema_decay']}, "
                         "expected adamw and 0, because the checkpoint has the states of AdamW only")
    return config


class Source:
    """A Llama in a checkpoint of PyTorch, under Octavo's names."""

    def __init__(self, checkpoint, model):
        self.checkpoint, self.model = checkpoint, model
        self.shapes = names.parameters(model)
        self.layout_name, self.layout, self.prefix = self.find_layout()
        self.state_prefix = self.find_prefix(names.name_in(self.layout, "model.layers.0.self_attn.o_proj.weight") + ".exp_avg")
        if self.state_prefix is None:
            raise InputError(f"{checkpoint.folder}: has no moments of AdamW under the names of the parameters, expected a checkpoint with the "
                             "optimizer's states, as torchtitan or get_state_dict() of torch.distributed.checkpoint.state_dict saves them")
        self.places = {name: self.place(name) for name in self.shapes}
        self.check_names()
        self.step = self.find_step()

    def find_prefix(self, ending):
        """Returns what precedes `ending` in the only name that has this ending, or None."""
        found = [name.removesuffix(ending) for name in self.checkpoint.names() if name.endswith("." + ending) or name == ending]
        return found[0] if len(found) == 1 else None

    def find_layout(self):
        for layout_name, layout in names.LAYOUTS.items():
            prefix = self.find_prefix(names.name_in(layout, "model.layers.0.self_attn.v_proj.weight"))
            if prefix is not None:
                return layout_name, layout, prefix
        example = next(iter(self.checkpoint.names()), "no tensors")
        raise InputError(f"{self.checkpoint.folder}: has no weights of a Llama with the names of torchtitan or Hugging Face; it has {example}")

    def place(self, name):
        """Returns the name of a parameter's weight in the checkpoint, and the name before ".exp_avg" of its states."""
        inner = names.split_name(name)[1]
        if inner not in self.layout.outside and inner not in self.layout.in_layers:
            raise InputError(f"model.qk_norm is true, but the layout {self.layout_name} has no {inner}")
        theirs = names.name_in(self.layout, name)
        # A tied model may have its only table under the name of the head.
        head = self.layout.outside[names.HEAD]
        is_tied = name == names.EMBEDDING and self.model["tie_word_embeddings"]
        weight = head if is_tied and self.prefix + theirs not in self.checkpoint.names() else theirs
        fused = names.fused_name(self.layout, name)
        others = [head] if is_tied else [fused] if fused else []
        states = next((other for other in [theirs, *others] if f"{self.state_prefix}{other}.exp_avg" in self.checkpoint.names()), theirs)
        return self.prefix + weight, self.state_prefix + states

    def check_names(self):
        """Refuses a checkpoint that lacks a tensor, has one in another shape, or has another one."""
        known = set()
        for name, (weight, states) in self.places.items():
            is_fused = states == self.state_prefix + (names.fused_name(self.layout, name) or "")
            state_shape = names.fused_shape(self.model) if is_fused else self.shapes[name]
            for theirs, shape in [(weight, self.shapes[name])] + [(f"{states}.{moment}", state_shape) for moment in MOMENTS]:
                known.add(theirs)
                self.checkpoint.check_shape(theirs, shape)
            known.add(f"{states}.step")
        known |= self.replicas()
        for theirs in self.checkpoint.names():
            if theirs not in known and not NOT_READ.fullmatch(theirs):
                raise InputError(f"{self.checkpoint.folder}: has {theirs}, which a Llama of the shape in the config and AdamW do not have")

    def replicas(self):
        """Returns names of tensors that have the values of others: the head of a tied model, and moments in a fused matrix and outside of it."""
        head = [self.layout.outside[names.HEAD]] if self.model["tie_word_embeddings"] else []
        fused = [fused for name in self.shapes if (fused := names.fused_name(self.layout, name))]
        states = {f"{self.state_prefix}{theirs}.{state}" for theirs in head + fused for state in (*MOMENTS, "step")}
        return states | {self.prefix + theirs for theirs in head}

    def find_step(self):
        """Returns the number of steps that AdamW has taken, which must be the same for all parameters and for the trainer."""
        keys = {f"{states}.step" for _, states in self.places.values()}
        keys |= {name for name in self.checkpoint.names() if re.fullmatch(r"(.+\.)?train_state\.step", name)}
        missing = sorted(keys - self.checkpoint.names())
        if missing:
            raise InputError(f"{self.checkpoint.folder}: has no {missing[0]}, which the bias correction of AdamW needs")
        steps = [(key, self.checkpoint.value(key)) for key in sorted(keys)]
        with torch_checkpoint.described(self.checkpoint.folder):
            return torch_checkpoint.one_step(steps)

    def tensor(self, ours):
        """Returns a weight NAME or a moment MOMENT.NAME in Octavo's order."""
        moment, _, name = ours.partition(".")
        if moment not in MOMENTS:
            name, theirs = ours, self.places[ours][0]
        else:
            theirs = f"{self.places[name][1]}.{moment}"
        tensor = self.checkpoint.numbers(theirs, moment == "exp_avg_sq")
        if tuple(tensor.shape) != self.shapes[name]:
            tensor = names.split_fused(self.model, tensor)[names.split_name(name)[1]]
        return names.reorder(self.layout, self.model, name, tensor, to_octavo=True)

    def options(self):
        """Yields the parameters, the name and the value of each option of the optimizer."""
        for key in self.checkpoint.names():
            found = re.fullmatch(rf"((?:.+\.)?param_groups\.(.+))\.({'|'.join(OPTIONS)})", key)
            if not found:
                continue
            group, parameter, option = found.groups()
            # A group has a list of its parameters, or each parameter has the options of its group.
            has_list = f"{group}.params" in self.checkpoint.names()
            parameters = [str(name) for name in self.checkpoint.value(f"{group}.params")] if has_list else [parameter]
            yield parameters, option, self.checkpoint.value(key)

    def notes(self):
        return []


def differing_options(source, optimizer):
    """Returns sentences about options of AdamW in the checkpoint that differ from those of the config."""
    expected = dict(zip(OPTIONS, (tuple(optimizer["betas"]), optimizer["eps"], optimizer["weight_decay"], True, False), strict=True))
    sentences = []
    for parameters, option, value in source.options():
        value = tuple(value) if isinstance(value, list) else value
        is_decay = option == "weight_decay"
        if is_decay and value and any("norm" in name for name in parameters):
            sentences.append(f"the checkpoint was trained with a weight decay of {value} for norms, which Octavo never decays")
        if option in expected and value != expected[option] and not (is_decay and all("norm" in name for name in parameters)):
            sentences.append(f"the checkpoint was trained with {option} {value}, and the config has {expected[option]}")
    return list(dict.fromkeys(sentences))


@contextmanager
def new_folder(target):
    """Yields a folder that is renamed to `target` if everything succeeds, and removed otherwise."""
    temporary = target.with_name(f".tmp_{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def import_checkpoint(arguments):
    config = read_config(arguments.config, arguments.overrides)
    model = {key: value for key, value in config["model"].items() if key not in ("preset", "init_from")}
    checkpoint = torch_checkpoint.TorchCheckpoint(arguments.source)
    source = (megatron_checkpoint.MegatronSource if megatron_checkpoint.is_megatron(checkpoint) else Source)(checkpoint, model)
    target = arguments.target / f"step_{source.step:08d}"
    if target.exists():
        raise InputError(f"{target}: exists already, expected a new checkpoint")
    shapes = dict(source.shapes) | {f"{moment}.{name}": shape for moment in MOMENTS for name, shape in source.shapes.items()}
    meta = {"imported_from": str(arguments.source.resolve()), "tokens": 0, "config": {"optimizer": config["optimizer"]}}
    warnings = source.notes() + differing_options(source, config["optimizer"])
    with new_folder(target) as folder:
        octavo_checkpoint.write_checkpoint(folder, source.step, model, meta, shapes, source.tensor)
    print(f"{target}: step {source.step}, {sum(map(math.prod, source.shapes.values())):,} parameters with the moments of AdamW, from the layout "
          f"{source.layout_name}")
    for sentence in warnings:
        print(f"warning: {sentence}")
    command = shlex.join([arguments.config, *arguments.overrides, f"checkpoint.resume={target}"])
    print(f"Step {source.step + 1} has the learning rate that the schedule of the config has there. The data begins at its first sample unless "
          f"data.resume_from_sample says where. Continue the run with\n  octavo train {command} data.resume_from_sample=SAMPLES")


class Target:
    """The state dict of a checkpoint of PyTorch, with the values of an Octavo checkpoint."""

    def __init__(self, checkpoint, layout, decays_norms):
        self.checkpoint, self.layout, self.model, self.decays_norms = checkpoint, layout, checkpoint.model, decays_norms
        self.optimizer = checkpoint.meta.get("config", {}).get("optimizer")
        if not self.optimizer:
            raise InputError(f"{checkpoint.folder}: does not record the options of its optimizer, expected a checkpoint of a run")
        if self.model["qk_norm"] and layout.is_interleaved:
            raise InputError(f"{checkpoint.folder}: has model.qk_norm, for which torchtitan's Llama has no parameters")
        self.sources = {}  # The names of the tensors that a tensor of the state dict is made of.

    def add(self, prefix, theirs, sources, shape, place):
        self.sources[prefix + theirs] = sources
        place[theirs] = torch.empty(shape, device="meta")

    def state(self):
        """Returns the state dict, with tensors on the device meta."""
        weights, states = {}, {}
        is_torchtitan = self.layout.is_interleaved
        weight_prefix = "" if is_torchtitan else "model."
        for name, shape in names.parameters(self.model).items():
            is_tied = name == names.EMBEDDING and self.model["tie_word_embeddings"]
            for theirs in [names.name_in(self.layout, name)] + ([self.layout.outside[names.HEAD]] if is_tied else []):
                self.add(weight_prefix, theirs, [name], shape, weights)
                self.add_states(theirs, [name], shape, states)
            fused = names.fused_name(self.layout, name)
            if fused and name.endswith(names.QUERY):
                parts = [name.replace(names.QUERY, part) for part in (names.QUERY, names.KEY, names.VALUE)]
                self.add_states(fused, parts, names.fused_shape(self.model), states)
        step, lr = self.checkpoint.step, self.optimizer["lr"]
        # Torchtitan 0.3 loads last_epoch only, and earlier versions the state of a LambdaLR.
        schedule = {"last_epoch": step, "_step_count": step + 1, "base_lrs": [lr], "_last_lr": [lr], "lr_lambdas": [None],
                    "_get_lr_called_within_step": False, "_is_initial": False}
        trainer = {"train_state": {"step": step, "ntokens_seen": self.checkpoint.meta.get("tokens", 0)}, "lr_scheduler": schedule}
        return (weights | trainer if is_torchtitan else {"model": weights}) | {"optimizer": states}

    def add_states(self, theirs, sources, shape, states):
        for moment in MOMENTS:
            self.add("optimizer.", f"state.{theirs}.{moment}", [f"{moment}.{source}" for source in sources], shape, states)
        states[f"state.{theirs}.step"] = torch.tensor(float(self.checkpoint.step))
        lr, decay = self.optimizer["lr"], self.optimizer["weight_decay"] if len(shape) > 1 or self.decays_norms else 0.0
        options = {"lr": lr, "initial_lr": lr, "betas": tuple(self.optimizer["betas"]), "eps": self.optimizer["eps"], "weight_decay": decay,
                   "amsgrad": False, "maximize": False, "foreach": None, "capturable": False, "differentiable": False, "fused": None,
                   "decoupled_weight_decay": True}
        states.update({f"param_groups.{theirs}.{option}": value for option, value in options.items()})

    def tensor(self, theirs):
        parts = [self.checkpoint.tensor(source) for source in self.sources[theirs]]
        parts = [names.reorder(self.layout, self.model, source.removeprefix("exp_avg.").removeprefix("exp_avg_sq."), part, to_octavo=False)
                 for source, part in zip(self.sources[theirs], parts)]
        return parts[0] if len(parts) == 1 else names.fuse(self.model, *parts)


def export_checkpoint(arguments):
    checkpoint = octavo_checkpoint.OctavoCheckpoint(arguments.source)
    if arguments.target.exists() and any(arguments.target.iterdir()):
        raise InputError(f"{arguments.target}: is not empty, expected a new or empty folder")
    target = Target(checkpoint, names.LAYOUTS[arguments.to], arguments.decay_norms)
    with new_folder(arguments.target) as folder:
        torch_checkpoint.save(folder, target.state(), target.tensor)
    print(f"{arguments.target}: step {checkpoint.step}, in the layout {arguments.to}")


def printable(error):
    """Returns the message of an error in one line. Names in a checkpoint may have any characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(error))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="checkpoint to convert")
    parser.add_argument("target", type=Path, help="folder for the result")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="with --config: override values of the config")
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument("--config", metavar="CONFIG.yaml", help="config with which Octavo will train the model")
    direction.add_argument("--to", choices=names.LAYOUTS, help="convert a checkpoint of Octavo to this layout of PyTorch")
    parser.add_argument("--decay-norms", action="store_true", help="with --to: record weight decay for the weights of norms too")
    arguments = parser.parse_intermixed_args()
    try:
        (import_checkpoint if arguments.config else export_checkpoint)(arguments)
    except InputError as error:
        parser.exit(2, f"import_checkpoint.py: {printable(error)}\n")
    except (OSError, RuntimeError, MemoryError) as error:
        parser.exit(1, f"import_checkpoint.py: {printable(error) or 'out of memory'}\n")


if __name__ == "__main__":
    main()
