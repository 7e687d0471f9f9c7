#!/usr/bin/env bash
# Compares the throughput of Octavo and a peer on the same shapes, in turn on this machine: with equal micro-batch and recomputation,
# and with the best settings of each that fit. Prints both ratios.
#
#   scripts/compare_peers.sh [OPTION...] CONFIG.yaml [section.key=value ...]
#
#   --peer PEER    torch (the default): PyTorch with FSDP2, torch.compile and torchao float8
#                  te: NVIDIA Transformer Engine with its fused layers, on one GPU and without recomputation
#   --ranks N      processes, one per GPU; by default all GPUs, or one on the CPU (device=cpu)
#   --rounds N     times that both are measured; 3 by default
#   --steps N      timed steps per measurement; 10 by default
#   --warmup N     steps before the timed ones; 3 by default
#   --equal-only   omits the search for the best settings
#   --no-compile   PyTorch without torch.compile, --peer torch only
#   --json FILE    also writes the result as JSON
#   --dry-run      prints the settings that both would get, and measures nothing
#
# Needs PyTorch 2.11 in OCTAVO_PYTHON, .deps/venv or python3, with torchao 0.17 for FP8 with --peer torch, or transformer_engine 2.20 with
# --peer te. PYTHONPATH is respected. Exit code 2 means that the command line, the config or this machine does not allow the comparison.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

peer=torch
ranks=""
dry_run=""
options=()
while [[ "${1:-}" == --* ]]; do
  case "$1" in
    --ranks | --rounds | --steps | --warmup)
      [[ "${2:-}" =~ ^[1-9][0-9]{0,3}$ ]] || refuse "$1 is '${2:-}', expected a number from 1 to 9999"
      if [[ "$1" == --ranks ]]; then ranks="$2"; else options+=("$1" "$2"); fi
      shift
      ;;
    --peer)
      [[ "${2:-}" =~ ^(torch|te)$ ]] || refuse "--peer is '${2:-}', expected torch or te"
      peer="$2"
      shift
      ;;
    --json)
      (($# > 1)) || refuse "--json has no file, expected --json FILE"
      options+=(--json "$2")
      shift
      ;;
    --equal-only | --no-compile) options+=("$1") ;;
    --dry-run) dry_run=yes ;;
    *) refuse "there is no option $1, expected --peer, --ranks, --rounds, --steps, --warmup, --equal-only, --no-compile, --json, --dry-run" ;;
  esac
  shift
done
(($#)) || refuse "no config is given, expected compare_peers.sh [OPTION...] CONFIG.yaml [section.key=value ...]"
config="$1"
shift

octavo="$(find_octavo)"
[[ -x "$octavo" ]] || refuse "$octavo is missing: run cmake --preset default && cmake --build --preset default"
device="$("$octavo" config "$config" "$@" --value device)" || exit 2
gpus="$(count_gpus)"
if [[ "$device" == auto ]]; then device="$( ((gpus)) && echo cuda || echo cpu)"; fi
if [[ "$device" == cuda && -z "$dry_run" ]]; then
  ((gpus)) || refuse "this machine has no GPU: compare on one that has, or add device=cpu to compare on the CPU"
  ((${ranks:-1} <= gpus)) || refuse "--ranks is $ranks, expected at most the $gpus GPUs of this machine"
fi
if [[ -z "$ranks" ]]; then ranks="$([[ "$device" == cuda && "$gpus" -gt 0 ]] && echo "$gpus" || echo 1)"; fi

launcher=""
if ((ranks > 1)); then
  make_mpirun "$ranks"
  launcher="${MPIRUN[*]}"
fi
settings="$(mktemp)"
trap 'rm -f "$settings"' EXIT
python3 "$OCTAVO_ROOT/scripts/comparing/settings.py" "$peer" "$octavo" "$launcher" "$config" "$device" "$ranks" "$@" >"$settings" || exit 2
if [[ -n "$dry_run" ]]; then
  cat "$settings"
  exit
fi
case "$peer" in
  torch) needs=torch.nn.attention.varlen packages="torch==2.11.0 torchao==0.17.0" ;;
  te) needs=transformer_engine.pytorch packages="torch==2.11.0, then add transformer_engine[pytorch]==2.20.2 with --no-build-isolation" ;;
esac
python="$(python_with "$needs")" ||
  refuse "no Python can import $needs: run python3 -m venv .deps/venv && .deps/venv/bin/pip install $packages"
command=("$python")
if ((ranks > 1)); then command+=(-m torch.distributed.run --standalone "--nproc_per_node=$ranks"); fi
"${command[@]}" "$OCTAVO_ROOT/scripts/comparing/compare.py" "$settings" ${options[@]+"${options[@]}"}
