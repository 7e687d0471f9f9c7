# shellcheck shell=bash
# Sourced by the launchers after common.sh. It defines their options, the exclusion and the check of nodes, and the restarts of a run
# that died.
#
# Options before the config: `--no-check` disables the check of the nodes. `--restarts N` allows N restarts in total, and
# $MAX_IDLE_RESTARTS in a row without a newer checkpoint than at the failed start, so that a run that always fails ends. Exit
# codes 0 (done) and 3 (stopped by a signal after saving) are final, and so is 2 (bad input) at the first start.

MAX_IDLE_RESTARTS=3
restarts=0
check_first=yes
while [[ "${1:-}" == -* ]]; do
  case "$1" in
    -h | --help)
      print_help
      exit 0
      ;;
    --restarts)
      [[ "${2:-}" =~ ^[0-9]{1,6}$ ]] || {
        echo "$LAUNCHER: --restarts is '${2:-}', expected a number" >&2
        exit 2
      }
      restarts=$((10#$2))
      shift 2
      ;;
    --no-check)
      check_first=""
      shift
      ;;
    *)
      echo "$LAUNCHER: there is no option $1, expected --restarts N or --no-check, and then the config" >&2
      exit 2
      ;;
  esac
done

# config_value KEY PROGRAM CONFIG [override...] prints the value of a key, or nothing if the config cannot be read.
config_value() {
  local key="$1" octavo="$2"
  shift 2
  "$octavo" config --value "$key" "$@" 2>/dev/null || true
}

# checkpoint_dir PROGRAM CONFIG [override...] prints the directory of its checkpoints, as a path that cannot be taken for an
# option.
checkpoint_dir() {
  local dir
  dir="$(config_value checkpoint.dir "$@")"
  if [[ "$dir" == -* ]]; then dir="./$dir"; fi
  printf '%s' "$dir"
}

# excluded_hosts PROGRAM CONFIG [override...] prints the machines that training.on_corruption: exclude has named, one per line.
excluded_hosts() {
  local dir
  dir="$(checkpoint_dir "$@")"
  if [[ -n "$dir" && -r "$dir/excluded_hosts" ]]; then sed -e 's/[[:space:]]*#.*//' -e '/^$/d' "$dir/excluded_hosts" | sort -u; fi
}

# mark_excluded PROGRAM CONFIG [override...] copies standard input, where each line begins with the name of a node. It puts "-" before a
# line if excluded_hosts names the node, and "+" otherwise. Only the names without domains are compared.
mark_excluded() {
  awk 'function short(name) { if (name !~ /^[0-9.]+$/) sub(/[.].*/, "", name); return name }
       NR == FNR { excluded[short($1)]; next } { print (short($1) in excluded ? "-" : "+") $0 }' <(excluded_hosts "$@"; echo) -
}

# marked_nodes LINE... prints the nodes of those lines of mark_excluded that are excluded, one per line.
marked_nodes() { printf '%s\n' "$@" | sed -n 's/^-[[:space:]]*\([^[:space:]]*\).*/\1/p'; }

# say_left_out NODE... prints one line for each node that excluded_hosts names.
say_left_out() {
  local node
  for node in "$@"; do echo "$LAUNCHER: $node is left out: excluded_hosts of checkpoint.dir names it" >&2; done
}

# make_check PROGRAM RANKS CONFIG [override...] sets the array `check` to the command that checks the node on which it runs, for
# RANKS ranks of the run. 0 means an unknown number.
make_check() {
  local octavo="$1" ranks="$2" dir
  shift 2
  check=("$octavo" doctor --quick)
  if ((ranks)); then check+=(--ranks-per-node "$ranks"); fi
  dir="$(checkpoint_dir "$octavo" "$@")"
  if [[ -n "$dir" ]]; then check+=(--disk "$dir"); fi
  # A run on CPUs does not depend on GPUs.
  if [[ "$(config_value device "$octavo" "$@")" == cpu ]]; then check=(env CUDA_VISIBLE_DEVICES= "${check[@]}"); fi
}

