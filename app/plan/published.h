// Published throughput of other systems, beside which `octavo plan --published` sets its predictions.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/plan/network_model.h"

namespace octavo {

struct PublishedSetup {
  std::string preset;
  int64_t gpus = 1;
  bool gpus_stated = false;  // by the source, which else has clusters of 128, 256 and 512 without saying which it was
  int64_t tensor = 1;
  int64_t micro_batch = 0;   // sequences; 0: not stated
  int64_t global_batch = 0;  // 0: not stated
  std::string linear;        // precision.linear
  double wps = 0;            // published
  std::string system;
  std::string hardware;
  std::string table;  // of the source
  std::string source;
};
const std::vector<PublishedSetup>& published_setups();

// Published bus bandwidth of a collective, as nccl-tests counts it.
struct PublishedCollective {
  const char* op = "";
  int64_t ranks = 1;
  int64_t stride = 1;  // ranks apart, 8 a node
  double bytes = 0;
  double bus_bytes_per_s = 0;
  const char* hardware = "";
  const char* note = "";
  const char* source = "";
};
std::span<const PublishedCollective> published_collectives();
// A JSON object for each, with what is predicted.
nlohmann::ordered_json published_collectives_json(const MachineRates& machine, const Cluster& cluster);

// To standard output, {"training": [...], "collectives": [...]}.
void print_published(const nlohmann::ordered_json& published);

}  // namespace octavo
