#!/usr/bin/env bash
# Starts a training run with Open MPI, with one process per GPU, on this machine or on the machines of a hostfile.
#
#   scripts/launch_mpirun.sh [--restarts N] [--no-check] CONFIG.yaml [section.key=value ...]
#
# Before each start every node is checked (octavo doctor --quick, one process per node). If a node is unfit, it is named and the
# run is not started.
#
#   --no-check          disables the check
#   --restarts N        restarts a run that dies (a rank is killed, exit code 1) from its newest checkpoint, up to N times in
#                       total and up to 3 times in a row without a new checkpoint. Exit codes 0 and 3 are final, and 2 at the first
#                       start. A node of HOSTFILE on which nothing can be started within 30 s is named and left out until it answers.
#
#   NPROC=8             processes per node (default: the number of GPUs of this machine)
#   HOSTFILE=hosts      file with one line per node, such as "node1 slots=8" (default: this machine only)
#   NODES=4             number of nodes to use, the first of HOSTFILE that answer (default: all). The others replace lost nodes
#   OCTAVO=build/octavo program, at the same path on every node (default: that of this checkout or installation)
#   MPIRUN_ARGS="..."   further arguments of mpirun
#
# The program, the config and the token files must be at the same paths on every node, and checkpoint.dir on a file system that
# all nodes share. Nodes in checkpoint.dir/excluded_hosts, which training.on_corruption: exclude writes, are left out until their
# line is removed. Without --restarts, run the script again after a failure. It resumes from the newest complete checkpoint.
#
# After SIGTERM, SIGUSR1 or Ctrl-C to this script the run saves a checkpoint, however long that takes, and the exit code is 3. mpirun
# itself would kill its ranks 2 seconds after such a signal. But it passes SIGUSR1 on to the ranks on all nodes, so the script
# sends SIGUSR1. A second Ctrl-C ends the run at once. SIGHUP and a closed standard output do not end it.
#
# mpirun waits forever for a node that has failed. So the script kills mpirun 30 s after a rank or an ssh process on this machine has
# ended. An ssh process ends if its node has not answered for 60 s. OMPI_MCA_plm_rsh_agent="ssh OPTIONS" replaces the options of ssh.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
LAUNCHER=launch_mpirun.sh
# shellcheck source=scripts/launching.sh
source "$OCTAVO_ROOT/scripts/launching.sh"
(($#)) || refuse "no config is given, expected launch_mpirun.sh [--restarts N] [--no-check] CONFIG.yaml [section.key=value ...]"

octavo="$(find_octavo)"
octavo_name="${octavo##*/}"
[[ -x "$octavo" ]] || refuse "$octavo is not there: build it first (cmake --preset default && cmake --build --preset default), or set OCTAVO"
command -v mpirun >/dev/null || refuse "mpirun is not on PATH: install Open MPI (apt-get install openmpi-bin)"
per_node="${NPROC:-$(count_gpus)}"
[[ "$per_node" =~ ^[0-9]{1,4}$ ]] || refuse "NPROC is $per_node, expected a number of processes per node"
per_node=$((10#$per_node))
((per_node > 0)) || refuse "no GPU is found; NPROC=2 starts two ranks on the CPU"
[[ "${NODES:-1}" =~ ^[1-9][0-9]{0,4}$ ]] || refuse "NODES is $NODES, expected a number of nodes of HOSTFILE"

# ssh asks no questions, and ends if its node does not answer. mpirun itself starts the ssh processes of all nodes, and they last as long as
# the run, so that guard() sees them. Open MPI 5 does not keep them.
export OMPI_MCA_plm_rsh_agent="${OMPI_MCA_plm_rsh_agent:-ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4}"
export OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_orte_leave_session_attached=1
# If a rank dies, mpirun kills the others at once. By default it asks them twice to end, a second apart, but they cannot save without it.
export OMPI_MCA_odls_base_sigkill_timeout="${OMPI_MCA_odls_base_sigkill_timeout:-0}"
ssh_name=""
if [[ "$(readlink -f "$(command -v mpirun)")" == *orterun ]]; then ssh_name=ssh; fi  # Open MPI 4

# Writes the nodes of HOSTFILE that are not excluded (scripts/launching.sh) to $hostfile, and sets `nodes` to their number.
choose_nodes() {
  local -a all=() out=()
  nodes=1
  [[ -n "${HOSTFILE:-}" ]] || return 0
  [[ -f "$HOSTFILE" && -r "$HOSTFILE" ]] || refuse "HOSTFILE is $HOSTFILE, which cannot be read, expected a file with one node per line"
  mapfile -t all < <(grep -vE '^[[:space:]]*(#|$)' "$HOSTFILE" | mark_excluded "$octavo" "$@")
  ((${#all[@]})) || refuse "HOSTFILE is $HOSTFILE, which names no node, expected one per line"
  mapfile -t out < <(marked_nodes "${all[@]}")
  say_left_out "${out[@]}"
  nodes=$((${#all[@]} - ${#out[@]}))
  ((nodes)) || refuse "every node of $HOSTFILE is in excluded_hosts of checkpoint.dir"
  printf '%s\n' "${all[@]}" | sed -n 's/^+//p' >"$hostfile"
}

# Waits until mpirun with the process number $1 has ended, and then ends what it has left on this machine. Kills mpirun if one of these
# conditions has lasted for $3 seconds: a rank or an ssh process that mpirun has started on this machine has ended, this script has ended,
# this function has got SIGUSR2, or $2 seconds have passed (0 means no limit). The function and its sleeps ignore the
# signals that may go to a whole process group, because the run then saves, which may take any time.
guard() {
  local mpirun="$1" limit="$2" patience="$3" waited=0 left="$3" told="" late child name
  local -a children=()
  local -A seen=()  # The keys are the process ids of ranks and ssh processes that have been seen.
  trap '' INT USR1 TERM
  trap 'told=yes' USR2
  while kill -0 "$mpirun" 2>/dev/null; do
    read -ra children -d '' < <(cat /proc/"$mpirun"/task/*/children 2>/dev/null) || true
    late="$told"
    for child in "${children[@]}"; do
      { read -r name <"/proc/$child/comm"; } 2>/dev/null || continue
      if [[ "$name" == "${octavo_name:0:15}" || "$name" == "$ssh_name" ]]; then seen[$child]=yes; fi
    done
    for child in "${!seen[@]}"; do
      [[ " ${children[*]} " == *" $child "* ]] || late=yes
    done
    if ((limit && waited >= limit)); then late=yes; fi
    # mpirun ignores the signal that it gets at the end of this script (own_session) while it starts the ranks.
    kill -0 $$ 2>/dev/null || { late=yes; kill -USR1 "$mpirun" 2>/dev/null || true; }
    left=$((${#late} ? left - 1 : patience))
    if ((left < 0)); then
      if ((limit)); then
        echo "mpirun has not ended within $((limit + patience)) s and is killed" >&2
      else
        echo "$LAUNCHER: mpirun is killed, because it has not ended within $patience s after a rank or the connection to a node" >&2
      fi
      kill -KILL "$mpirun" 2>/dev/null || true
      break
    fi
    waited=$((waited + 1))
    sleep 1 2>/dev/null
  done
  kill -KILL "${children[@]}" 2>/dev/null || true
}

# guarded LIMIT_S COMMAND... runs a command with mpirun that should take at most LIMIT_S seconds.
guarded() {
  local limit="$1" code=0 mpirun guard
  shift
  "$@" </dev/null &
  mpirun=$!
  guard "$mpirun" "$limit" 5 >/dev/null &
  guard=$!
  disown "$guard"
  wait "$mpirun" 2>/dev/null || code=$?
  kill -KILL "$guard" 2>/dev/null || true
  return "$code"
}

# Succeeds if mpirun can start a process on the node named $1 within 30 s. Otherwise names the node and the first line of the reason.
answers() {
  local reason
  # shellcheck disable=SC2086  # meant to be split into words
  reason="$(guarded 25 "${MPIRUN[@]}" --host "$1" ${MPIRUN_ARGS:-} true 2>&1)" || {
    reason="$(grep -m 1 '^[[:alnum:]]' <<<"$reason")" || true
    echo "$LAUNCHER: $1 does not answer and is left out of this start: $reason" >&2
    return 1
  }
}

# Removes nodes that do not answer from $hostfile, and then all but the first NODES of the others. Updates `nodes`. Asks
# 32 nodes at a time. Fails if no node answers, and at the first start also if too few answer.
leave_out_lost_nodes() {
  local name answered wanted="${NODES:-$nodes}"
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
  awk -v wanted="$wanted" 'NR == FNR { answered[$1]; next } $1 in answered && used++ < wanted' "$answered" "$hostfile" >"$answered.left"
  mv "$answered.left" "$hostfile"
  rm -f "$answered"
  nodes="$(grep -c . "$hostfile")" || true
  ((nodes >= wanted || (nodes && starts > 1))) || {
    echo "$LAUNCHER: $nodes of $wanted nodes answer, so the run is not started" >&2
    return 1
  }
}

# make_command RANKS sets the array `command` to mpirun with RANKS ranks on each node of $hostfile.
make_command() {
  local ranks="$1" name
  make_mpirun "$((nodes * ranks))" "$ranks"
  command=("${MPIRUN[@]}" --map-by "ppr:$ranks:node")
  if [[ -n "${HOSTFILE:-}" ]]; then command+=(--hostfile "$hostfile"); fi
  # mpirun passes the variables of NCCL, UCX, libfabric and Open MPI to other nodes only if they are named. It refuses -x beside its own list.
  while IFS= read -r name; do
    [[ "$name" == OMPI_MCA_mca_base_env_list* ]] || command+=(-x "$name")
  done < <(compgen -e | grep -E '^(NCCL|UCX|FI|OMPI_MCA)_' || true)
  # shellcheck disable=SC2206  # meant to be split into words
  command+=(${MPIRUN_ARGS:-})
}
hostfile="$(mktemp)"
trap 'rm -f "$hostfile"' EXIT

stopping=""
reminders=""
mpirun="" guard=""
# mpirun ignores the signal while it starts the ranks, so the signal is sent again from the background. The ranks take repeated
# signals as one request.
request_stop() {
  kill -USR1 "$mpirun" 2>/dev/null || return 0
  trap '' TERM  # Otherwise SIGTERM to the process group would end remind().
  remind </dev/null >/dev/null 2>&1 &
  reminders=$!
  disown "$reminders"  # The shell then prints nothing when the reminders are killed.
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
    kill -USR2 "$guard" 2>/dev/null || true
  fi
}
trap 'on_signal TERM' TERM
trap 'on_signal INT' INT
trap 'on_signal USR1' USR1
trap '' HUP PIPE

# mpirun runs in its own session, because Ctrl-C would reach it otherwise. If this script is killed, the ranks are told to save and end.
own_session=(setsid)
if command -v setpriv >/dev/null 2>&1; then own_session+=(setpriv --pdeathsig USR1); fi
# Copies the standard error of mpirun, except for Open MPI's paragraphs about an end of a rank that octavo explains itself: a rank that
# returned an exit code other than 0, or a rank that SIGUSR1 killed before it had a handler. A paragraph about daemons that did not start
# appears when the connection to a node of a run is lost, so it is omitted, too. Messages about a crashed rank stay. If nobody
# reads the copy any more, the function still reads, so that mpirun does not fail. It ignores signals, which are meant for mpirun, and ends
# when mpirun ends.
filter_messages() {
  trap '' INT TERM
  sed -u -E '/^[a-z]+: Forwarding signal [0-9]+ to job$/ d
  /^-{74}$/ {
    N
    /\n-{74}$/ { P; D }
    /\n(Primary job +terminated normally, but|[a-z]+ detected that one or more processes exited with non-zero|[a-z]+ noticed that process rank .* exited on signal 10 |ORTE was unable to reliably start one or more daemons)/ {
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
  if [[ -n "${HOSTFILE:-}" ]]; then leave_out_lost_nodes || return 1; fi
  if [[ -n "$stopping" ]]; then return 3; fi
  if [[ -n "$check_first" ]]; then
    make_check "$octavo" "$per_node" "$@"
    command=()  # A single rank on this machine starts without mpirun, which is faster.
    if [[ -n "${HOSTFILE:-}" ]]; then make_command 1; fi
    check_nodes guarded 300 "${command[@]}" "${check[@]}" || code=$?
    if [[ -n "$stopping" ]]; then return 3; fi
    ((code == 0)) || return "$code"
  fi
  make_command "$per_node"
  exec {messages}> >(filter_messages)
  filter=$!
  "${own_session[@]}" "${command[@]}" "$octavo" train "$@" 2>&"$messages" {messages}>&- &
  mpirun=$!
  guard "$mpirun" 0 30 {messages}>&- >/dev/null &
  guard=$!
  disown "$guard"
  exec {messages}>&-
  # Handles a request to stop that arrived before mpirun existed.
  if [[ -n "$stopping" ]]; then request_stop; fi
  # A signal to this script interrupts `wait`, so `wait` is repeated until mpirun has ended. The last `wait` returns its status.
  while kill -0 "$mpirun" 2>/dev/null; do wait "$mpirun" 2>/dev/null || true; done
  wait "$mpirun" 2>/dev/null || code=$?
  mpirun=""  # The process number may be reused by now.
  while kill -0 "$filter" 2>/dev/null; do wait "$filter" || true; done
  kill -KILL "$guard" 2>/dev/null || true
  guard=""
  return "$code"
}

status=0
run_with_restarts "$octavo" run_once "$@"
if [[ -n "$reminders" ]]; then kill -KILL "$reminders" 2>/dev/null || true; fi
# SIGUSR1 kills a rank, or mpirun itself, that has just started and has no handler for it yet. Nothing is lost, because such a run has not
# trained.
if [[ -n "$stopping" ]] && ((status == 128 + $(kill -l USR1))); then status=3; fi
exit "$status"
