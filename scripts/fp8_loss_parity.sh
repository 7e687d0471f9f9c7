#!/usr/bin/env bash
# Compares the losses of faster precision settings with bfloat16. Packs the Python sources of this machine's site-packages and the
# headers under /usr/include, trains configs/fp8_loss_parity.yaml with each setting and each seed on the same data, and prints a table
# of the losses. losses.csv and losses.png in runs/fp8_loss_parity have the curves.
#
#   cmake --preset default && cmake --build --preset default
#   ./scripts/fp8_loss_parity.sh [section.key=value ...]     # Overrides apply to every run, before those of its setting.
#
#   SEEDS="42 43 44"               seeds of the initial weights
#   SETTINGS="bfloat16 fp8_..."    settings to train, by their names below; by default all. The first is what the others are
#                                  compared with
#
# Every GPU of the machine trains one run at a time. A run takes one minute on an H200. A run that ends early is left out of the
# table, and the exit code is then 1. All output is in runs/fp8_loss_parity. Run the script again after an interruption to resume.
# Delete that folder to start from the beginning, also after choosing another PYTHON, whose site-packages are packed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$OCTAVO_ROOT"

octavo=build/octavo
config=configs/fp8_loss_parity.yaml
run_dir=runs/fp8_loss_parity

# Name and overrides of each setting. bfloat16_again repeats bfloat16, because two runs with the same seed differ: attention's
# backward adds in any order. The last three settings continue fp8_delayed, and for the 8B each is faster than the one before.
all_settings=(
  "bfloat16 precision.linear=bfloat16"
  "bfloat16_again precision.linear=bfloat16"
  "fp8_tensorwise precision.linear=fp8_tensorwise"
  "fp8_rowwise precision.linear=fp8_rowwise"
  "fp8_blockwise precision.linear=fp8_blockwise"
  "fp8_delayed precision.linear=fp8_delayed"
  "lm_head_backward precision.linear=fp8_delayed precision.lm_head=fp8_backward"
  "fast_accumulation precision.linear=fp8_delayed precision.lm_head=fp8_backward precision.fast_accumulation=all"
  "lm_head precision.linear=fp8_delayed precision.lm_head=fp8 precision.fast_accumulation=all"
)
declare -A overrides
for setting in "${all_settings[@]}"; do overrides[${setting%% *}]="${setting#* }"; done
every_setting="${all_settings[*]%% *}"
read -r -d '' -a settings <<<"${SETTINGS-$every_setting}" || true
read -r -d '' -a seeds <<<"${SEEDS-42 43 44}" || true
((${#settings[@]})) || refuse "SETTINGS is empty, expected some of: $every_setting"
((${#seeds[@]})) || refuse "SEEDS is empty, expected integers"
for setting in "${settings[@]}"; do
  [[ -n "${overrides[$setting]:-}" ]] || refuse "SETTINGS names $setting, expected some of: $every_setting"
done
for seed in "${seeds[@]}"; do
  [[ "$seed" =~ ^(0|[1-9][0-9]{0,18})$ ]] || refuse "SEEDS contains '$seed', expected integers without leading zeros, below 10^19"
done
for list in settings seeds; do
  declare -n items="$list"
  again="$(printf '%s\n' "${items[@]}" | sort | uniq -d | head -n 1)"
  [[ -z "$again" ]] || refuse "${list^^} names $again twice"
done
for override in "$@"; do
  [[ "$override" == *=* ]] || refuse "there is no option $override, expected section.key=value"
done

# Lists the sources. Files with equal content are listed once, because libraries contain copies of each other's files. Files with a
# NUL byte are not text and are left out. grep -L lists the files without one, and its exit code is ignored. The order is shuffled
# with a fixed seed, so that the first held-out files, which validation reads, are of all kinds.
list_sources() {
  local -a folders
  mapfile -t folders < <("${PYTHON:-python3}" -c '
import sysconfig
print(*sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")}), sep="\n")')
  ((${#folders[@]})) || die "${PYTHON:-python3} does not say where its site-packages are"
  find "${folders[@]}" /usr/include -type f \( -name '*.py' -o -path '/usr/include/*.h' -o -path '/usr/include/*.hpp' -o \
    \( -path '/usr/include/c++/*' ! -name '*.*' \) \) -readable -size -1024k -size +0 -print0 |
    { LC_ALL=C xargs -0 grep -LaP '\x00' || true; } | LC_ALL=C sort | xargs -d '\n' sha256sum |
    awk '!seen[$1]++ { print substr($0, 67) }' | shuf --random-source=<(yes)
}

pack() {
  if [[ -e "$run_dir/data/held_out.idx" ]]; then return; fi
  say "Packing Python sources and headers"
  mkdir -p "$run_dir/data"
  list_sources >"$run_dir/sources.txt"
  [[ -s "$run_dir/sources.txt" ]] || die "no sources in site-packages and /usr/include"
  "$octavo" pack --input-list "$run_dir/sources.txt" --output "$run_dir/data/train" \
    --hold-out-every 20 --hold-out-output "$run_dir/data/held_out" --overwrite
}

# train GPU RUN [section.key=value ...] trains the run SETTING/seed-SEED.
train() {
  local gpu="$1" run="$2" log="$run_dir/$2/log"
  local -a values
  shift 2
  read -r -a values <<<"${overrides[${run%%/*}]}"
  mkdir -p "$run_dir/$run"
  if CUDA_VISIBLE_DEVICES="$gpu" "$octavo" train "$config" "$@" "${values[@]}" "training.seed=${run##*-}" \
    "logging.dir=$run_dir/$run" >>"$log" 2>&1; then
    touch "$run_dir/$run/done"
    printf '%-32s %s\n' "$run" "$(tail -n 1 "$log")"
  else
    rm -f "$run_dir/$run/done"
    printf '%-32s ended early, its log is %s: %s\n' "$run" "$log" "$(tail -n 1 "$log")" >&2
  fi
}

# train_every NUMBER COUNT [section.key=value ...] trains each COUNT-th run on one GPU, beginning with run NUMBER.
train_every() {
  local number="$1" count="$2" gpu="${gpus[$1]}"
  shift 2
  for ((; number < ${#runs[@]}; number += count)); do train "$gpu" "${runs[number]}" "$@"; done
}

[[ -x "$octavo" ]] || die "$octavo is missing: run cmake --preset default && cmake --build --preset default"
pack
"$octavo" inspect "$run_dir/data/train"

runs=()
for seed in "${seeds[@]}"; do
  for setting in "${settings[@]}"; do runs+=("$setting/seed-$seed"); done
done
if [[ -n "${CUDA_VISIBLE_DEVICES:-}" ]]; then
  IFS=, read -r -a gpus <<<"$CUDA_VISIBLE_DEVICES"
else
  mapfile -t gpus < <(seq 0 $(($(count_gpus) - 1)))
fi
((${#gpus[@]})) || gpus=("") # Without a GPU the runs follow each other, and the override device=cpu is needed.
say "Training ${#runs[@]} runs, ${#gpus[@]} at a time"
workers=()
for ((i = 0; i < ${#gpus[@]}; ++i)); do
  train_every "$i" "${#gpus[@]}" "$@" &
  workers+=($!)
done
wait "${workers[@]}"

say "Result"
if command -v nvidia-smi >/dev/null 2>&1; then nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true; fi
metrics=()
for run in "${runs[@]}"; do [[ ! -e "$run_dir/$run/done" ]] || metrics+=("$run_dir/$run/metrics.jsonl"); done
[[ "${metrics[*]}" == *"/${settings[0]}/"* ]] || die "every run of ${settings[0]} ended early, so there is nothing to compare with"
outputs=(--csv "$run_dir/losses.csv")
if python="$(python_with matplotlib)"; then outputs+=(--png "$run_dir/losses.png"); else python=python3; fi
"$python" scripts/fp8_loss_parity.py "${metrics[@]}" "${outputs[@]}"
((${#metrics[@]} == ${#runs[@]})) || die "$((${#runs[@]} - ${#metrics[@]})) of ${#runs[@]} runs ended early and are not in the table"
