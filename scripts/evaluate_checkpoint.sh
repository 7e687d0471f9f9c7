#!/usr/bin/env bash
# Evaluates a checkpoint with lm-evaluation-harness, as a checkpoint.command. Exports $OCTAVO_CHECKPOINT to a temporary directory,
# runs the tasks, and prints their numbers as one JSON object, which the run takes into its metrics.
#
#   octavo train CONFIG.yaml 'checkpoint.command="/path/to/octavo/scripts/evaluate_checkpoint.sh --tasks hellaswag --device cpu"'
#
#   LM_EVAL=.deps/lm_eval/bin/lm_eval   program of the harness (docs/evaluation.md). The arguments are its arguments
#   OCTAVO=build/octavo
#   DTYPE=float32                       dtype in which transformers computes
#
# The task files of scripts/lm_eval are known too. They read own_text.jsonl and own_questions.jsonl in the folder of the run.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

octavo="${OCTAVO:-$OCTAVO_ROOT/build/octavo}"
lm_eval="${LM_EVAL:-$OCTAVO_ROOT/.deps/lm_eval/bin/lm_eval}"
: "${OCTAVO_CHECKPOINT:?is not set; checkpoint.command sets it}"
command -v "$lm_eval" >/dev/null || die "there is no $lm_eval; set LM_EVAL"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
"$octavo" export "$OCTAVO_CHECKPOINT" "$scratch/model"
"$lm_eval" --model hf --model_args "pretrained=$scratch/model,dtype=${DTYPE:-float32}" --include_path "$OCTAVO_ROOT/scripts/lm_eval" \
  --output_path "$scratch/results" "$@"
python3 - "$scratch/results" <<'PYTHON'
import json
import sys
from pathlib import Path

(path,) = Path(sys.argv[1]).rglob("results_*.json")
results = json.loads(path.read_text(encoding="utf-8"))["results"]
# The harness names a metric "acc,none", after its filter.
print(json.dumps({task: {name.removesuffix(",none"): value for name, value in numbers.items() if isinstance(value, float)}
                  for task, numbers in results.items()}))
PYTHON
