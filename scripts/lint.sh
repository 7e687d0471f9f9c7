#!/usr/bin/env bash
# Format, layering, shell and clang-tidy checks.
#
#   ./scripts/lint.sh [FILE...]     FILEs: only these .cpp files
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$OCTAVO_ROOT"

say "Format"
./scripts/check_format.sh || [[ $? -eq 77 ]]
say "Layers"
python3 scripts/check_layers.py
if command -v shellcheck >/dev/null 2>&1; then
  say "Shell"
  shellcheck -x -S warning scripts/*.sh .ci/run
fi

command -v clang-tidy >/dev/null 2>&1 || die "clang-tidy is not installed: run scripts/setup.sh"
# A configuration of its own: each file by itself, with the headers that it includes, as a build has them in one piece.
build_dir=build-lint
cmake --preset default -B "$build_dir" -DCMAKE_UNITY_BUILD=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
# The GPU files need CUDA's own compiler and headers; the rest of the sources are checked.
if (($#)); then
  files=("$@")
else
  mapfile -t files < <(find app checkpoint model parallel data kernels core -name '*.cpp' | grep -vE '_(cuda|cublaslt|cudnn|nccl)\.cpp$' | sort)
fi
say "clang-tidy on ${#files[@]} files"
# GCC's warnings are judged by GCC. clang finds omp.h only in GCC's own folder, which comes last.
OMP_INCLUDE="$(dirname "$(g++ -print-file-name=include/omp.h)")"
export BUILD_DIR="$build_dir" OMP_INCLUDE
unread="$(mktemp)"
trap 'rm -f "$unread"' EXIT
export UNREAD="$unread"

# GCC decides what is C++: a file that this clang is too old to read (structured bindings captured by a lambda need clang 16)
# is named and not checked.
tidy_file() {
  local findings
  findings="$(clang-tidy -p "$BUILD_DIR" --quiet --extra-arg=-Wno-everything "--extra-arg=-idirafter$OMP_INCLUDE" "$1" 2>/dev/null)" &&
    return 0
  if grep -q 'clang-diagnostic-error' <<<"$findings"; then
    printf 'not checked, %s\n' "$(grep -m 1 'clang-diagnostic-error' <<<"$findings")" | tee -a "$UNREAD"
    return 0
  fi
  printf '%s\n' "$findings"
  return 1
}
export -f tidy_file
# shellcheck disable=SC2016  # expanded by the inner shell
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'tidy_file "$1"' tidy || die "clang-tidy found the above"
((2 * $(wc -l <"$unread") <= ${#files[@]})) || die "clang-tidy could read less than half of the files"
echo "lint: no findings in $((${#files[@]} - $(wc -l <"$unread"))) files"