# check_nodes COMMAND... runs the check with one process per node and prints its findings. Fails if a node is unfit.
check_nodes() {
  local output code=0 findings
  [[ -n "$check_first" ]] || return 0
  output="$("$@" 2>&1)" || code=$?
  findings="$(grep -E '^(PROBLEM|warning) ' <<<"$output" || true)"
  # If there is no finding, prints the output of the program, mpirun or srun.
  if ((code)) && ! grep -q ^PROBLEM <<<"$findings"; then findings="$output"; fi
  if [[ -n "$findings" ]]; then printf '%s\n' "$findings" >&2; fi
  ((code == 0)) || {
    echo "$LAUNCHER: the check of the nodes failed, and the run was not started: fix what it names, write a node into excluded_hosts of" \
      "checkpoint.dir to leave it out, or start without the check (--no-check)" >&2
    return 1
  }
}

# newest_checkpoint PROGRAM CONFIG [override...] prints the time of the newest checkpoint and the path of its manifest in
# checkpoint.dir, which change with every checkpoint. Prints nothing if there is none, or if the config cannot be read.
newest_checkpoint() {
  local dir
  dir="$(checkpoint_dir "$@")"
  [[ -n "$dir" ]] || return 0
  find "$dir/" -mindepth 2 -maxdepth 2 -path "*/step_*/manifest.json" -printf '%T@ %P\n' 2>/dev/null | sort -n | tail -n 1 || true
}

# run_with_restarts PROGRAM RUN CONFIG [override...] calls the function RUN with CONFIG and the overrides until RUN
# returns a final exit code, no restart is left, or $stopping is set. Sets `status` to the last exit code, or to 3 if
# $stopping is set when a killed run would be restarted. A run with a checkpoint of its own resumes it, whatever its
# checkpoint.resume says.
run_with_restarts() {
  local octavo="$1" run="$2" done=0 idle=0 failed=0 first before now cause saved
  shift 2
  local -a again=()
  first="$( ((restarts == 0)) || newest_checkpoint "$octavo" "$@")"
  before="$first"
  while true; do
    status=0
    "$run" "$@" "${again[@]}" || status=$?
    # A run that failed after its last checkpoint, for example because lines of its metrics are lost, has nothing left to do when it is
    # started again, but it has failed nevertheless.
    if ((status == 0 && failed == 1)) && [[ "$(newest_checkpoint "$octavo" "$@")" == "$before" ]]; then status=1 restarts=$done; fi
    # A restart may end with 2 because a lost node still holds the lock of the run, or because too few nodes are left for its batch.
    if ((status == 0 || status == 3 || (status == 2 && done == 0))); then return; fi
    failed=$status
    ((restarts)) || return 0
    cause="exit code $status"
    if ((status > 128)) && kill -l $((status - 128)) >/dev/null 2>&1; then cause="SIG$(kill -l $((status - 128)))"; fi
    if [[ -n "${stopping:-}" ]]; then
      ((status > 128 && done < restarts)) || return 0
      status=3
      # SIGUSR1 and SIGTERM end ranks that have not trained yet.
      [[ "$cause" == SIG@(USR1|TERM) ]] || echo "$LAUNCHER: the run ended by $cause, and the request to stop prevents its restart" >&2
      return
    fi
    now="$(newest_checkpoint "$octavo" "$@")"
    if [[ -n "$now" && "$now" != "$before" ]]; then idle=0; else idle=$((idle + 1)); fi
    # If there is no checkpoint now, but there was one at first, the run has moved another run's checkpoints to earlier/
    # and died before it saved its own. It must not resume then.
    if [[ -n "$now" && "$now" != "$first" ]]; then again=(checkpoint.resume=auto); fi
    if ((done == restarts)); then
      echo "$LAUNCHER: the run ended by $cause after $done restarts, as many as --restarts allows" >&2
      return
    fi
    if ((idle > MAX_IDLE_RESTARTS)); then
      echo "$LAUNCHER: the run ended by $cause $idle times in a row without a new checkpoint: not started again" >&2
      return
    fi
    done=$((done + 1))
    before="$now"
    saved="no checkpoint"
    if [[ -n "$now" ]]; then saved="$(basename "$(dirname "${now#* }")")"; fi
    echo "$LAUNCHER: the run ended by $cause: restart $done of $restarts; on the disk: $saved" >&2
    # After the first failure the run is restarted at once, because it may have a checkpoint in memory. After further
    # failures without a new checkpoint on the disk it is restarted after a pause, which grows with each of them.
    sleep "$((idle > 1 ? idle : 0))" &
    wait $! || true
    if [[ -n "${stopping:-}" ]]; then
      status=3  # The run has ended already, so there is nothing to save.
      return
    fi
  done
}
