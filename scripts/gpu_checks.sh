#!/usr/bin/env bash
# Runs every check that needs a GPU. Compares kernels, golden cases and a short training run with the CPU, looks for memory errors,
# compares the modes of activation checkpointing, measures the throughput, tests the collectives, compares meshes of several
# ranks with one GPU, and looks for streams that do not wait for each other.
#
#   scripts/gpu_checks.sh [CHECK...]       CHECK is build, kernels, memcheck, golden, training, recompute, runs, ranks, order,
#                                          speed or bench. The default is all of them but speed, which
#                                          needs times that were recorded on a GPU of this kind (tests/gpu_speeds.json).
#
#   BUILD=build          build folder
#   OUT=runs/gpu_checks  folder of the logs, one per check
#   BENCH_CONFIG=...     config whose speed is measured (default: configs/llama3_1.8b_1gpu.yaml)
#   MEMCHECK_FILTER=...  GoogleTest filter of the tests under compute-sanitizer, which makes them far slower
#                        (default: the tests of ops on GPUs)
#   OCTAVO_DELAY_SEEDS=5 number of times that the check order repeats each run with other random delays
#
# Prints a table at the end. Exit code 1 means that a check failed. The other checks run nevertheless.
# shellcheck disable=SC2317  # the checks are called by name
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$OCTAVO_ROOT"

