#!/usr/bin/env python3
"""Checks the rules that keep the folders apart (see docs/architecture.md), and prints each breach as file:line: reason.

    app -> checkpoint -> model -> parallel -> kernels -> core        app -> data -> core

  * A file includes only files of its own folder and of folders that its folder depends on. Files directly in app/ may include
    all folders of app/.
  * A .cpp or .cu implements the header of its name. Exceptions are main, the subcommands, which app/commands/commands.h declares,
    and the observers X_watch.cpp, which app/observers/step_observer.h declares.
  * Only files whose names say so include headers of CUDA, NCCL, MPI, oneDNN, OpenBLAS and compression libraries.
  * There is no conditional compilation except through the generated build_config.h. A .cuh may test __CUDACC__ to hide its device
    code from the C++ compiler.
  * Every header begins with #pragma once.
  * Headers do not include each other in a cycle.
  * No folder of app/ has more than 25 sources.

    check_layers.py [ROOT]       exit code 1 if there is a breach
    check_layers.py --counts     prints one row per folder with its files, lines and includes of other folders
    check_layers.py --self-test  plants breaches in a scratch tree and checks that each is found
"""

import collections
import re
import sys
import tempfile
from pathlib import Path

# Direct dependencies of each folder. A folder may include these and whatever they depend on.
STANDS_ON = {
    "core": [],
    "core/files": ["core"],
    "kernels/cuda": ["core"],
    "kernels/math": ["kernels/cuda"],
    "kernels/matmul": ["kernels/math", "core/files"],
    "kernels/fp8": ["kernels/matmul"],
    "kernels/attention_shapes": ["core"],
    "kernels/flash_attention": ["kernels/attention_shapes", "kernels/math"],
    "kernels/attention": ["kernels/flash_attention", "kernels/fp8"],
    "kernels/layers": ["kernels/fp8"],
    "kernels/optimizer": ["kernels/matmul"],
    "parallel/ranks": ["core/files"],
    "parallel": ["parallel/ranks", "kernels/math"],
    "model/architecture": ["parallel", "kernels/layers", "kernels/attention"],
    "model/linear": ["model/architecture"],
    "model/parameters": ["model/linear"],
    "model/block": ["model/linear"],
    "model": ["model/parameters", "model/block"],
    "model/optimizer": ["model/parameters", "kernels/optimizer"],
    "data/text": ["core/files"],
    "data/tokens": ["data/text"],
    "data": ["data/tokens"],
    "checkpoint": ["model/optimizer"],
    "app/config": ["model/optimizer", "data"],
    "app/job": ["app/config", "checkpoint"],
    "app/process": ["app/job"],
    "app/inputs": ["app/job"],
    "app/run": ["app/process", "app/inputs", "model"],
    "app/resolve": ["app/run"],
    "app/records": ["app/run"],
    "app/log": ["app/records", "app/resolve"],
    "app/observers": ["app/log"],
    "app/text": ["app/inputs"],
    "app/train": ["app/observers", "app/text"],
    "app/predict": ["app/resolve"],
    "app/plan": ["app/predict"],
    "app/measure": ["app/predict"],
    "app/report": ["app/records", "app/plan"],
    "app/commands": ["app/train", "app/measure", "app/report"],
    "app": ["app/commands"],
}


def everything_below(layer):
    return set(STANDS_ON[layer]).union(*(everything_below(below) for below in STANDS_ON[layer]))


BELOW = {layer: everything_below(layer) for layer in STANDS_ON}
TOP_FOLDERS = {layer.split("/")[0] for layer in STANDS_ON}
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}

