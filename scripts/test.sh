#!/usr/bin/env bash
# Installs what is missing, builds the program as users build it (with CUDA if a toolkit is found), and runs its tests with ctest.
# The last line has the counts. The exit code is 0 if nothing failed.
#
#   ./scripts/test.sh [OPTION...] [ctest arguments, e.g. -R RmsNorm]
#
#   --all             adds what continuous integration runs: the tests of the CPU program under AddressSanitizer and
#                     UndefinedBehaviorSanitizer, scripts/lint.sh, and FlashAttention's kernels, which nothing runs without a GPU
#   --no-sanitize     with --all, omits the sanitizers
#   --lint            adds only scripts/lint.sh
#   --quick           runs only the tests of single functions and classes
#   --nightly         runs only the nightly tests, which have more draws, kills and faults and take hours
#   --interop         runs only the test with the real Hugging Face packages, which follows the guide from text to
#                     lm-evaluation-harness. Installs torch, transformers and lm_eval (3 GB) into .deps/interop.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$OCTAVO_ROOT"

sanitize=0
no_sanitize=0
lint=0
interop=0
flash_attention="$(flash_attention_here)"
tier=()
while (($#)); do
  case "$1" in
    --all)
      sanitize=1
      lint=1
      flash_attention=ON
      ;;
    --no-sanitize) no_sanitize=1 ;;
    --lint) lint=1 ;;
    --quick) tier=(--label-regex quick) ;;
    --nightly) tier=(--build-config nightly --label-regex nightly) ;;
    --interop) interop=1 ;;
    *) break ;;
  esac
  shift
done

# Tests start ranks with mpirun. Without these variables it refuses to run as root or with more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

# Two tests run at a time, each with one thread per core. A waiting thread leaves its core to the others.
export OMP_WAIT_POLICY=passive

durations=""

# took PART COMMAND... runs a command and adds its seconds to the list that is printed at the end.
took() {
  local part="$1" began=$SECONDS status=0
  shift
  "$@" || status=$?
  durations+="$part $((SECONDS - began)) s, "
  return "$status"
}

# build_and_test PRESET BUILD_DIR [ctest arguments] builds the preset and runs its tests.
build_and_test() {
  local preset="$1" build_dir="$2"
  shift 2
  say "Building: preset $preset"
  took "$preset: configure" cmake --preset "$preset" "-DOCTAVO_FLASH_ATTENTION=$flash_attention"
  took "build" cmake --build --preset "$preset"
  say "Testing: preset $preset"
  # Failures are counted at the end, so that the failure of one build does not hide that of the other.
  took "tests" ctest --preset "$preset" --output-junit "$OCTAVO_ROOT/$build_dir/ctest.xml" "$@" || true
}

if ((interop)); then
  ./scripts/setup.sh --interop
  cmake --preset default
  cmake --build --preset default --target octavo
  exec .deps/interop/bin/python3 tests/scripts/interop_check.py build/octavo
fi

started=$SECONDS
took "set-up" ./scripts/setup.sh
rm -rf build/ctest.xml build/results build-sanitize/ctest.xml build-sanitize/results
if [[ $flash_attention == OFF ]]; then
  echo "This machine has no GPU, so the program is built without FlashAttention's kernels; cmake --preset default builds them for other machines"
fi
build_and_test ci build "${tier[@]}" "$@"
reports=(build/ctest.xml)
if ((sanitize && !no_sanitize)); then
  # The checks of the sources have already run, and tests that need a GPU cannot run in this build.
  build_and_test sanitize build-sanitize --label-exclude 'sources|long' "${tier[@]}" "$@"
  reports+=(build-sanitize/ctest.xml)
fi
lint_status=0
if ((lint)); then took lint ./scripts/lint.sh || lint_status=$?; fi

say "Result after $((SECONDS - started)) s: ${durations%, }"
if ((lint_status == 77)); then
  echo "SKIPPED: clang-tidy, which is missing"
  lint_status=0
fi
if ((lint_status)); then echo "FAILED: scripts/lint.sh found something, see above"; fi
python3 scripts/count_tests.py "${reports[@]}"
exit "$lint_status"
