#!/usr/bin/env bash
# Shows Octavo in a few minutes. Installs what is missing, builds, packs the C and C++ headers of this machine, trains
# configs/quickstart.yaml on them, draws the loss curve, and prints a sample.
#
#   ./scripts/quickstart.sh [section.key=value ...]     e.g. training.steps=1000 for a better model
#
# Uses two ranks on the CPU, or one rank per GPU and at most two. All output is in runs/quickstart, which is replaced each time.
# Fails if the model does not learn more than a table of byte pairs would.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$OCTAVO_ROOT"

octavo=build/octavo
run_dir=runs/quickstart
corpus_mib=60

build() {
  ./scripts/setup.sh
  say "Building"
  cmake --preset default "-DOCTAVO_FLASH_ATTENTION=$(flash_attention_here)"
  cmake --build --preset default --target octavo
}

# Lists the headers, thinned evenly to at most corpus_mib, so that no single library fills the corpus. Names without an extension
# are headers only in the folders of the C++ standard library. Boost is left out,
# because it would be most of the headers. Files with a NUL byte are left out, because they are not text. grep -L lists the files
# without one, and its exit code is ignored. Files of more than 128 KiB, mostly generated tables, are left out too, because a few of
# them would decide how similar the held-out files are to the others.
list_headers() {
  find /usr/include -path /usr/include/boost -prune -o -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.hh' -o -name '*.hxx' -o \
    \( -path '/usr/include/c++/*' ! -name '*.*' \) \) -readable -size -128k -print0 |
    { LC_ALL=C xargs -0 grep -LaP '\x00' || true; } | LC_ALL=C sort | xargs -d '\n' stat --format '%s %n' |
    awk -v limit=$((corpus_mib * 1024 * 1024)) '
      { total += $1; sub(/^[0-9]+ /, ""); name[NR] = $0 }
      END {
        share = total > limit ? limit / total : 1
        for (i = 1; i <= NR; ++i) if (int(i * share) > int((i - 1) * share)) print name[i]
      }'
}

pack() {
  say "Packing the C and C++ headers under /usr/include"
  list_headers >"$run_dir/headers.txt"
  [[ -s "$run_dir/headers.txt" ]] || die "no headers under /usr/include"
  "$octavo" pack --input-list "$run_dir/headers.txt" --output "$run_dir/data/train" \
    --hold-out-every 20 --hold-out-output "$run_dir/data/held_out" --overwrite
  "$octavo" inspect "$run_dir/data/held_out" | tee "$run_dir/held_out.txt"
  bigram_entropy="$(sed -n 's/.*bigram[a-z_]*"\?[: ]*\([0-9][0-9.]*\).*/\1/p' "$run_dir/held_out.txt" | head -n 1)"
  [[ -n "$bigram_entropy" ]] || die "octavo inspect printed no bigram entropy"
}

train() {
  local ranks=2 gpus=0
  if grep -q 'kHasCuda = true' build/generated/build_config.h; then gpus="$(count_gpus)"; fi
  if ((gpus > 0)); then ranks=$((gpus < 2 ? gpus : 2)); fi
  make_mpirun "$ranks"
  say "Training on $ranks ranks, $gpus GPUs"
  printf '%s ' "${MPIRUN[@]}" "$octavo" train configs/quickstart.yaml "$@"
  printf '\n\n'
  "${MPIRUN[@]}" "$octavo" train configs/quickstart.yaml "$@"
}

plot() {
  local python
  if python="$(python_with matplotlib)"; then
    say "Loss curve"
    "$python" scripts/plot_metrics.py "$log_dir/metrics.jsonl" --bigram-entropy "$bigram_entropy" --output "$run_dir/loss.png"
  else
    say "No loss curve: Python's matplotlib is not installed (apt-get install python3-matplotlib)"
  fi
}

sample() {
  local checkpoint
  checkpoint="$(find "$checkpoint_dir" -maxdepth 1 -name 'step_*' | sort | tail -n 1)"
  [[ -n "$checkpoint" ]] || die "no checkpoint in $checkpoint_dir"
  say "A sample from $checkpoint"
  "$octavo" generate "$checkpoint" --prompt $'#ifndef _LINUX_' --max-tokens 600 --temperature 0.7
  echo
}

compare() {
  local loss training_loss
  loss="$(python3 scripts/plot_metrics.py "$log_dir/metrics.jsonl" --print-validation)"
  training_loss="$(python3 scripts/plot_metrics.py "$log_dir/metrics.jsonl" --print-training)"
  say "Result after $((SECONDS - built_at)) s"
  printf 'training loss     %s nats a byte, the mean of the last tenth of the logged steps\n' "$training_loss"
  printf 'validation loss   %s nats a byte, of windows spread over all held-out files\n' "$loss"
  printf 'bigram entropy    %.4f nats a byte, of the same held-out files\n' "$bigram_entropy"
  awk -v loss="$loss" -v bigram="$bigram_entropy" 'BEGIN { exit !(loss < bigram) }' ||
    die "the validation loss is not below the bigram entropy: the model has not learned enough"
  echo "The model predicts held-out code better than any table of byte pairs could."
}

for argument in "$@"; do
  [[ "$argument" == [!-]*=* ]] || refuse "the argument is '$argument', expected section.key=value"
done
build
built_at=$SECONDS
# A wrong override is refused here, before the last run is deleted.
log_dir="$("$octavo" config configs/quickstart.yaml "$@" --value logging.dir)"
checkpoint_dir="$("$octavo" config configs/quickstart.yaml "$@" --value checkpoint.dir)"
rm -rf "$run_dir"
mkdir -p "$run_dir/data"
pack
train "$@"
plot
sample
compare
