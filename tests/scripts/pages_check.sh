#!/usr/bin/env bash
# Runs the checks of the scripts of app/report in Node. The exit code is 77 (skipped) if Node is not installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if ! command -v node >/dev/null 2>&1; then
  echo "skipped: node is not installed"
  exit 77
fi
exec node tests/app/report/page_check.js
