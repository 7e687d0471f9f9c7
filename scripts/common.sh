# shellcheck shell=bash
# Sourced by the other scripts. It prints the help of the script if its first argument asks for it, sets the path of the checkout and
# defines a few shared functions.

# Prints the comment at the beginning of the script.
print_help() { sed -n '2,/^[^#]/ { /^#SBATCH\|^# shellcheck/ d; s/^# \{0,1\}//p }' "$0"; }
case "${1:-}" in
  -h | --help)
    print_help
    exit 0
    ;;
esac

# shellcheck disable=SC2034  # used by the scripts that source this file
OCTAVO_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# Prints the path of the program: $OCTAVO, the program of this checkout, or that of the installation that these scripts belong to.
find_octavo() {
  local installed="$OCTAVO_ROOT/../../bin/octavo"
  if [[ -z "${OCTAVO:-}" && ! -e "$OCTAVO_ROOT/build/octavo" && -x "$installed" ]]; then
    readlink -f "$installed"
  else
    printf '%s\n' "${OCTAVO:-$OCTAVO_ROOT/build/octavo}"
  fi
}

say() { printf '\n== %s\n' "$*"; }

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Prints an error of the caller like die, and exits with code 2.
refuse() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

# Prints the first Python that can import the given modules: OCTAVO_PYTHON, the one in .deps/venv, or python3. Fails if there is
# none. A python3 that comes first on PATH (pyenv, conda) does not see the packages that apt installs for /usr/bin/python3.
python_with() {
  local python
  for python in "${OCTAVO_PYTHON:-}" "$OCTAVO_ROOT/.deps/venv/bin/python3" python3 /usr/bin/python3; do
    if [[ -n "$python" ]] && command -v "$python" >/dev/null 2>&1 && "$python" -c "import $1" >/dev/null 2>&1; then
      printf '%s\n' "$python"
      return 0
    fi
  done
  return 1
}

# Prints the directory of the CUDA toolkit's nvcc, if there is one.
find_nvcc() {
  local candidate
  for candidate in "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    if [[ -x "$candidate" ]]; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

# Prints the number of GPUs that this process can use, 0 without a driver.
count_gpus() {
  if [[ -n "${CUDA_VISIBLE_DEVICES+set}" && -z "$CUDA_VISIBLE_DEVICES" ]] || ! command -v nvidia-smi >/dev/null 2>&1; then
    echo 0
    return
  fi
  local gpus
  gpus="$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)"
  if [[ -n "${CUDA_VISIBLE_DEVICES:-}" ]]; then
    local -a visible
    IFS=, read -r -a visible <<<"$CUDA_VISIBLE_DEVICES"
    gpus=$((${#visible[@]} < gpus ? ${#visible[@]} : gpus))
  fi
  echo "$gpus"
}

# Prints ON or OFF, whether to build FlashAttention. Its kernels take a third of the build, and nothing runs them without a GPU.
flash_attention_here() {
  if (($(count_gpus))); then echo ON; else echo OFF; fi
}

# Sets the array MPIRUN to the mpirun command that starts $1 ranks, $2 of them on this machine (by default all). The caller appends
# the program. Ranks are not bound to single cores, because each rank runs OMP_NUM_THREADS threads.
make_mpirun() {
  local ranks="$1" here="${2:-$1}" cores threads
  cores="$(nproc)"
  threads=$((cores / here > 0 ? cores / here : 1))
  MPIRUN=(mpirun -n "$ranks" --bind-to none)
  if [[ "$(id -u)" -eq 0 ]]; then MPIRUN+=(--allow-run-as-root); fi
  if ((cores < here)); then MPIRUN+=(--oversubscribe); fi
  MPIRUN+=(-x "OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}")
}
