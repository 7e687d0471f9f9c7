#!/usr/bin/env bash
# A Slurm job that trains with one process per GPU on as many nodes as requested. Submit it from the checkout:
#
#   sbatch --nodes=4 --gpus-per-node=8 --ntasks-per-node=8 --cpus-per-task=12 scripts/launch_slurm.sh [--restarts N] [--no-check] CONFIG.yaml [key=value ...]
#
# Before each start every node is checked (octavo doctor --quick, one process per node). If a node is unfit, it is named and the
# run is not started. --no-check disables the check.
#
# With --restarts, a run that dies (a rank is killed, exit code 1) is restarted on the same nodes from its newest checkpoint, up
# to N times in total and up to 3 times in a row without a new checkpoint. Exit codes 0 and 3 are final, and 2 at the first start.
#
# When a tenth of the job's time is left, or ten minutes if that is less, the ranks get SIGTERM. Octavo then saves a
# checkpoint and ends with exit code 3, and the job requeues itself if it has written a new checkpoint. A job that Slurm
# requeues because a node failed also resumes from the newest checkpoint that it has written, whatever its
# checkpoint.resume says. OCTAVO=PATH names another program.
#
# The token files and checkpoint.dir must be on a file system that all nodes share. Open MPI must have been built with PMIx
# (Debian's and Ubuntu's are); `srun --mpi=list` shows what the cluster's Slurm offers.
#SBATCH --job-name=octavo
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --requeue
set -euo pipefail
# Slurm runs a copy of this script, so paths start at the directory where sbatch was called. If that is no checkout, the program
# and its scripts are those of the installation on PATH.
checkout="${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"
program="$checkout/build/octavo"
if [[ ! -e "$checkout/scripts/launching.sh" ]] && command -v octavo >/dev/null; then
  program="$(readlink -f "$(command -v octavo)")"
  checkout="$(dirname "$program")/../share/octavo"
fi
# shellcheck source=scripts/common.sh
source "$checkout/scripts/common.sh"
if [[ -z "${SLURM_JOB_ID:-}" ]]; then
  echo "launch_slurm.sh: this is not a Slurm job: submit it with sbatch --nodes=N --gpus-per-node=8 --ntasks-per-node=8 $0 CONFIG.yaml" >&2
  exit 2
