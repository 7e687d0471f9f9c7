#!/usr/bin/env bash
# The shell scripts parse, and shellcheck finds nothing in them where it is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for script in scripts/*.sh tests/scripts/*.sh .ci/run; do bash -n "$script"; done
if ! command -v shellcheck >/dev/null 2>&1; then
  echo "skipped: shellcheck is not installed"
  exit 77
fi
shellcheck -x -S warning scripts/*.sh tests/scripts/*.sh .ci/run
