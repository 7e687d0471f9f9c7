#!/usr/bin/env bash
# Installs the packages that building and testing Octavo needs on Debian 12 and Ubuntu 24.04. Skips packages that are installed
# already, so a second call takes a second. Never changes the system's Python packages with pip.
#
#   ./scripts/setup.sh [--tokenizing] [--interop]
#
# --tokenizing also makes .deps/venv with the Python packages that scripts/tokenize_hf.py needs to read text, Parquet and
# Zstandard.
#
# --interop makes .deps/interop with the Python packages of scripts/test.sh --interop.
#
# If a CUDA toolkit is present, it also fetches the header-only C++ frontend of cuDNN into .deps/cudnn_frontend, and the sources
# of FlashAttention-3 into .deps/flash_attention. Every download must have the checksum in this file. If a download fails, a
# sentence says so. Without the frontend CMake builds the CPU program, and without FlashAttention attention uses cuDNN only.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cudnn_frontend_version=1.18.0
# Hashes of the wheels for Python 3.12 on x86-64 and aarch64. The headers in them do not depend on the version of Python.
cudnn_frontend_hashes=(
  --hash=sha256:6c023539ca6de99234cf5102c3ec0d6af817f5396fc93028a22ba5b834a35b8a
  --hash=sha256:310b417f2848a83d1437203fcaeea320a74fb7f28af20bf42bf5afc9c01f1c12
)
# Versions of the last run of scripts/test.sh --interop (docs/evaluation.md).
interop_packages=(torch==2.15.0 transformers==5.24.0 'lm_eval[hf]==0.4.13' tokenizers==0.23.3)
frontend_dir="$OCTAVO_ROOT/.deps/cudnn_frontend"
flash_dir="$OCTAVO_ROOT/.deps/flash_attention"

# Each line has a test for an installed package and the name of the apt package. `cmd` looks on PATH, `hdr` asks the compiler for
# a header (so that a library installed by other means counts), and `py` asks for a Python module.
required="
cmd g++|build-essential
cmd make|build-essential
cmd cmake|cmake
cmd ninja|ninja-build
cmd pkg-config|pkg-config
cmd mpirun|openmpi-bin
cmd mpicc|libopenmpi-dev
cmd python3|python3
hdr yaml-cpp/yaml.h|libyaml-cpp-dev
hdr fmt/format.h|libfmt-dev
hdr spdlog/spdlog.h|libspdlog-dev
hdr CLI/CLI.hpp|libcli11-dev
hdr nlohmann/json.hpp|nlohmann-json3-dev
hdr xxhash.h|libxxhash-dev
hdr zlib.h|zlib1g-dev
hdr bzlib.h|libbz2-dev
hdr lzma.h|liblzma-dev
hdr zstd.h|libzstd-dev
hdr gtest/gtest.h|libgtest-dev
"
# Library for matrix multiplication on the CPU (cmake/Dependencies.cmake).
case "$(uname -m)" in
  x86_64) required+="hdr oneapi/dnnl/dnnl.h|libdnnl-dev
" ;;
  *) required+="hdr openblas-openmp/cblas.h|libopenblas-openmp-dev
" ;;
esac
# Octavo trains without these. The plot, the format check and the lint are skipped if they are missing.
optional="
cmd clang-format|clang-format
cmd clang-tidy-19|clang-tidy-19
py matplotlib|python3-matplotlib
"

has_header() {
  local dir
  for dir in /usr/include "/usr/include/$(uname -m)-linux-gnu" /usr/local/include; do
    [[ -e "$dir/$1" ]] && return 0
  done
  command -v g++ >/dev/null 2>&1 && printf '#include <%s>\n' "$1" | g++ -E -x c++ - >/dev/null 2>&1
}

is_there() {
  case "$1" in
    cmd) command -v "$2" >/dev/null 2>&1 ;;
    hdr) has_header "$2" ;;
    py) python_with "$2" >/dev/null ;;
  esac
}

# Prints the apt packages of the lines whose test fails, each once.
missing_packages() {
  local kind name package
  while IFS='| ' read -r kind name package; do
    [[ -z "$kind" ]] || is_there "$kind" "$name" || printf '%s\n' "$package"
  done <<<"$1" | sort -u
}