# Vendor headers, and the files that may include them.
CUDA_FILES = r"(\.cu|\.cuh|_cuda\.cpp|_(cublaslt|cudnn|flash|nccl)\.(cpp|h))$|^core/cuda_check\.h$"
MPI_FILES = re.compile(r"_mpi\.(cpp|h)$")
VENDOR_HEADERS = [
    (re.compile(r"^(cuda|cublas|cudnn|cub/|cooperative_groups|nvml|nvtx3/|thrust/)"), re.compile(CUDA_FILES), "a CUDA header"),
    (re.compile(r"^nccl"), re.compile(r"_nccl\.(cpp|cu|h)$"), "an NCCL header"),
    (re.compile(r"^mpi(\.h|/|-ext)"), MPI_FILES, "an MPI header"),
    (re.compile(r"^(oneapi/dnnl/|dnnl)"), re.compile(r"_onednn\.cpp$"), "a oneDNN header"),
    (re.compile(r"^(flash[._]|cuda_check\.h|cute/|cutlass/)"), re.compile(r"_flash\.(cpp|cu)$|^kernels/flash_attention/[a-z_]*\.cuh$"), "a FlashAttention header"),
    (re.compile(r"^(cblas|openblas_config)\.h$"), re.compile(r"_openblas\.cpp$"), "an OpenBLAS header"),
    (re.compile(r"^(zlib|bzlib|lzma|zstd)\.h$"), re.compile(r"_(zlib|bzip2|xz|zstd)\.cpp$"), "a header of a compression library"),
]

# Our own headers that include vendor headers, so only files of the same kind may include them. A NAME_cuda.h only declares what
# CUDA files define, so any file may include it.
CUDA_HEADERS = re.compile(r"\.cuh$|_(cublaslt|cudnn|flash|nccl)\.h$|^core/cuda_check\.h$")
MPI_HEADERS = re.compile(r"_mpi\.h$")

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else)\b")
DEVICE_CODE = re.compile(r"^\s*#\s*ifdef\s+__CUDACC__\s*$")


def layer_of(path):
    """Returns the layer of a path relative to the root, or None if it belongs to none (system headers, build_config.h)."""
    folder = Path(path).parent.as_posix()
    if folder in BELOW:
        return folder
    # A subfolder that is not a layer, but lies in a folder that has layers, is returned too, so that includes of its files and in its files
    # are reported.
    return folder if folder.split("/")[0] in TOP_FOLDERS else None


def check_include(name, header, quoted):
    """Returns the reason why file `name` must not include `header`, or None."""
    layer, other = layer_of(name), layer_of(header)
    if layer and other and quoted and other != layer and other not in BELOW.get(layer, set()):
        return f"{layer} must not include {other} ({header})"
    if quoted and layer and other:  # The include names one of our own files.
        if CUDA_HEADERS.search(header) and not re.search(CUDA_FILES, name):
            return f"{header} is for CUDA files alone"
        if MPI_HEADERS.search(header) and not MPI_FILES.search(name):
            return f"{header} is for MPI files alone"
        return None
    for pattern, allowed, what in VENDOR_HEADERS:
        if pattern.search(header) and not allowed.search(name):
            return f"{what} ({header}) outside the files made for it"
    return None


# Endings of files that implement a header without the ending. They name a library or a kind of processor, before it a
# head_dim or attention within documents. `memory` means that the file constructs a class from an arena.
VARIANT = re.compile(r"(_documents)?(_[0-9]+)?_(cuda|cublaslt|cudnn|flash|nccl|mpi|onednn|openblas|zlib|bzip2|xz|zstd|x86|other|memory)$")


def lacks_header(path):
    """Returns whether the functions of a .cpp or .cu are declared elsewhere than in the header of its name."""
    stem = path.with_suffix("").name
    return not any(path.with_name(f"{name}.h").exists() for name in (stem, VARIANT.sub("", stem)))


def check_file(root, path):
    name = path.relative_to(root).as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    breaches = []
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        reason = check_include(name, match.group(2), match.group(1) == '"') if match else None
        if reason:
            breaches.append(f"{name}:{number}: {reason}")
        if layer_of(name) and CONDITIONAL.match(line) and not (path.suffix == ".cuh" and DEVICE_CODE.match(line)):
            breaches.append(f"{name}:{number}: conditional compilation; use `if constexpr (kHasCuda)` or a file of its own")
    if path.suffix in {".h", ".cuh"} and "#pragma once" not in lines:
        breaches.append(f"{name}:1: a header without #pragma once")
    declared_together = layer_of(name) in {None, "app", "app/commands"} or re.search(r"^app/observers/\w+_watch\.cpp$", name)
    if path.suffix in {".cpp", ".cu"} and not declared_together and lacks_header(path):
        breaches.append(f"{name}:1: implements no header of its name")
    return breaches


