#!/usr/bin/env bash
# Checks that the C++ and CUDA sources are formatted as .clang-format says. --fix formats them instead. Formatting differs between
# versions of clang-format, so only version 14 is used. Without it the check is skipped (exit code 77).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$OCTAVO_ROOT"

formatter=""
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null 2>&1 && "$candidate" --version | grep -q 'version 14\.'; then
    formatter="$candidate"
    break
  fi
done
if [[ -z "$formatter" ]]; then
  echo "skipped: clang-format 14 is not installed"
  exit 77
fi

mapfile -d '' -t files < <(find app checkpoint model parallel data kernels core tests -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)
if [[ "${1:-}" == --fix ]]; then
  "$formatter" -i "${files[@]}"
else
  unformatted="$("$formatter" --dry-run "${files[@]}" 2>&1 | sed -n 's/:[0-9]*:[0-9]*: warning: code should.*//p' | uniq -c)"
  if [[ -n "$unformatted" ]]; then
    printf 'places, file:\n%s\n' "$unformatted"
    die "these files are not formatted: run scripts/check_format.sh --fix"
  fi
  echo "${#files[@]} files are formatted"
fi