fi
LAUNCHER=launch_slurm.sh
# shellcheck source=scripts/launching.sh
source "$checkout/scripts/launching.sh"
(($#)) || {
  echo "launch_slurm.sh: no config is given, expected launch_slurm.sh [--restarts N] [--no-check] CONFIG.yaml [section.key=value ...]" >&2
  exit 2
}
octavo="${OCTAVO:-$program}"
[[ -x "$octavo" ]] || {
  echo "launch_slurm.sh: $octavo is not there: submit from the checkout that it was built in, put octavo on PATH, or set OCTAVO" >&2
  exit 2
}

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
# Runs octavo once on the nodes that are not in excluded_hosts (scripts/launching.sh). --kill-on-bad-exit ends the other ranks
# if one dies, because they cannot continue without it.
run_once() {
  local nodes="${SLURM_JOB_NUM_NODES:-1}" per_node status=0
  local -a all=() left_out=() step=()
  per_node=$((${SLURM_NTASKS:-$nodes} / nodes))
  mapfile -t all < <(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" | mark_excluded "$octavo" "$@")
  mapfile -t left_out < <(marked_nodes "${all[@]}")
  if ((${#left_out[@]})); then
    say_left_out "${left_out[@]}"
    nodes=$((nodes - ${#left_out[@]}))
    ((nodes > 0)) || {
      echo "launch_slurm.sh: every node of the job is in excluded_hosts of checkpoint.dir" >&2
      return 2
    }
    step=(--nodes="$nodes" --ntasks="$((nodes * per_node))" --exclude="$(IFS=,; echo "${left_out[*]}")")
  fi
  if [[ -n "$check_first" ]]; then
    # With --gpus-per-task a process sees only its own GPUs.
    make_check "$octavo" "$([[ -n "${SLURM_GPUS_PER_TASK:-}" ]] && echo 0 || echo "$per_node")" "$@"
    check_nodes srun --mpi=pmix --kill-on-bad-exit=1 "${step[@]}" --ntasks="$nodes" --ntasks-per-node=1 "${check[@]}" || status=1
    ((status == 0)) || [[ -n "$stopping" ]] || return "$status"
  fi
  if [[ -n "$stopping" ]]; then return 3; fi
  srun --mpi=pmix --kill-on-bad-exit=1 "${step[@]}" "$octavo" train "$@"
}

# Prints the seconds that squeue says the job has left (D-HH:MM:SS, HH:MM:SS or MM:SS), and nothing if there is no limit.
seconds_left() {
  local left
  left="$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %L 2>/dev/null | tr -d ' ')" || return 0
  [[ "$left" =~ ^(([0-9]+)-)?(([0-9]+):)?([0-9]+):([0-9]+)$ ]] || return 0
  echo $((((10#0${BASH_REMATCH[2]} * 24 + 10#0${BASH_REMATCH[4]}) * 60 + 10#${BASH_REMATCH[5]}) * 60 + 10#${BASH_REMATCH[6]}))
}

# Sends the signals before the job's time ends. Slurm's option --signal takes a number of seconds, not a share of the job's time. With ten
# minutes, a job of ten minutes would get the signal at once. This script gets a signal too, because no ranks exist during the check of the
# nodes and between two starts. The ranks get several signals, because a rank that is just starting may miss the first one. They treat
# repeated signals as one request.
warn_in_time() {
  local left margin pause
  left="$(seconds_left)"
  [[ -n "$left" ]] || return 0
  margin=$((left / 10 < 600 ? left / 10 : 600))
  {
    sleep $((left - margin))
    kill -USR1 $$
    for pause in 1 2 4 8 16; do
      scancel --signal=TERM "$SLURM_JOB_ID"  # Signals the steps, not this script.
      sleep "$pause"
    done
  } </dev/null >/dev/null 2>&1 &
  warning=$!
}

# goes_on CONFIG [override...] succeeds if Slurm has requeued this job and the job has written a checkpoint before. Such a job must resume
# from its own checkpoint, but Slurm starts it with its first arguments, whose checkpoint.resume may say otherwise. The file $at_first_file
# records the newest checkpoint at the first start of the job.
at_first_file=""
goes_on() {
  local dir now
  dir="$(checkpoint_dir "$octavo" "$@")"
  [[ -n "$dir" ]] || return 1
  at_first_file="$dir/slurm_job_$SLURM_JOB_ID"
  now="$(newest_checkpoint "$octavo" "$@")"
  if ((${SLURM_RESTART_COUNT:-0} == 0)) || [[ ! -e "$at_first_file" ]]; then
    { mkdir -p "$dir" && printf '%s\n' "$now" >"$at_first_file"; } || echo "launch_slurm.sh: cannot write $at_first_file, so a requeued job may start over" >&2
    return 1
  fi
  [[ -n "$now" && "$now" != "$(<"$at_first_file")" ]]
}

status=0
warning=""
stopping=""
trap 'stopping=yes' USR1
if goes_on "$@"; then set -- "$@" checkpoint.resume=auto; fi
at_first="$(newest_checkpoint "$octavo" "$@")"
warn_in_time
run_with_restarts "$octavo" run_once "$@"
if [[ -n "$warning" ]]; then kill "$warning" 2>/dev/null || true; fi
# SIGTERM kills ranks that have just started and have no handler for it yet. Nothing is lost, because such ranks have not trained.
if [[ -n "$stopping" ]] && ((status == 128 + $(kill -l TERM))); then status=3; fi
if ((status == 3)); then
  at_last="$(newest_checkpoint "$octavo" "$@")"
  if [[ "${at_last#* }" == "${at_first#* }" ]]; then
    echo "launch_slurm.sh: the time of the job did not suffice for a step: not put back into the queue" >&2
    rm -f "$at_first_file"
    exit 3
  fi
  echo "stopped by a signal after saving a checkpoint: back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
if [[ -n "$at_first_file" ]]; then rm -f "$at_first_file"; fi
exit "$status"
