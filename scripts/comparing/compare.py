#!/usr/bin/env python3
"""Measures Octavo and a peer in turn on one machine. scripts/compare_peers.sh starts it, on one process per GPU.

    compare.py SETTINGS.json [--rounds N] [--steps N] [--warmup N] [--equal-only] [--no-compile] [--json FILE]
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from comparing import measuring, training  # noqa: E402
from comparing.settings import PEERS, Settings, Variant  # noqa: E402

RESHARD = {"always": "true", "never": "false", "auto": "auto"}  # Values of parallel.reshard_after_forward.
WORTHWHILE = 1.005  # Settings found by the search replace the equal settings only if they are faster by this factor.
# Largest accepted differences between two programs with equal models in bfloat16: mean difference of a token's loss,
# and difference of the mean loss after a step relative to that loss.
TOKEN_PARITY, STEP_PARITY = 0.05, 0.005
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


def start_ranks(settings):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29517")):
        os.environ.setdefault(name, value)
    if settings.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    else:
        dist.init_process_group("gloo")
    return init_device_mesh(settings.device, (settings.replicate, settings.shard, settings.tensor),
                            mesh_dim_names=("replicate", "shard", "tensor"))


class Comparison:
    def __init__(self, settings, options):
        self.settings, self.options = settings, options
        self.mesh = start_ranks(settings)
        self.peer = PEERS[settings.peer]
        self.module = importlib.import_module(f"comparing.{self.peer.module}")
        self.titles = {"octavo": "Octavo", settings.peer: self.peer.title}
        self.make_trainer = partial(self.module.Trainer, mesh=self.mesh, compiles=options.compile)
        self.cpu_ranks = dist.new_group(backend="gloo")  # Ranks that wait in this group do not use the GPUs.
        self.is_root = dist.get_rank() == 0
        self.kind = None
        self.start = time.perf_counter()

    def say(self, text):
        if self.is_root:
            print(text, flush=True)

    def choose_attention(self):
        self.kind, found = self.module.choose_attention(self.settings)
        self.say(found)

    def check_parity(self):
        """Ends the program unless the peer gives the losses of the peer torch, which a test compares with Octavo's."""
        if self.module is training:
            return
        reference = partial(training.Trainer, mesh=self.mesh, compiles=False)
        difference, loss, its_loss = measuring.parity(reference, self.make_trainer, self.settings, "cudnn")
        text = (f"with equal weights in bfloat16 a token's loss differs from PyTorch's by {difference:.4f} on average; "
                f"the loss after a step is {its_loss:.4f}, PyTorch's {loss:.4f}")
        if not (difference <= TOKEN_PARITY and abs(its_loss - loss) <= STEP_PARITY * loss):
            raise SystemExit(f"compare_peers.sh: {self.peer.title} computes something else: {text}")
        self.say(f"parity: {text}")

    def measure(self, program, variant, warmup, steps):
        result = (self.octavo(variant, warmup, steps) if program == "octavo" else
                  measuring.measure(self.make_trainer, self.settings, variant, self.kind, warmup, steps))
        self.report(program, variant, result)
        return result

    def octavo(self, variant, warmup, steps):
        """Runs `octavo bench` on rank 0, while the other ranks wait."""
        results = [None]
        if self.is_root:
            line = self.octavo_line(variant) + ["--warmup", str(warmup), "--steps", str(steps), "--json"]
            environment = {name: value for name, value in os.environ.items()
                           if name not in TORCHRUN_VARIABLES and not name.startswith(("TORCHELASTIC_", "ROLE_", "GROUP_"))}
            run = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
            if run.returncode == 0:
                bench = json.loads(run.stdout)
                results[0] = {name: bench[name] for name in ("step_ms", "step_ms_min", "step_ms_max", "memory_gib")}
            else:
                results[0] = {"failed": (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[0]}
        dist.broadcast_object_list(results, src=0, group=self.cpu_ranks)
        return results[0]

    def octavo_line(self, variant):
        settings = self.settings
        return [*settings.launcher, settings.octavo, "bench", settings.config, *settings.overrides,
                f"training.micro_batch_size={variant.micro_batch}", f"activation_checkpointing.mode={variant.recompute}",
                f"parallel.reshard_after_forward={RESHARD[variant.reshard]}",
                f"parallel.data_parallel_replicate={settings.replicate}", f"parallel.data_parallel_shard={settings.shard}"]

    def wps(self, result):
        return self.settings.tokens_per_rank / result["step_ms"] * 1e3

    def report(self, program, variant, result):
        at = f"[{time.perf_counter() - self.start:4.0f} s] {self.titles[program]} {variant.text()}: "
        if "failed" in result:
            self.say(at + result["failed"])
        else:
            start = f", first steps {result['start_s']:.0f} s" if "start_s" in result else ""
            self.say(at + f"{self.wps(result):,.0f} wps, {result['step_ms']:.1f} ms, {result['memory_gib']:.1f} GiB{start}")

    def first_that_fits(self, micro_batch, modes):
        for mode in modes:
            variant = Variant(micro_batch, mode)
            result = self.measure(self.settings.peer, variant, 2, 4)
            if "failed" not in result:
                return variant, result
        return None, None

    def search(self):
        """Returns the equal settings, the peer's best and Octavo's best. Both programs try the same micro-batches. Less recomputation
        is tried first, because more is slower at the same micro-batch."""
        settings = self.settings
        modes = self.peer.recompute if settings.recompute == "auto" else (settings.recompute,)
        equal, result = self.first_that_fits(settings.micro_batch, modes)
        if equal is None:
            raise SystemExit(f"compare_peers.sh: {self.peer.title} has not enough memory for micro-batches of {settings.micro_batch}")
        if self.options.equal_only:
            return equal, equal, equal
        tried = {equal: result}
        larger = [n for n in range(settings.micro_batch + 1, 4 * settings.micro_batch + 1) if settings.local_batch % n == 0]
        smaller = [n for n in range(1, settings.micro_batch) if settings.local_batch % n == 0][-1:] if equal.recompute != "none" else []
        for micro_batch in larger + smaller:
            variant, result = self.first_that_fits(micro_batch, self.peer.recompute)
            if variant:
                tried[variant] = result
        best = min(tried, key=lambda variant: tried[variant]["step_ms"])
        for variant in self.module.other_variants(settings, best):
            result = self.measure(settings.peer, variant, 2, 4)
            if "failed" not in result:
                tried[variant] = result
        octavo = {equal: self.measure("octavo", equal, 2, 4)}
        for micro_batch in [settings.micro_batch, *larger, *smaller]:
            octavo[Variant(micro_batch, "auto", "auto")] = self.measure("octavo", Variant(micro_batch, "auto", "auto"), 2, 4)
        return equal, self.best(tried, equal), self.best(octavo, equal)

    @staticmethod
    def best(tried, equal):
        fits = {variant: result["step_ms"] for variant, result in tried.items() if "failed" not in result}
        if not fits:
            raise SystemExit("compare_peers.sh: no settings fit in Octavo's memory; the lines above say why")
        best = min(fits, key=fits.get)
        return equal if equal in fits and fits[equal] < WORTHWHILE * fits[best] else best

    def run(self):
        self.print_head()
        self.choose_attention()
        self.check_parity()
        equal, peer_best, octavo_best = self.search()
        peer = self.settings.peer
        # The two programs run in turn, so that a clock that drifts slows both.
        jobs = list(dict.fromkeys([("octavo", equal), (peer, equal), ("octavo", octavo_best), (peer, peer_best)]))
        times = {job: [] for job in jobs}
        for _ in range(self.options.rounds):
            for program, variant in jobs:
                result = self.measure(program, variant, self.options.warmup, self.options.steps)
                if "failed" not in result:
                    times[program, variant].append(result)
        rows = {"equal settings": (equal, equal)}
        if not self.options.equal_only:
            rows["each one's best"] = (octavo_best, peer_best)
        self.print_table(rows, times)

    def print_head(self):
        settings = self.settings
        device = f"{settings.ranks} x {torch.cuda.get_device_name()}" if settings.device == "cuda" else f"{settings.ranks} ranks on the CPU"
        self.say(f"{device}; {self.module.versions(settings)}; {time.strftime('%Y-%m-%d')}")
        self.say(f"{settings.parameters:,} parameters in both; {settings.global_batch} sequences of {settings.seq_len} tokens per step; "
                 f"replicate {settings.replicate}, shard {settings.shard}, tensor {settings.tensor}"
                 + ("; documents of 1,024 tokens on average" if settings.document_mask else ""))
        self.say(f"linears: Octavo {settings.linear_format}, {self.peer.title} {self.module.linears(settings)}")
        for note in settings.notes:
            self.say(f"note: {note}")

    def print_table(self, rows, times):
        self.say(f"\nwps per GPU, median of {self.options.rounds} rounds of {self.options.steps} steps (lowest to highest round)")
        width = max(map(len, self.titles.values()))
        report = {"settings": asdict(self.settings), "attention": self.kind, "rows": {}}
        for title, pair in rows.items():
            values = {}
            for program, variant in zip(self.titles, pair):
                wps = [self.wps(result) for result in times[program, variant]]
                if not wps:
                    self.say(f"{title:16} {self.titles[program]} did not run with {variant.text()}")
                    continue
                memory = max(result["memory_gib"] for result in times[program, variant])
                values[program] = {"wps": statistics.median(wps), "low": min(wps), "high": max(wps), "memory_gib": memory, "variant": asdict(variant)}
                self.say(f"{title:16} {self.titles[program]:{width}}{statistics.median(wps):10,.0f} ({min(wps):,.0f} to {max(wps):,.0f})  "
                         f"{memory:6.1f} GiB  {variant.text()}")
            if len(values) == 2:
                values["ratio"] = values["octavo"]["wps"] / values[self.settings.peer]["wps"]
                self.say(f"{title:16} Octavo / {self.peer.title} = {values['ratio']:.3f}")
            report["rows"][title] = values
        if self.is_root and self.options.json:
            Path(self.options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--equal-only", action="store_true")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--json")
    options = parser.parse_args()
    Comparison(Settings.load(options.settings), options).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
