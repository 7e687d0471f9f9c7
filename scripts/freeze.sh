#!/usr/bin/env bash
# Records what a build decides and computes on the CPU, so that a change of the code can be compared with the program before it.
#
#   scripts/freeze.sh OUT            for example: scripts/freeze.sh /tmp/before; change the code and build; scripts/freeze.sh /tmp/after;
#                                    diff -r /tmp/before /tmp/after
#
#   OCTAVO=build/octavo  program to record
#
# OUT gets the plans of all configs as JSON, dry runs, refusals with their exit codes, and of each run the losses, events, checksums of all
# checkpoints, their metadata and config.yaml. Nothing in it depends on the time, on paths or on free memory. Two builds give equal sums of
# floating-point numbers only with the same compiler and options. Takes about 30 seconds.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
(($# == 1)) || die "expected one argument, the folder to write"
program="$(realpath "${OCTAVO:-$OCTAVO_ROOT/build/octavo}")"
out="$(realpath -m "$1")"
configs="$OCTAVO_ROOT/configs"
export OMP_NUM_THREADS=1 COLUMNS=100 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

rm -rf "$out"
mkdir -p "$out"/{plans,runs,dry_runs,refusals,models}
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

octavo() { timeout 300 "$program" "$@"; }

# Runs the program without its log.
quietly() { octavo "$@" 2>/dev/null; }

# Replaces what differs between two runs of one program: paths, the commit and free memory.
masked() {
  sed -E -e "s#$scratch/##g" -e 's/commit [0-9a-f]+(-dirty)?/commit X/' -e 's/, of [0-9.]+; [0-9.]+ kept free/, of N/' \
    -e 's/[0-9.]+ GiB (are )?(available|free)/N GiB \2/g'
}

# record FILE COMMAND... writes the output of a command and its exit code.
record() {
  local file="$1" code=0
  shift
  "$@" >"$scratch/output" 2>&1 || code=$?
  { masked <"$scratch/output" && echo "exit code $code"; } >"$out/$file"
}

# record_run NAME RANKS CONFIG OVERRIDES... trains in the folder NAME and records what the run wrote.
record_run() {
  local name="$1" ranks="$2" code=0
  shift 2
  make_mpirun "$ranks"
  timeout 300 "${MPIRUN[@]}" "$program" train "$@" "logging.dir=$name" logging.every=1 >/dev/null 2>&1 || code=$?
  python3 - "$name" "$code" >"$out/runs/$name" <<'PYTHON'
import hashlib
import json
import sys
from pathlib import Path

KEYS = ["step", "loss", "grad_norm", "lr", "stage", "tokens", "validation_loss", "precision_gap"]
run = Path(sys.argv[1])
print("exit code", sys.argv[2])
for line in (run / "metrics.jsonl").read_text().splitlines():
    row = json.loads(line)
    print({key: row[key] for key in KEYS if key in row})
for line in (run / "events.jsonl").read_text().splitlines():
    event = json.loads(line)
    if " GB in " not in event["text"] and "goodput" not in event["text"]:
        print(event.get("kind"), event.get("step"), event["text"])
for path in sorted(run.glob("checkpoints/*/*.safetensors")):
    print(path, hashlib.sha256(path.read_bytes()).hexdigest())
for path in sorted(run.glob("checkpoints/*/manifest.json")):
    meta = json.loads(path.read_text())["meta"]
    meta.pop("steps_s")
    print(path, json.dumps(meta, sort_keys=True))
print((run / "config.yaml").read_text())
PYTHON
}

say "plans"
for config in "$configs"/*.yaml; do
  name="$(basename "$config" .yaml)"
  record "plans/$name" octavo plan "$config" --json
  record "plans/$name-search" octavo plan "$config" --json --search
  record "plans/$name-nodes_of_4" octavo plan "$config" --json --gpus-per-node 4
  record "plans/$name-16_gpus" octavo plan "$config" --json --gpus 16 training.global_batch_size=128
  record "plans/$name-cpu" octavo plan "$config" --json device=cpu --gpus 2
done
record plans/text octavo plan "$configs/llama3_8b_8gpu.yaml" --all

say "runs"
mkdir text
python3 - <<'PYTHON'
import random

numbers = random.Random(1)
for i in range(200):
    words = ("".join(numbers.choices("etaoins", k=numbers.randint(1, 7))) for _ in range(600))
    with open(f"text/{i:03}.txt", "w", encoding="utf-8") as file:
        file.write(" ".join(words))
PYTHON
octavo pack --input text --output train --hold-out-every 20 --hold-out-output held >/dev/null
cat >whole.yaml <<'YAML'
model: {hidden_size: 128, intermediate_size: 256, num_layers: 4, num_heads: 4, num_kv_heads: 2, head_dim: 32, vocab_size: 272}
data: {train: [{path: train}], validation: [{path: held}], seq_len: 128, tokenizer: byte}
training: {steps: 14, global_batch_size: 8, micro_batch_size: 2}
optimizer: {lr: 2.0e-3, warmup_steps: 2}
checkpoint: {every: 5, keep: 0}
logging: {tensorboard: false}
validation: {every: 5, batches: 2}
device: cpu
YAML
sed 's/^training: {steps: 14, /training: {/' whole.yaml >stages.yaml
echo "stages: [{steps: 8}, {steps: 6, data: {seq_len: 256}, training: {global_batch_size: 4}}]" >>stages.yaml
falls_back=(precision.linear=fp8_delayed "precision.guard={every: 4, steps: 2, action: bfloat16, tolerance: 1.0e-9, fallback_steps: 3}")
record_run stages 1 stages.yaml "${falls_back[@]}"
record_run spike 1 whole.yaml training.steps=40 training.on_loss_spike=rollback training.loss_spike_z=2 training.loss_spike_window=10 \
  checkpoint.every=10 validation.every=0 optimizer.lr=2.0e-2 optimizer.grad_clip=0
record_run blockwise 1 whole.yaml precision.linear=fp8_blockwise precision.lm_head=fp8 training.z_loss=1.0e-4 \
  activation_checkpointing.mode=selective optimizer.ema_decay=0.9
record_run tensor 2 stages.yaml precision.linear=fp8_tensorwise parallel.tensor_parallel=2
record_run pipeline 2 whole.yaml parallel.pipeline_parallel=2 parallel.pipeline_schedule=zero_bubble data.document_mask=true
record_run shards 2 whole.yaml optimizer.type=muon precision.compute=bfloat16 precision.linear=fp8_rowwise
record_run resumed 1 whole.yaml training.steps=7
record_run resumed 2 whole.yaml "checkpoint.allow_changes=[schedule]" training.steps=12

say "dry runs, models and refusals"
record dry_runs/new octavo train stages.yaml --dry-run logging.dir=new
record dry_runs/finished octavo train stages.yaml --dry-run logging.dir=stages "${falls_back[@]}"
record dry_runs/gpus octavo train "$configs/llama3_8b_8gpu.yaml" --dry-run device=cuda "data.train=[{path: train}]" data.tokenizer=byte \
  "data.validation=[]" logging.dir=gpus
record models/evaluate octavo evaluate resumed
record models/generate quietly generate resumed --prompt 'static ' --max-tokens 40 --temperature 0
octavo bench whole.yaml --steps 1 --warmup 0 --json |
  python3 -c 'import json, sys; result = json.load(sys.stdin); print(sorted(result), result["allocated_bytes"])' >"$out/models/bench"
number=0
while IFS= read -r arguments; do
  number=$((number + 1))
  words=()
  eval "words=($arguments)"
  record "refusals/$(printf %02d $number)" octavo "${words[@]}"
done <<'COMMANDS'
train whole.yaml training.global_batch_size=7
train whole.yaml parallel.tensor_parallel=3
train whole.yaml precision.compute=float32 device=cuda
train whole.yaml precision.linear=fp8_blockwise data.seq_len=100
train whole.yaml model.init_from=nowhere
train whole.yaml checkpoint.resume=nowhere
train whole.yaml logging.dir=resumed optimizer.weight_decay=0.3
train whole.yaml logging.dir=resumed checkpoint.resume=auto training.seed=7
train whole.yaml 'data.validation=[{path: train}]'
train whole.yaml optimizer.decay_steps=3
train whole.yaml training.stpes=3
train whole.yaml parallel.pipeline_parallel=9
train stages.yaml training.steps=9
train whole.yaml checkpoint.dir=whole.yaml
evaluate resumed checkpoint.resume=spike
evaluate nowhere
generate resumed --prompt x --ema
plan whole.yaml --search
plan whole.yaml --gpus 3
plan whole.yaml --machine nowhere device=cuda
bench whole.yaml --document-length 9
inspect whole.yaml
COMMANDS
echo "$(find "$out" -type f | wc -l) files, $(cat "$out"/*/* | sha256sum | cut -c 1-16)"
