// MachineRates: how fast a machine does what a training step is made of, as `octavo doctor --save FILE` measures and
// writes it, for predictions of a step's time. The machine file is one JSON object whose keys are the members' names:
//
//   {"format": "octavo machine", "version": 1, "name": "node7", "device": "NVIDIA H200", ...,
//    "product_flops": {"bfloat16": 7.1e14, ...}, "products": [{"precision": "bfloat16", "fast_accumulation": false,
//    "m": 8192, "n": 8192, "k": 8192, "flops": 7.1e14}, ...], ...,
//    "collectives": null or {"ranks": 8, "hosts": 1, ..., "sizes": [{"op": "all_gather", "bytes": 268435456,
//    "seconds": 7.4e-4, "bus_bytes_per_s": 3.2e11}, ...]}, ...}
//
// Every rate is that of the slowest rank while all of them measure, as a training step waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kMachineFile{"a machine file of octavo doctor", R"("format": "octavo machine")"};

// d [m, n] = a b^T over k.
struct ProductSize {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// A product d = a b^T, a [m, k], b [n, k], both with k innermost, as forward products are; d in the compute dtype.
struct ProductRate {
  std::string precision;  // as in product_flops
  bool fast_accumulation = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  double flops = 0;  // FLOP/s, 2 m n k each
};

// Causal attention (kernels/attention/sdpa.h).
struct AttentionRates {
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  // FLOP/s, counting the causal half alone: forward 2 batch num_heads seq_len^2 head_dim, backward 2.5 times that.
  double forward_flops = 0;
  double backward_flops = 0;
};

// A collective among all ranks, at the pace of the slowest.
struct CollectiveRate {
  std::string op;      // all_gather, reduce_scatter, all_reduce
  int64_t bytes = 0;   // of the whole tensor: gathered, before it is scattered, or reduced
  double seconds = 0;  // of one of many queued one behind the other
  // bytes (n-1)/n over seconds; twice that for all_reduce, which sends everything twice.
  double bus_bytes_per_s = 0;
};

struct CollectiveRates {
  int64_t ranks = 0;
  int64_t hosts = 0;
  double bus_bytes_per_s = 0;  // the lower of all_gather's and reduce_scatter's at the largest size
  double latency_s = 0;        // an all_reduce of a few bytes a rank
  std::vector<CollectiveRate> sizes;
};

struct MachineRates {
  std::string name;              // of the first rank's host
  std::string device;            // "NVIDIA H200", or "cpu"
  int64_t gpu_memory_bytes = 0;  // of one GPU, the least among ranks; 0 on the CPU
  int64_t multiprocessors = 0;   // of one GPU; 0 on the CPU

  // FLOP/s of the largest square product by precision: the compute dtype (bfloat16 on GPUs, float32 on CPUs) and, on
  // GPUs, fp8_tensorwise (fp8_delayed multiplies alike), fp8_rowwise, fp8_blockwise; fast accumulation where there is.
  std::map<std::string, double> product_flops;
  std::vector<ProductRate> products;  // every shape that was measured, the squares too
  AttentionRates attention;           // in the file its rates are attention_forward_flops, attention_backward_flops
  // On the CPU: FLOP/s of the rank's threads that multiply and add in registers, which bounds products; 0 on a GPU, and
  // null or left out in the file.
  double multiply_add_flops = 0;
  double memory_bytes_per_s = 0;               // of the device, read and written together
  std::optional<CollectiveRates> collectives;  // with several ranks
  // By how much the links between leaf switches are too few (app/plan/network_model.h); stated, not measured, and left
  // out of the file where it is 1.
  double network_oversubscription = 1;
  double disk_write_bytes_per_s = 0;  // of one rank while all write, down to the device
  std::map<std::string, std::string> versions;
};

nlohmann::ordered_json to_json(const MachineRates& rates);
// Throws InputError, naming the file as `where`, the key, what was found and what was expected.
MachineRates machine_rates_from_json(const nlohmann::json& json, const std::string& where);
// Reads a machine file; the same InputErrors.
MachineRates load_machine_rates(const std::string& path);

// Calls visit(name, unit, value) with each rate, always in the same order: "bfloat16 8192 x 8192 x 8192", "FLOP/s".
using RateVisitor = std::function<void(const std::string& name, const std::string& unit, double& value)>;
void visit_rates(MachineRates& rates, const RateVisitor& visit);
// The lowest of each rate (and of the GPU's memory) among ranks that measured the same; the rest is the first's.
MachineRates slowest_of(std::span<const MachineRates> ranks);

}  // namespace octavo
