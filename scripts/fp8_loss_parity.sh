#!/usr/bin/env bash
# Compares the loss of training in FP8 with bfloat16. Packs the Python sources of this machine's site-packages and the headers
# under /usr/include, trains configs/fp8_loss_parity.yaml once with each recipe on the same data and initial weights, and prints a
# table of the losses. losses.csv and losses.png in runs/fp8_loss_parity have the curves.
#
#   cmake --preset default && cmake --build --preset default
#   ./scripts/fp8_loss_parity.sh [section.key=value ...]     # Overrides apply to every run.
#
# Needs one GPU with FP8 and about ten minutes on an H200. All output is in runs/fp8_loss_parity. Run the script again after an
# interruption to resume. Delete that folder to start from the beginning. PYTHON chooses the python3 whose site-packages are
# packed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$OCTAVO_ROOT"

octavo=build/octavo
config=configs/fp8_loss_parity.yaml
run_dir=runs/fp8_loss_parity
recipes=(bfloat16 fp8_tensorwise fp8_delayed fp8_rowwise fp8_blockwise)

# Lists the sources. Files with equal content are listed once, because libraries contain copies of each other's files. Files with a
# NUL byte are not text and are left out. grep -L lists the files without one, and its exit code is ignored. The order is shuffled
# with a fixed seed, so that the first held-out files, which validation reads, are of all kinds.
list_sources() {
  local -a folders
  mapfile -t folders < <("${PYTHON:-python3}" -c '
import sysconfig
print(*sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")}), sep="\n")')
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

train() {
  local recipe="$1"
  shift
  say "Training with $recipe linears"
  "$octavo" train "$config" "precision.linear=$recipe" "logging.dir=$run_dir/$recipe" "$@" >>"$run_dir/$recipe.log" 2>&1 || {
    tail -n 20 "$run_dir/$recipe.log" >&2
    die "the $recipe run ended early; its log is $run_dir/$recipe.log"
  }
  tail -n 2 "$run_dir/$recipe.log"
}

[[ -x "$octavo" ]] || die "$octavo is missing: run cmake --preset default && cmake --build --preset default"
pack
"$octavo" inspect "$run_dir/data/train"
for recipe in "${recipes[@]}"; do train "$recipe" "$@"; done
say "Result"
if command -v nvidia-smi >/dev/null 2>&1; then nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true; fi
metrics=("${recipes[@]/#/$run_dir/}")
outputs=(--csv "$run_dir/losses.csv")
if python="$(python_with matplotlib)"; then outputs+=(--png "$run_dir/losses.png"); else python=python3; fi
"$python" scripts/fp8_loss_parity.py "${metrics[@]/%//metrics.jsonl}" "${outputs[@]}"
