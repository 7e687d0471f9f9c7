#!/usr/bin/env bash
# Starts a training run with Open MPI: one process a GPU, on this machine or on those of a hostfile.
#
#   scripts/launch_mpirun.sh [--restarts N] [--no-check] CONFIG.yaml [section.key=value ...]
#
# Every node is checked before each start (octavo doctor --quick, one process a node); one that is not fit is named, and the run is not started.
#
#   --no-check          without that check
#   --restarts N        a run that dies (a rank is killed, exit code 1) is started again from its newest checkpoint, up to
#                       N times in all, and up to 3 times in a row without a new one; not after exit codes 0, 2 and 3.
#                       Nodes of HOSTFILE on which nothing can be started by then are left out until they can again.
#
#   NPROC=8             processes a node; the number of GPUs of this machine by default
#   HOSTFILE=hosts      "node1 slots=8" a line; this machine alone by default
#   OCTAVO=build/octavo the program, at the same path on every node; by default that of this checkout or installation
#   MPIRUN_ARGS="..."   more arguments for mpirun
#
# The program, the config and the token files must be at the same paths on every node, and checkpoint.dir on a file system
# that all of them share. Nodes that training.on_corruption: exclude has named in checkpoint.dir/excluded_hosts are left
# out until their line is removed there. Without --restarts, run it again after a failure: it goes on from the newest complete checkpoint.
#
# SIGTERM or Ctrl-C to this script: a checkpoint is saved, however long that takes, and the exit code is 3. mpirun itself, told to end by
# a signal, would kill its ranks 2 seconds later; SIGUSR1 it passes on to them, on all nodes. A second Ctrl-C, later, ends the run at
# once. SIGHUP and a closed standard output do not end it.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
LAUNCHER=launch_mpirun.sh
# shellcheck source=scripts/launching.sh
source "$OCTAVO_ROOT/scripts/launching.sh"
(($#)) || refuse "no config is given, expected launch_mpirun.sh [--restarts N] [--no-check] CONFIG.yaml [section.key=value ...]"

octavo="$(find_octavo)"
[[ -x "$octavo" ]] || refuse "$octavo is not there: build it first (cmake --preset default && cmake --build --preset default), or set OCTAVO"
command -v mpirun >/dev/null || refuse "mpirun is not on PATH: install Open MPI (apt-get install openmpi-bin)"
per_node="${NPROC:-$(count_gpus)}"
[[ "$per_node" =~ ^[0-9]{1,4}$ ]] || refuse "NPROC is $per_node, expected a number of processes per node"
per_node=$((10#$per_node))
((per_node > 0)) || refuse "no GPU is found; NPROC=2 starts two ranks on the CPU"

# Writes the nodes of HOSTFILE that are not excluded (scripts/launching.sh) into $hostfile, and sets `nodes` to their number.
choose_nodes() {
  local -a all=() out=()
  nodes=1
  [[ -n "${HOSTFILE:-}" ]] || return 0
  [[ -f "$HOSTFILE" && -r "$HOSTFILE" ]] || refuse "HOSTFILE is $HOSTFILE, which cannot be read, expected a file with a node a line"
  mapfile -t all < <(grep -vE '^[[:space:]]*(#|$)' "$HOSTFILE" | mark_excluded "$octavo" "$@")
  ((${#all[@]})) || refuse "HOSTFILE is $HOSTFILE, which names no node, expected one a line"
  mapfile -t out < <(marked_nodes "${all[@]}")
  say_left_out "${out[@]}"
  nodes=$((${#all[@]} - ${#out[@]}))
  ((nodes)) || refuse "every node of $HOSTFILE is in excluded_hosts of checkpoint.dir"
  printf '%s\n' "${all[@]}" | sed -n 's/^+//p' >"$hostfile"
}

# answers NODE: whether a process can be started there.
answers() {
  # shellcheck disable=SC2086  # meant to be split into words
  timeout 30 "${MPIRUN[@]}" --host "$1" ${MPIRUN_ARGS:-} true </dev/null >/dev/null 2>&1
}

# Takes those of the $nodes in $hostfile that do not answer out of it. Asks 32 at a time.
leave_out_lost_nodes() {
  local name answered
  local -a names=() asked=()
  mapfile -t names < <(awk '{ print $1 }' "$hostfile")
  answered="$(mktemp)"
  make_mpirun 1
  for name in "${names[@]}"; do
    { answers "$name" && echo "$name" >>"$answered"; } &
    asked+=($!)
    if ((${#asked[@]} == 32)); then
      wait "${asked[@]}" || true
      asked=()
    fi
  done
  wait "${asked[@]}" || true
  for name in "${names[@]}"; do
    grep -Fqx -- "$name" "$answered" || echo "$LAUNCHER: $name does not answer and is left out of this start" >&2
  done
  nodes="$(sort -u "$answered" | grep -c .)" || true
  awk 'NR == FNR { answered[$1]; next } $1 in answered' "$answered" "$hostfile" >"$answered.left"
  mv "$answered.left" "$hostfile"
  rm -f "$answered"
  ((nodes)) || die "no node of $HOSTFILE answers"
}

# make_command RANKS: sets the array `command` to mpirun with so many ranks on each of these nodes.
make_command() {
  local ranks="$1" name
  make_mpirun "$((nodes * ranks))" "$ranks"
  command=("${MPIRUN[@]}" --map-by "ppr:$ranks:node")
  if [[ -n "${HOSTFILE:-}" ]]; then command+=(--hostfile "$hostfile"); fi
  # Variables that steer NCCL reach the other nodes only when they are named.
  while IFS= read -r name; do command+=(-x "$name"); done < <(compgen -e | grep '^NCCL_' || true)
  # shellcheck disable=SC2206  # meant to be split into words
  command+=(${MPIRUN_ARGS:-})
}
hostfile="$(mktemp)"
trap 'rm -f "$hostfile"' EXIT

stopping=""
reminders=""
mpirun=""
# mpirun has nobody to pass a signal on to while it starts them, so it is sent again, from the background; the ranks take it as the same request.
request_stop() {
  kill -USR1 "$mpirun" 2>/dev/null || return 0
  trap '' TERM # or the same signal, sent to the whole process group, would end the reminders
  remind </dev/null >/dev/null 2>&1 &
  reminders=$!
  disown "$reminders" # it is killed without a word
  trap 'on_signal TERM' TERM
}
remind() {
  local pause
  for pause in 1 2 4 8 16; do
    sleep "$pause"
    kill -USR1 "$mpirun" 2>/dev/null || return 0
  done
}
on_signal() {
  if [[ -z "$stopping" ]]; then
    stopping=$SECONDS
    echo "launch_mpirun.sh: SIG$1: the ranks are told to save a checkpoint and end" >&2
    request_stop
  elif [[ "$1" == INT ]] && ((SECONDS - stopping >= 2)); then
    kill -TERM "$mpirun" 2>/dev/null || true
  fi
}
trap 'on_signal TERM' TERM
trap 'on_signal INT' INT
trap '' HUP PIPE

# In a session of its own, or Ctrl-C would reach mpirun too. If this script is killed, mpirun is told to end.
own_session=(setsid)
if command -v setpriv >/dev/null 2>&1; then own_session+=(setpriv --pdeathsig TERM); fi
# Copies what mpirun writes to standard error, without what Open MPI adds to an end that octavo explains itself in a sentence: the paragraphs about a
# rank with another exit code than 0, or that SIGUSR1 ended before it could take it for a request. What Open MPI says about a rank that crashed stays.
# If nobody reads standard error any more, mpirun does not notice. Signals are for mpirun: this ends with it.
filter_messages() {
  trap '' INT TERM
  sed -u -E '/^[a-z]+: Forwarding signal [0-9]+ to job$/ d
  /^-{74}$/ {
    N
    /\n-{74}$/ { P; D }
    /\n(Primary job +terminated normally, but|[a-z]+ detected that one or more processes exited with non-zero|[a-z]+ noticed that process rank .* exited on signal 10 )/ {
      :paragraph
      N
      /\n-{74}$/! b paragraph
      d
    }
  }' >&2 || cat >/dev/null
}
starts=0
run_once() {
  local code=0 messages filter
  choose_nodes "$@"
  starts=$((starts + 1))
  if [[ -n "${HOSTFILE:-}" ]] && ((starts > 1)); then leave_out_lost_nodes; fi
  if [[ -n "$stopping" ]]; then return 3; fi
  if [[ -n "$check_first" ]]; then
    make_check "$octavo" "$per_node" "$@"
    command=() # on this machine alone without mpirun, as it starts in less time
    if [[ -n "${HOSTFILE:-}" ]]; then make_command 1; fi
    check_nodes "${command[@]}" "${check[@]}" || code=$?
    if [[ -n "$stopping" ]]; then return 3; fi
    ((code == 0)) || return "$code"
  fi
  make_command "$per_node"
  exec {messages}> >(filter_messages)
  filter=$!
  "${own_session[@]}" "${command[@]}" "$octavo" train "$@" 2>&"$messages" {messages}>&- &
  mpirun=$!
  exec {messages}>&-
  # What was told to stop before there was an mpirun to tell.
  if [[ -n "$stopping" ]]; then request_stop; fi
  # A signal ends a wait; the status of a process that has ended is kept for the next one.
  while kill -0 "$mpirun" 2>/dev/null; do wait "$mpirun" || true; done
  wait "$mpirun" || code=$?
  mpirun="" # its number may be another process's by now
  while kill -0 "$filter" 2>/dev/null; do wait "$filter" || true; done
  return "$code"
}

status=0
run_with_restarts "$octavo" run_once "$@"
if [[ -n "$reminders" ]]; then kill -KILL "$reminders" 2>/dev/null || true; fi
# SIGUSR1 ends a rank, and mpirun itself, that has only begun and does not expect it yet: nothing is lost.
if [[ -n "$stopping" ]] && ((status == 128 + $(kill -l USR1))); then status=3; fi
exit "$status"