build="${BUILD:-build}"
out="${OUT:-runs/gpu_checks}"
gpu_tests='Gpu/*:*Parity*'
checks=("$@")
((${#checks[@]})) || checks=(build kernels memcheck golden training recompute runs ranks order bench)
mkdir -p "$out"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

check_build() {
  cmake --preset default -B "$build"
  cmake --build "$build"
  grep -q 'kHasCuda = true' "$build/generated/build_config.h" || {
    echo "this build has no CUDA backend; cmake says above what is missing"
    return 1
  }
}

# run_tests FOLDER FILTER [COMMAND before the executable...] fails if the filter selects nothing or a test is skipped, so that an
# empty run does not count as passed.
run_tests() {
  local executable="$build/tests/octavo_$1_tests" filter="$2" log="$scratch/$1.log"
  shift 2
  "$@" "$executable" --gtest_filter="$filter" --gtest_brief=0 2>&1 | tee "$log"
  grep -q '^\[  PASSED  \] [1-9]' "$log" && ! grep -q '^\[  SKIPPED \] [0-9]' "$log"
}

check_kernels() { run_tests kernels "$gpu_tests"; }

check_memcheck() {
  run_tests kernels "${MEMCHECK_FILTER:-$gpu_tests}" \
    compute-sanitizer --tool memcheck --error-exitcode 9 --launch-timeout 60
}

check_golden() { run_tests app '*Golden*_gpu'; }

pack_corpus() {
  [[ -e "$scratch/train.idx" ]] || "$build/octavo" pack --input app checkpoint model parallel kernels core data --output "$scratch/train" \
    --hold-out-every 20 --hold-out-output "$scratch/held_out"
}

# Trains thirty steps on the CPU in float32 and on the GPU in bfloat16. The losses of all steps must agree within 1%.
check_training() {
  local device
  pack_corpus
  for device in cpu cuda; do
    "$build/octavo" train configs/quickstart.yaml "device=$device" training.steps=30 training.micro_batch_size=8 \
      optimizer.lr=1.0e-3 logging.every=1 "logging.dir=$scratch/$device" \
      validation.every=30 "data.train=[{path: $scratch/train}]" "data.validation=[{path: $scratch/held_out}]"
  done
  python3 scripts/compare_metrics.py "$scratch/cpu/metrics.jsonl" "$scratch/cuda/metrics.jsonl" --tolerance 0.01
}

# Checks, for each recipe, that all modes of activation checkpointing give the same bits.
check_recompute() { run_tests app '*CheckpointingTest*'; }

# Runs the end-to-end tests of resumption, stages, rollbacks, fallbacks and checkpoints in memory with runs on GPUs.
check_runs() {
  OCTAVO_TEST_DEVICE=cuda python3 tests/app/end_to_end_test.py "$build/octavo" ResumeTest CrashTest GuardsTest PrecisionGuardTest \
    StagesTest InMemoryTest NonfiniteTest
}

# on_ranks N COMMAND... runs a command on N ranks with one GPU each. If there are fewer GPUs, the ranks share them: NCCL then
# takes each rank for a separate host and uses TCP, which is slow.
on_ranks() {
  local ranks="$1" gpus
  shift
  make_mpirun "$ranks"
  gpus="$(count_gpus)"
  if ((ranks <= gpus)); then
    "${MPIRUN[@]}" "$@"
  else
    # shellcheck disable=SC2016  # each rank expands its own variable
    "${MPIRUN[@]}" bash -c 'NCCL_HOSTID="$OMPI_COMM_WORLD_RANK" exec "$@"' -- "$@"
  fi
}

# train_mesh NAME RANKS [key=value ...] trains the quick start's model for eight steps.
train_mesh() {
  local name="$1" ranks="$2"
  shift 2
  on_ranks "$ranks" "$build/octavo" train configs/quickstart.yaml device=cuda training.steps=8 training.micro_batch_size=1 \
    training.global_batch_size=8 training.deterministic=true optimizer.lr=3.0e-4 logging.every=1 validation.every=0 \
    "logging.dir=$scratch/$name" "data.train=[{path: $scratch/train}]" \
    "data.validation=[]" "$@"
}

# Checks the collectives on GPUs, and sharding, tensor parallelism and pipeline stages against one GPU.
check_ranks() {
  local gpus ranks
  local -a sizes=(2)
  gpus="$(count_gpus)"
  ((gpus <= 2)) || sizes+=("$gpus")
  on_ranks 2 "$build/tests/octavo_parallel_ranks" --gtest_brief=1
  # Two ranks cannot show the order of a sum, because a sum of two terms has only one order.
  on_ranks 3 "$build/tests/octavo_parallel_ranks" --gtest_brief=1 --gtest_filter='*FsdpRanks*'
  on_ranks 2 "$build/tests/octavo_model_ranks" --gtest_brief=1
  # Compares random meshes on two GPUs, and on all GPUs if there are more, with one GPU.
  for ranks in "${sizes[@]}"; do
    OCTAVO_DRAWS="${OCTAVO_DRAWS:-40}" on_ranks "$ranks" "$build/tests/octavo_app_ranks" --gtest_brief=1 --gtest_filter='*Cuda'
  done
  pack_corpus
  train_mesh one 1
  train_mesh shards 2
  train_mesh tensor 2 parallel.tensor_parallel=2
  train_mesh stages 2 parallel.pipeline_parallel=2
  train_mesh zero_bubble 2 parallel.pipeline_parallel=2 parallel.pipeline_schedule=zero_bubble
  # Times the algorithms of matmuls, which deterministic runs do not, while pipeline stages depend on each other.
  on_ranks 2 "$build/octavo" bench configs/quickstart.yaml device=cuda parallel.pipeline_parallel=2 parallel.timeout_s=60
  python3 scripts/compare_metrics.py "$scratch/one/metrics.jsonl" "$scratch/shards/metrics.jsonl" --tolerance 1e-4
  python3 scripts/compare_metrics.py "$scratch/one/metrics.jsonl" "$scratch/tensor/metrics.jsonl" --tolerance 2e-3
  python3 scripts/compare_metrics.py "$scratch/one/metrics.jsonl" "$scratch/stages/metrics.jsonl" --tolerance 1e-4
  python3 scripts/compare_metrics.py "$scratch/one/metrics.jsonl" "$scratch/zero_bubble/metrics.jsonl" --tolerance 1e-4
}

# Checks that random delays of kernels, copies, collectives and events change no bit of drawn models on all GPUs, and of runs with
# stages, validation, saves in the background and rollbacks on one and two GPUs. Two ranks share a GPU if there is only one.
check_order() {
  local gpus log="$scratch/order.log"
  gpus="$(count_gpus)"
  OCTAVO_DRAWS="${OCTAVO_DRAWS:-16}" on_ranks $((gpus > 2 ? gpus : 2)) env LD_PRELOAD="$build/tests/liboctavo_stream_delays.so" \
    "$build/tests/octavo_app_ranks" --gtest_filter='*DelaysChangeNoBit/Cuda' 2>&1 | tee "$log"
  if grep -q SKIPPED "$log"; then return 1; fi
  OCTAVO_TEST_DEVICE=cuda python3 tests/app/end_to_end_test.py "$build/octavo" StreamOrderTest
}

# Fails if a step takes longer than the recorded steps of GPUs of this kind.
check_speed() { OCTAVO="$build/octavo" python3 scripts/check_speed.py; }

check_bench() { "$build/octavo" bench "${BENCH_CONFIG:-configs/llama3_1.8b_1gpu.yaml}"; }

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
results=()
failed=0
for check in "${checks[@]}"; do
  [[ "$(type -t "check_$check")" == function ]] || die "there is no check named $check"
  say "$check"
  started=$SECONDS
  # The subshell keeps `set -e`, which an `if` around the call would disable.
  set +e
  (
    set -e
    "check_$check"
  ) 2>&1 | tee "$out/$check.log"
  status=${PIPESTATUS[0]}
  set -e
  ((status == 0)) || failed=1
  results+=("$(printf '%-10s %-7s %5d s   %s' "$check" "$( ((status == 0)) && echo passed || echo FAILED)" \
    $((SECONDS - started)) "$out/$check.log")")
done

say "GPU checks on $(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 || echo 'no GPU')"
printf '%s\n' "${results[@]}" | tee "$out/summary.txt"
exit "$failed"
