#!/usr/bin/env bash
# Checks format, layers, English and shell scripts, and runs clang-tidy.
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
say "English"
python3 scripts/check_english.py
if command -v shellcheck >/dev/null 2>&1; then
  say "Shell"
  shellcheck -x -S warning scripts/*.sh .ci/run
fi

command -v clang-tidy >/dev/null 2>&1 || die "clang-tidy is not installed: run scripts/setup.sh"
# Configures separate build folders without the GPU files, which need CUDA's compiler and headers. All sources are read as the
# unity build joins them, in a fifth of the time. Named files are read separately.
configure() { cmake --preset cpu -B "$1" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_UNITY_BUILD="$2" >/dev/null; }
if (($#)); then
  build_dir=build-lint/single
  configure "$build_dir" OFF
  files=("$@")
else
  build_dir=build-lint/joined
  configure "$build_dir" ON
  mapfile -t files < <(find "$build_dir"/{app,checkpoint,model,parallel,data,kernels,core} -path '*/Unity/*.cxx' | sort)
fi
say "clang-tidy on ${#files[@]} files"
# Ignores GCC's warnings, which GCC checks. clang finds omp.h only in GCC's folder, which comes last.
OMP_INCLUDE="$(dirname "$(g++ -print-file-name=include/omp.h)")"
export BUILD_DIR="$build_dir" OMP_INCLUDE
unread="$(mktemp)"
trap 'rm -f "$unread"' EXIT
export UNREAD="$unread"

# Checks a file. A unity file is checked as a whole if this clang can read it, and otherwise file by file. A file that this clang
# is too old to read (structured bindings captured by a lambda need clang 16) is named and not checked, because GCC decides what
# is valid C++.
tidy_file() {
  local findings part status=0
  local -a joins=() checks=()
  if [[ "$1" == */Unity/* ]]; then
    mapfile -t joins < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$1")
    checks=(--checks=-bugprone-suspicious-include '--header-filter=/(app|checkpoint|model|parallel|data|kernels|core)/[^ ]*\.(h|cpp)$')
  fi
  findings="$(clang-tidy -p "$BUILD_DIR" --quiet "${checks[@]}" --extra-arg=-Wno-everything "--extra-arg=-idirafter$OMP_INCLUDE" "$1" 2>/dev/null)" &&
    return 0
  if ! grep -q 'clang-diagnostic-error' <<<"$findings"; then
    printf '%s\n' "$findings"
    return 1
  fi
  if ((${#joins[@]} == 0)); then
    printf 'not checked, %s\n' "$(grep -m 1 'clang-diagnostic-error' <<<"$findings")" | tee -a "$UNREAD"
    return 0
  fi
  for part in "${joins[@]}"; do tidy_file "$part" || status=1; done
  return "$status"
}
export -f tidy_file
# shellcheck disable=SC2016  # expanded by the inner shell
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'tidy_file "$1"' tidy || die "clang-tidy found the above"
sources="$(find app checkpoint model parallel data kernels core -name '*.cpp' | wc -l)"
((2 * $(wc -l <"$unread") <= sources)) || die "clang-tidy could read less than half of the files"
echo "lint: no findings; $(wc -l <"$unread") files were not checked"
