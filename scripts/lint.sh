#!/usr/bin/env bash
# Format, layering, shell and clang-tidy checks. clang-tidy reads the compile database of a configured build.
#
#   ./scripts/lint.sh [BUILD_DIR] [FILE...]     BUILD_DIR: build by default; FILEs: only these .cpp files
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$OCTAVO_ROOT"
build_dir="${1:-build}"
shift || true

say "Format"
./scripts/check_format.sh || [[ $? -eq 77 ]]
say "Layers"
python3 scripts/check_layers.py
if command -v shellcheck >/dev/null 2>&1; then
  say "Shell"
  shellcheck -x -S warning scripts/*.sh .ci/run
fi

command -v clang-tidy >/dev/null 2>&1 || die "clang-tidy is not installed: run scripts/setup.sh"
[[ -e "$build_dir/compile_commands.json" ]] || die "$build_dir/compile_commands.json is missing: run cmake --preset cpu first"
# The GPU files need CUDA's own compiler and headers; the rest of the sources are checked.
if (($#)); then
  files=("$@")
else
  mapfile -t files < <(find app model parallel data kernels -name '*.cpp' | grep -vE '_(cuda|cublaslt|cudnn|nccl)\.cpp$' | sort)
fi
say "clang-tidy on ${#files[@]} files"
# GCC's warnings are judged by GCC. clang finds omp.h only in GCC's own folder, which comes last.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p "$build_dir" --quiet --extra-arg=-Wno-everything \
  --extra-arg=-idirafter"$(dirname "$(g++ -print-file-name=include/omp.h)")" 2> >(grep -v 'warnings\? generated\|Suppressed' >&2)
echo "lint: no findings"