def find_circles(graph):
    """Returns each cycle of a directed graph {node: nodes that it points to} as a list that starts and ends with the same node."""
    circles, done, path = [], set(), []

    def visit(node):
        if node in path:
            circles.append([*path[path.index(node):], node])
        elif node not in done:
            path.append(node)
            for other in sorted(graph.get(node, ())):
                visit(other)
            done.add(path.pop())

    for node in sorted(graph):
        visit(node)
    return circles


def included(path, root):
    """Returns the files of the tree that a file includes, by name."""
    matches = map(INCLUDE.match, path.read_text(encoding="utf-8").splitlines())
    return {match.group(2) for match in matches if match and match.group(1) == '"' and (root / match.group(2)).is_file()}


def check_circles(root, files):
    headers = {path.relative_to(root).as_posix(): included(path, root) for path in files if path.suffix in {".h", ".cuh"}}
    return [f"{circle[0]}:1: headers include each other in a circle: {' -> '.join(circle)}" for circle in find_circles(headers)]


MOST_SOURCES = 25  # Maximum number of sources in a folder of app/.


def check_sizes(root, files):
    folders = collections.defaultdict(list)
    for path in files:
        folders[path.relative_to(root).parent.as_posix()].append(path.relative_to(root).as_posix())
    return [f"{names[MOST_SOURCES]}:1: {folder} has {len(names)} sources, at most {MOST_SOURCES}: cut it in two"
            for folder, names in folders.items() if folder.startswith("app") and len(names) > MOST_SOURCES]


def check_tree(root):
    files = sorted(
        path
        for folder in sorted(TOP_FOLDERS | {"tests"})
        for path in (root / folder).rglob("*")
        if path.suffix in SUFFIXES and path.is_file()
    )
    return len(files), [breach for path in files for breach in check_file(root, path)] + check_circles(root, files) + check_sizes(root, files)


def print_counts(root):
    """Prints one row per layer: its files and lines, and how often it includes each layer below."""
    print(f"{'folder':<14}{'files':>6}{'lines':>7}  includes")
    for layer in BELOW:
        paths = [path for path in sorted((root / layer).glob("*")) if path.suffix in SUFFIXES]
        lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
        included = collections.Counter()
        for line in lines:
            match = INCLUDE.match(line)
            other = layer_of(match.group(2)) if match and match.group(1) == '"' else None
            if other and other != layer:
                included[other] += 1
        arrows = ", ".join(f"{other} {count}" for other, count in sorted(included.items()))
        print(f"{layer:<14}{len(paths):>6}{len(lines):>7}  {arrows}")


