#!/usr/bin/env bash
# Checks format, layers, English and shell scripts, and runs clang-tidy.
#
#   ./scripts/lint.sh [FILE...]     FILEs: only these .cpp files
#
# Exit code 77 means that nothing was found but clang-tidy is missing.
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

# Older versions cannot read all of C++20. Debian 12 calls version 14 clang-tidy.
tidy="$(command -v clang-tidy-19 || command -v clang-tidy || true)"
version="$("${tidy:-false}" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p' || true)"
if ((${version:-0} < 16)); then
  echo "lint: clang-tidy did not run, because version 16 or later is missing: run scripts/setup.sh" >&2
  exit 77
fi
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
say "$(basename "$tidy") on ${#files[@]} files"
# Ignores GCC's warnings, which GCC checks. clang finds omp.h only in GCC's folder, which comes last, and knows no arguments of the
# attribute malloc in it.
options=(-p "$build_dir" --quiet --checks=-bugprone-suspicious-include
  '--header-filter=/(app|checkpoint|model|parallel|data|kernels|core)/[^ ]*\.(h|cpp)$' --extra-arg=-Wno-everything
  "--extra-arg=-idirafter$(dirname "$(g++ -print-file-name=include/omp.h)")" '--extra-arg=-D__malloc__(...)=')
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" "$tidy" "${options[@]}" 2>/dev/null || die "clang-tidy found the above"
echo "lint: no findings"
