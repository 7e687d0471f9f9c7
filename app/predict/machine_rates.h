// MachineRates holds the measured rates of a machine for the parts of a training step. `octavo doctor --save FILE`
// writes them to a machine file, and plans read it to predict the time of a step. The machine file is one JSON object
// whose keys are the names of the members:
//
//   {"format": "octavo machine", "version": 1, "name": "node7", "device": "NVIDIA H200", ...,
//    "product_flops": {"bfloat16": 7.1e14, ...}, "products": [{"precision": "bfloat16", "fast_accumulation": false,
//    "m": 8192, "n": 8192, "k": 8192, "flops": 7.1e14}, ...], ...,
//    "collectives": null or {"ranks": 8, "hosts": 1, ..., "sizes": [{"op": "all_gather", "bytes": 268435456,
//    "seconds": 7.4e-4, "bus_bytes_per_s": 3.2e11}, ...]}, ...}
//
// Every rate is that of the slowest rank while all ranks measure, because a training step waits for the slowest rank.
// The files machines/*.json are compiled into the program, so that plans need no files.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files/output_file.h"
#include "kernels/attention_shapes/sdpa_args.h"
#include "parallel/config.h"

namespace octavo {

inline constexpr OutputKind kMachineFile{"a machine file of octavo doctor", R"("format": "octavo machine")"};

// Sizes of a matmul with an output [m, n] and the contracted dimension k.
struct MatmulSize {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// Rate of a matmul d = a b^T with a [m, k] and b [n, k]. k is the innermost dimension of both, as in forward, and d is
// in the compute dtype.
struct MatmulRate {
  std::string precision;  // Name of the precision, a key of matmul_flops.
  bool fast_accumulation = false;
  MatmulSize size = {};
  double flops = 0;  // FLOP/s, counting 2 m n k FLOPs per matmul.
};

// Rates of causal attention (kernels/attention/sdpa.h).
struct AttentionRates {
  SdpaShape shape = {};
  // FLOP/s, counting only the causal half: forward has 2 batch num_heads seq_len^2 head_dim FLOPs, and backward has 2.5
  // times as many.
  double forward_flops = 0;
  double backward_flops = 0;
};

// Rate of a collective over all ranks, measured on the slowest rank.
struct CollectiveRate {
  std::string op;      // Name: all_gather, reduce_scatter or all_reduce.
  int64_t bytes = 0;   // Size of the whole tensor: gathered, before scattering, or reduced.
  double seconds = 0;  // Time of one collective in a queue of many.
  // Bus bandwidth of n ranks: bytes * (n - 1) / n / seconds, and twice that for all_reduce, which sends each byte
  // twice.
  double bus_bytes_per_s = 0;
};

struct CollectiveRates {
  int64_t ranks = 0;
  int64_t hosts = 0;
  double bus_bytes_per_s = 0;  // Smaller rate of all_gather and reduce_scatter at the largest size.
  double latency_s = 0;        // Time of an all_reduce of a few bytes per rank.
  std::vector<CollectiveRate> sizes;
};

// Runs on one node that were compared with their predictions. Either all of them have pipeline stages, or none has.
// docs/internals/prediction.md has the runs, and a test computes these numbers from its table.
struct MeasuredRuns {
  int64_t runs = 0;
  int64_t gpus = 0;           // Number of GPUs of the largest run.
  double smallest_error = 0;  // Smallest error of the runs, where the error of a run is predicted / measured - 1.
  double largest_error = 0;
  MeshShape largest_mesh = {};  // Largest size of each axis among the runs.
  bool documents = false;       // Whether some runs had a document mask.
};

struct MachineRates {
  std::string name;              // Host name of the first rank.
  std::string device;            // Name such as "NVIDIA H200", or "cpu".
  int64_t gpu_memory_bytes = 0;  // Smallest memory of a GPU among the ranks. 0 on the CPU.
  int64_t multiprocessors = 0;   // Number of multiprocessors of a GPU. 0 on the CPU.

  // FLOP/s of the largest square matmul by precision. The keys are the compute dtype (bfloat16 on GPUs, float32 on
  // CPUs) and, on GPUs, fp8_tensorwise (which also applies to fp8_delayed), fp8_rowwise and fp8_blockwise. Fast
  // accumulation is used if the precision has it.
  std::map<std::string, double> matmul_flops;
  std::vector<MatmulRate> matmuls;             // Rates of all measured matmul shapes, square or not.
  AttentionRates attention;                    // Written as attention_forward_flops and attention_backward_flops.
  double memory_bytes_per_s = 0;               // Bandwidth of the device's memory, counting bytes read and written.
  std::optional<CollectiveRates> collectives;  // Set if several ranks measured.
  double disk_write_bytes_per_s = 0;           // Write rate of one rank while all ranks write.
  // Rates that were not measured on this machine, such as "collectives (from an H200)". Missing in the file if empty.
  std::vector<std::string> not_measured;
  std::map<std::string, std::string> versions;
  std::vector<MeasuredRuns> measured_runs = {};  // Only in machines/*.json. octavo doctor writes none.
};

nlohmann::ordered_json to_json(const MachineRates& rates);
// Parses a machine file. Throws an InputError with the file (`where`), the key, what was found and what was expected.
MachineRates machine_rates_from_json(const nlohmann::json& json, const std::string& where);

std::vector<MachineRates> known_machines();  // Returns the machines of machines/*.json.
// Returns the rates of the known machine with this name, else of the file with this path, else of the known machine
// whose name differs only in case, such as H100. Throws an InputError that names `option` if there is none.
MachineRates find_machine(const std::string& name_or_path, const char* option = "--machine");
// Returns the rates of a known machine with this device, or nothing. "NVIDIA H100" also matches "NVIDIA H100 80GB
// HBM3".
std::optional<MachineRates> find_machine_of(const std::string& device);

// Range of one measured rate over all ranks.
struct RateSpread {
  std::string name;  // Name such as "bfloat16 8192 x 8192 x 8192".
  std::string unit;  // Either FLOP/s or B/s.
  double slowest = 0;
  double fastest = 0;
  int slowest_rank = 0;
  int fastest_rank = 0;
};
// Returns the range of each rate, always in the same order. `ranks` are in rank order.
// Requires: all ranks have measured the same rates.
std::vector<RateSpread> spreads(std::span<const MachineRates> ranks);
// Returns the smallest value of each rate, and of the GPU's memory. All other members are those of the first rank.
// Requires: all ranks have measured the same rates.
MachineRates slowest_of(std::span<const MachineRates> ranks);

}  // namespace octavo
