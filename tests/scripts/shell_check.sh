#!/usr/bin/env bash
# Checks that the shell scripts parse, and that shellcheck finds nothing in them if it is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for script in scripts/*.sh tests/scripts/*.sh .ci/run; do bash -n "$script"; done
if ! command -v shellcheck >/dev/null 2>&1; then
  echo "skipped: shellcheck is not installed"
  exit 77
fi
shellcheck -x -S warning scripts/*.sh tests/scripts/*.sh .ci/run