def self_test():
    # Planted files, each with the number of breaches that must be found.
    header = "#pragma once\n"
    planted = {
        "core/tensor.h": (header + "#include <vector>\n", 0),
        "core/up.h": (header, 0),
        "core/up.cpp": ('#include "kernels/matmul/matmul.h"\n', 1),
        "core/cuda_check.h": (header + "#include <cuda_runtime_api.h>\n", 0),
        "kernels/cuda/launch.cuh": (header + "#include <cuda_runtime.h>\n#ifdef __CUDACC__\n#endif\n", 0),
        "core/nowhere.cpp": ("int f() { return 0; }\n", 1),
        "kernels/matmul/matmul.h": (header + '#include "core/tensor.h"\n#include "build_config.h"\n', 0),
        "kernels/matmul/matmul.cpp": ("#include <cuda_runtime.h>\n", 1),
        "kernels/matmul/matmul_cuda.h": (header + "#include <cuda_runtime.h>\n", 1),
        "kernels/matmul/matmul_cublaslt.cpp": ("#include <cublasLt.h>\n", 0),
        "kernels/matmul/sgemm.h": (header, 0),
        "kernels/matmul/sgemm.cpp": ("#include <cblas.h>\n#include <dnnl.h>\n", 2),
        "kernels/matmul/sgemm_onednn.cpp": ("#include <oneapi/dnnl/dnnl.h>\n", 0),
        "kernels/matmul/sgemm_openblas.cpp": ("#include <cblas.h>\n", 0),
        "kernels/matmul/plan_cublaslt.h": (header + "#include <cublasLt.h>\n", 0),
        "kernels/matmul/plan.h": (header + '#include "kernels/matmul/matmul_cuda.h"\n', 0),
        "kernels/flash_attention/kernels.h": (header, 0),
        "kernels/flash_attention/kernels_64_flash.cu": ('#include "flash_fwd_launch_template.h"\n', 0),
        "kernels/flash_attention/kernels.cpp": ("#include <flash.h>\n", 1),
        "kernels/flash_attention/launch.cuh": (header + '#include <flash.h>\n#include "kernels/attention/sdpa.h"\n', 1),
        "kernels/attention/sdpa.h": (header + '#include <flash.h>\n', 1),
        "kernels/matmul/plan.cpp": ('#include "kernels/matmul/plan_cublaslt.h"\n#include "kernels/cuda/launch.cuh"\n', 2),
        "kernels/matmul/up.h": (header + '#include "model/llama.h"\n#include "data/loader.h"\n', 2),
        "kernels/matmul/switch.cuh": (header + "#ifdef OCTAVO_CUDA\n#endif\n", 1),
        "kernels/matmul/sideways.h": (header + '#include "core/files/input_file.h"\n#include "kernels/fp8/fp8.h"\n', 1),
        "kernels/cellar/wine.h": (header + '#include "core/tensor.h"\n', 1),
        "data/loader.h": (header + '#include "core/tensor.h"\n#include "kernels/matmul/matmul.h"\n', 1),
        "data/up.h": (header + '#include "parallel/communicator.h"\n', 1),
        "parallel/communicator.h": (header, 0),
        "parallel/communicator_mpi.cpp": ("#include <mpi.h>\n", 0),
        "parallel/communicator.cpp": ("#include <mpi.h>\n#include <nccl.h>\n", 2),
        "parallel/ranks/handles_mpi.h": (header + "#include <mpi.h>\n", 0),
        "parallel/mesh.h": (header + '#include "parallel/ranks/handles_mpi.h"\n', 1),
        "model/llama.h": (header + '#include "parallel/communicator.h"\n#include "app/commands/commands.h"\n', 1),
        "model/switch.h": (header + "#ifdef OCTAVO_CUDA\n#endif\n", 1),
        "model/device.h": (header + "#ifdef __CUDACC__\n#endif\n", 1),
        "model/no_guard.h": ("int f();\n", 1),
        "checkpoint/reader.h": (header + '#include "model/llama.h"\n#include "app/config/config.h"\n', 2),
        "app/main.cpp": ('#include "model/llama.h"\n#include "data/loader.h"\n#include <mpi.h>\n', 1),
        "app/commands/commands.h": (header + '#include "app/train/training.h"\n', 1),
        "app/config/config.h": (header + '#include "data/loader.h"\n#include "app/process/runtime.h"\n', 2),
        "app/process/runtime.h": (header + '#include "app/config/config.h"\n#include "app/resolve/room.h"\n', 1),
        "app/train/training.h": (header + '#include "app/resolve/room.h"\n#include "app/measure/bench.h"\n', 1),
        "app/measure/bench.h": (header + '#include "app/predict/rates.h"\n#include "app/commands/commands.h"\n', 1),
        "app/cellar/wine.h": (header + '#include "core/tensor.h"\n', 1),
        "tests/model/llama_test.cpp": ('#include "model/llama.h"\n#include <gtest/gtest.h>\n', 0),
    }
    # These headers include each other in a cycle, and one includes itself. Two headers that include a third form no cycle.
    planted |= {
        "core/a.h": (header + '#include "core/b.h"\n#include "core/d.h"\n', 1),
        "core/b.h": (header + '#include "core/a.h"\n#include "core/d.h"\n', 0),
        "core/c.h": (header + '#include "core/c.h"\n', 1),
        "core/d.h": (header, 0),
    }
    planted |= {f"app/plan/part_{number}.h": (header, number == 10 + MOST_SOURCES) for number in range(10, 11 + MOST_SOURCES)}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for name, (text, _) in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        _, breaches = check_tree(root)
    failed = False
    for name, (_, expected) in planted.items():
        found = [breach for breach in breaches if breach.startswith(name + ":")]
        if len(found) != expected:
            print(f"self-test: {name}: expected {expected} breaches, found {found}")
            failed = True
    print(f"self-test: {len(planted)} files, {len(breaches)} breaches found" + (", FAILED" if failed else ""))
    return 1 if failed else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    here = Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--counts"]:
        print_counts(here)
        return 0
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    count, breaches = check_tree(root)
    for breach in breaches:
        print(breach)
    print(f"{count} files, {len(breaches)} breaches of the layering rules")
    return 1 if breaches or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