as_root() {
  if [[ "$(id -u)" -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    printf 'setup.sh: neither root nor sudo, so apt-get cannot install packages\n' >&2
    return 1
  fi
}

apt_updated=0
apt_install() {
  command -v apt-get >/dev/null 2>&1 || return 1
  if ((!apt_updated)); then
    as_root apt-get update -qq || printf 'setup.sh: apt-get update failed, trying with the package lists at hand\n' >&2
    apt_updated=1
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install_packages() {
  local -a packages
  mapfile -t packages < <(missing_packages "$required")
  if ((${#packages[@]})); then
    say "Installing ${packages[*]}"
    apt_install "${packages[@]}" || die "could not install ${packages[*]}; install them by hand and run this again"
  fi
  mapfile -t packages < <(missing_packages "$optional")
  if ((${#packages[@]})); then
    say "Installing ${packages[*]} (optional)"
    apt_install "${packages[@]}" || printf 'setup.sh: going on without %s\n' "${packages[*]}" >&2
  fi
}

check_cmake_version() {
  local version
  version="$(cmake --version | sed -n '1s/.*version //p')"
  if [[ "$(printf '%s\n3.25\n' "$version" | sort -V | head -n 1)" != 3.25 ]]; then
    die "CMake 3.25 or newer is needed, found $version"
  fi
}

has_cudnn_frontend() {
  local dir
  for dir in "$frontend_dir/include" "${CUDNN_FRONTEND_PATH:-}/include" "${CUDNN_FRONTEND_PATH:-}" /usr/include \
    /usr/local/include "$(dirname "$(dirname "$1")")/include"; do
    [[ -n "$dir" && -e "$dir/cudnn_frontend.h" ]] && return 0
  done
  return 1
}

# Extracts the headers from the wheel that NVIDIA publishes.
fetch_cudnn_frontend() {
  local python
  python="$(python_with pip)" || { apt_install python3-pip && python="$(python_with pip)"; } || return 1
  scratch="$(mktemp -d)"
  trap 'rm -rf "$scratch"' EXIT
  echo "nvidia-cudnn-frontend==$cudnn_frontend_version ${cudnn_frontend_hashes[*]}" >"$scratch/requirements.txt"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    --platform "manylinux_2_28_$(uname -m)" --dest "$scratch" --require-hashes -r "$scratch/requirements.txt" || return 1
  mkdir -p "$scratch/unpacked"
  "$python" -m zipfile -e "$scratch"/*.whl "$scratch/unpacked" || return 1
  [[ -e "$scratch/unpacked/include/cudnn_frontend.h" ]] || return 1
  mkdir -p "$frontend_dir"
  rm -rf "$frontend_dir/include"
  mv "$scratch/unpacked/include" "$frontend_dir/include"
}

# Tests for the sources that FLASH_ATTENTION_PATH names, or fetched sources of the right version.
has_flash_attention() {
  if [[ -n "${FLASH_ATTENTION_PATH:-}" ]]; then
    [[ -e "$FLASH_ATTENTION_PATH/hopper/flash_bwd_launch_template.h" ]]
  else
    [[ -e "$flash_dir/SHA256" && "$(cat "$flash_dir/SHA256")" == "$("$OCTAVO_ROOT/scripts/fetch_flash_attention.py" --version)" ]]
  fi
}

fetch_flash_attention() {
  local python
  python="$(python_with pip)" || python=python3
  "$python" "$OCTAVO_ROOT/scripts/fetch_flash_attention.py" "$flash_dir"
}

# make_venv NAME makes the Python environment .deps/NAME.
make_venv() {
  local venv="$OCTAVO_ROOT/.deps/$1"
  python3 -m venv "$venv" || { apt_install python3-venv && python3 -m venv "$venv"; }
}

make_interop_venv() {
  local python="$OCTAVO_ROOT/.deps/interop/bin/python3"
  "$python" -c "import lm_eval, torch, transformers" 2>/dev/null && return 0
  say "Installing torch, transformers and lm_eval into .deps/interop"
  make_venv interop && "$python" -m pip install --quiet --disable-pip-version-check "${interop_packages[@]}"
}

make_tokenizing_venv() {
  python_with "tokenizers, pyarrow, zstandard" >/dev/null && return 0
  say "Installing tokenizers, pyarrow and zstandard into .deps/venv"
  make_venv venv || return 1
  "$OCTAVO_ROOT/.deps/venv/bin/python3" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$OCTAVO_ROOT/scripts/requirements.txt"
}

tokenizing=0
interop=0
for argument in "$@"; do
  case "$argument" in
    --tokenizing) tokenizing=1 ;;
    --interop) interop=1 ;;
    *) refuse "unknown argument $argument, expected --tokenizing or --interop" ;;
  esac
done

install_packages
check_cmake_version
if ((tokenizing)); then make_tokenizing_venv || die "could not install tokenizers, pyarrow and zstandard into .deps/venv"; fi
if ((interop)); then make_interop_venv || die "could not install ${interop_packages[*]} into .deps/interop"; fi
if nvcc="$(find_nvcc)" && ! has_cudnn_frontend "$nvcc"; then
  say "Fetching the headers of cuDNN's C++ frontend $cudnn_frontend_version"
  fetch_cudnn_frontend || printf '%s\n' \
    "setup.sh: could not fetch nvidia-cudnn-frontend $cudnn_frontend_version; without it the CPU program is built" >&2
fi
if find_nvcc >/dev/null && ! has_flash_attention; then
  say "Fetching the sources of FlashAttention-3"
  fetch_flash_attention || printf 'setup.sh: could not fetch FlashAttention-3; without it cuDNN attends on GPUs, and takes longer\n' >&2
fi
