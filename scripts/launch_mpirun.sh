#!/usr/bin/env bash
# Starts a training run with Open MPI: one process a GPU, on this machine or on those of a hostfile.
#
#   scripts/launch_mpirun.sh CONFIG.yaml [section.key=value ...]
#
#   NPROC=8             processes a node; the number of GPUs of this machine by default
#   HOSTFILE=hosts      "node1 slots=8" a line; this machine alone by default
#   OCTAVO=build/octavo the program, at the same path on every node
#   MPIRUN_ARGS="..."   more arguments for mpirun
#
# The program, the config and the token files must be at the same paths on every node, and checkpoint.dir on a file system
# that all of them share. Run it again after a failure: it goes on from the newest complete checkpoint.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
(($#)) || die "no config given; see the head of this file"

octavo="${OCTAVO:-$OCTAVO_ROOT/build/octavo}"
[[ -x "$octavo" ]] || die "$octavo is not there: build first (cmake --preset default && cmake --build --preset default)"
per_node="${NPROC:-$(count_gpus)}"
((per_node > 0)) || die "no GPU found; NPROC=2 starts two ranks on the CPU"

nodes=1
if [[ -n "${HOSTFILE:-}" ]]; then nodes="$(grep -cvE '^[[:space:]]*(#|$)' "$HOSTFILE")"; fi
make_mpirun "$((nodes * per_node))" "$per_node"
command=("${MPIRUN[@]}" --map-by "ppr:$per_node:node")
if [[ -n "${HOSTFILE:-}" ]]; then command+=(--hostfile "$HOSTFILE"); fi
# Variables that steer NCCL reach the other nodes only when they are named.
while IFS= read -r name; do command+=(-x "$name"); done < <(compgen -e | grep '^NCCL_' || true)
# shellcheck disable=SC2206  # meant to be split into words
command+=(${MPIRUN_ARGS:-})

exec "${command[@]}" "$octavo" train "$@"
