#include "app/predict/machine_rates.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.h"
#include "core/files/embedded_file.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/format.h"

namespace octavo {

std::span<const EmbeddedFile> machine_files();  // The files machines/*.json.

namespace {

using OrderedJson = nlohmann::ordered_json;
using Json = nlohmann::json;

constexpr const char* kFormat = "octavo machine";
constexpr int kVersion = 1;

OrderedJson collectives_json(const CollectiveRates& collectives) {
  OrderedJson sizes = OrderedJson::array();
  for (const CollectiveRate& c : collectives.sizes) {
    sizes.push_back({{"op", c.op}, {"bytes", c.bytes}, {"seconds", c.seconds}, {"bus_bytes_per_s", c.bus_bytes_per_s}});
  }
  return {{"ranks", collectives.ranks},
          {"hosts", collectives.hosts},
          {"bus_bytes_per_s", collectives.bus_bytes_per_s},
          {"latency_s", collectives.latency_s},
          {"sizes", sizes}};
}

// Reads the keys of an object in a machine file.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    CHECK_INPUT(json.is_object(), "{} is {}, expected an object", where_, json.dump());
  }

  const Json& at(const std::string& key) const {
    CHECK_INPUT(json_.contains(key), "{} has no {}", where_, key);
    return json_[key];
  }
  Reader object(const std::string& key) const { return {at(key), name(key)}; }
  std::vector<Reader> list(const std::string& key) const {
    const Json& items = expect(at(key).is_array(), key, "a list");
    std::vector<Reader> readers;
    for (size_t i = 0; i < items.size(); ++i) readers.emplace_back(items[i], fmt::format("{}[{}]", name(key), i));
    return readers;
  }
  std::string text(const std::string& key) const { return expect(at(key).is_string(), key, "text"); }
  std::vector<std::string> texts(const std::string& key) const {
    const Json& items = at(key);
    const auto is_text = [](const Json& item) { return item.is_string(); };
    return expect(items.is_array() && std::ranges::all_of(items, is_text), key, "a list of texts");
  }
  bool flag(const std::string& key) const { return expect(at(key).is_boolean(), key, "true or false"); }
  int64_t count(const std::string& key, int64_t least) const { return as_integer(at(key), name(key), least); }
  double number(const std::string& key) const {
    return expect(at(key).is_number() && std::isfinite(at(key).get<double>()), key, "a number");
  }
  double rate(const std::string& key) const { return expect(number(key) > 0, key, "a positive number"); }
  const Json& json() const { return json_; }

 private:
  std::string name(const std::string& key) const { return fmt::format("{}: {}", where_, key); }
  // Returns the value of a key. Throws an InputError with `expected` unless `is_right` is true.
  const Json& expect(bool is_right, const std::string& key, const std::string& expected) const {
    CHECK_INPUT(is_right, "{} is {}, expected {}", name(key), at(key).dump(), expected);
    return at(key);
  }

  const Json& json_;
  std::string where_;
};

MatmulRate read_matmul(const Reader& r) {
  return {.precision = r.text("precision"),
          .fast_accumulation = r.flag("fast_accumulation"),
          .size = {r.count("m", 1), r.count("n", 1), r.count("k", 1)},
          .flops = r.rate("flops")};
}

CollectiveRates read_collectives(const Reader& r) {
  CollectiveRates collectives{.ranks = r.count("ranks", 2),
                              .hosts = r.count("hosts", 1),
                              .bus_bytes_per_s = r.rate("bus_bytes_per_s"),
                              .latency_s = r.rate("latency_s"),
                              .sizes = {}};
  for (const Reader& size : r.list("sizes")) {
    collectives.sizes.push_back({.op = size.text("op"),
                                 .bytes = size.count("bytes", 1),
                                 .seconds = size.rate("seconds"),
                                 .bus_bytes_per_s = size.rate("bus_bytes_per_s")});
  }
  return collectives;
}

AttentionRates read_attention(const Reader& r) {
  const Reader shape = r.object("attention_shape");
  return {.shape = {.batch = shape.count("batch", 1),
                    .seq_len = shape.count("seq_len", 1),
                    .num_heads = shape.count("num_heads", 1),
                    .num_kv_heads = shape.count("num_kv_heads", 1),
                    .head_dim = shape.count("head_dim", 1)},
          .forward_flops = r.rate("attention_forward_flops"),
          .backward_flops = r.rate("attention_backward_flops")};
}

MeasuredRuns read_measured_runs(const Reader& r) {
  MeasuredRuns measured{.runs = r.count("runs", 1),
                        .gpus = r.count("gpus", 1),
                        .smallest_error = r.number("smallest_error"),
                        .largest_error = r.number("largest_error"),
                        .largest_mesh = {},
                        .documents = r.flag("documents")};
  const Reader mesh = r.object("largest_mesh");
  for (const MeshAxis& axis : kMeshAxes) measured.largest_mesh.*axis.size = mesh.count(axis.name, 1);
  return measured;
}

// Calls visit(name, unit, value) for each rate.
template <typename Rates, typename Visit>
void visit_rates(Rates& rates, const Visit& visit) {
  for (auto& [precision, flops] : rates.matmul_flops) visit(precision + " matmul", "FLOP/s", flops);
  for (auto& [precision, fast_accumulation, size, flops] : rates.matmuls) {
    visit(fmt::format("{}{} {} x {} x {}", precision, fast_accumulation ? " fast" : "", size.m, size.n, size.k),
          "FLOP/s", flops);
  }
  visit("attention forward", "FLOP/s", rates.attention.forward_flops);
  visit("attention backward", "FLOP/s", rates.attention.backward_flops);
  visit("memory", "B/s", rates.memory_bytes_per_s);
  visit("disk write", "B/s", rates.disk_write_bytes_per_s);
}

MachineRates rates_of(const EmbeddedFile& file) {
  return machine_rates_from_json(Json::parse(file.text), fmt::format("machines/{}.json", file.name));
}

}  // namespace

OrderedJson to_json(const MachineRates& rates) {
  const SdpaShape& attention = rates.attention.shape;
  OrderedJson matmuls = OrderedJson::array();
  for (const MatmulRate& p : rates.matmuls) {
    matmuls.push_back({{"precision", p.precision},
                       {"fast_accumulation", p.fast_accumulation},
                       {"m", p.size.m},
                       {"n", p.size.n},
                       {"k", p.size.k},
                       {"flops", p.flops}});
  }
  OrderedJson json{{"format", kFormat},
                   {"version", kVersion},
                   {"name", rates.name},
                   {"device", rates.device},
                   {"gpu_memory_bytes", rates.gpu_memory_bytes},
                   {"multiprocessors", rates.multiprocessors},
                   {"product_flops", rates.matmul_flops},
                   {"products", matmuls},
                   {"attention_shape",
                    {{"batch", attention.batch},
                     {"seq_len", attention.seq_len},
                     {"num_heads", attention.num_heads},
                     {"num_kv_heads", attention.num_kv_heads},
                     {"head_dim", attention.head_dim}}},
                   {"attention_forward_flops", rates.attention.forward_flops},
                   {"attention_backward_flops", rates.attention.backward_flops},
                   {"memory_bytes_per_s", rates.memory_bytes_per_s},
                   {"collectives", rates.collectives ? collectives_json(*rates.collectives) : OrderedJson()},
                   {"disk_write_bytes_per_s", rates.disk_write_bytes_per_s},
                   {"versions", rates.versions}};
  if (!rates.not_measured.empty()) json["not_measured"] = rates.not_measured;
  return json;
}

MachineRates machine_rates_from_json(const Json& json, const std::string& where) {
  const Reader r(json, where);
  CHECK_INPUT(r.text("format") == kFormat, "{}: format is \"{}\", expected \"{}\", as octavo doctor --save writes",
              where, r.text("format"), kFormat);
  CHECK_INPUT(r.count("version", 1) == kVersion, "{}: version is {}, expected {}", where, r.count("version", 1),
              kVersion);
  CHECK_INPUT(!json.contains("network_oversubscription"),
              "{}: network_oversubscription is not predicted any more; remove it, and give octavo plan --network-gbps "
              "with the speed between leaf switches",
              where);
  MachineRates rates;
  rates.name = r.text("name");
  rates.device = r.text("device");
  rates.gpu_memory_bytes = r.count("gpu_memory_bytes", 0);
  rates.multiprocessors = r.count("multiprocessors", 0);
  rates.attention = read_attention(r);
  rates.memory_bytes_per_s = r.rate("memory_bytes_per_s");
  rates.disk_write_bytes_per_s = r.rate("disk_write_bytes_per_s");
  const Reader matmul_flops = r.object("product_flops");
  for (const auto& item : matmul_flops.json().items()) {
    rates.matmul_flops[item.key()] = matmul_flops.rate(item.key());
  }
  CHECK_INPUT(!rates.matmul_flops.empty(), "{}: product_flops is empty, expected a rate by precision", where);
  for (const Reader& matmul : r.list("products")) rates.matmuls.push_back(read_matmul(matmul));
  if (json.contains("not_measured")) rates.not_measured = r.texts("not_measured");
  if (json.contains("measured_runs")) {
    for (const Reader& runs : r.list("measured_runs")) rates.measured_runs.push_back(read_measured_runs(runs));
  }
  if (!r.at("collectives").is_null()) rates.collectives = read_collectives(r.object("collectives"));
  const Reader versions = r.object("versions");
  for (const auto& item : versions.json().items()) rates.versions[item.key()] = versions.text(item.key());
  return rates;
}

std::vector<MachineRates> known_machines() {
  std::vector<MachineRates> machines;
  for (const EmbeddedFile& file : machine_files()) machines.push_back(rates_of(file));
  return machines;
}

MachineRates find_machine(const std::string& name_or_path, const char* option) {
  std::string names;
  const std::string lower = lower_case(name_or_path);
  for (const EmbeddedFile& file : machine_files()) {
    if (lower == file.name && (name_or_path == lower || !path_exists(name_or_path))) return rates_of(file);
    names += (names.empty() ? "" : ", ") + std::string(file.name);
  }
  CHECK_INPUT(path_exists(name_or_path),
              "{} {}: there is no such file, expected one that octavo doctor --save wrote, or one of {}", option,
              name_or_path, names);
  return machine_rates_from_json(read_json_file(name_or_path), name_or_path);
}

std::optional<MachineRates> find_machine_of(const std::string& device) {
  for (MachineRates& rates : known_machines()) {
    if ((device + " ").starts_with(rates.device + " ")) return std::move(rates);
  }
  return std::nullopt;
}

std::vector<RateSpread> spreads(std::span<const MachineRates> ranks) {
  std::vector<RateSpread> all;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int number = static_cast<int>(rank);
    size_t i = 0;
    visit_rates(ranks[rank], [&](const std::string& name, const char* unit, double value) {
      if (rank == 0) all.push_back({name, unit, value, value, number, number});
      CHECK(i < all.size() && all[i].name == name, "the ranks have not measured the same rates: {}", name);
      RateSpread& s = all[i++];
      if (value < s.slowest) std::tie(s.slowest, s.slowest_rank) = std::pair(value, number);
      if (value > s.fastest) std::tie(s.fastest, s.fastest_rank) = std::pair(value, number);
    });
  }
  return all;
}

MachineRates slowest_of(std::span<const MachineRates> ranks) {
  CHECK(!ranks.empty(), "there are no ranks to compare");
  MachineRates slowest = ranks.front();
  const std::vector<RateSpread> rates = spreads(ranks);
  size_t i = 0;
  visit_rates(slowest, [&](const std::string&, const char*, double& value) { value = rates[i++].slowest; });
  for (const MachineRates& rank : ranks) {
    slowest.gpu_memory_bytes = std::min(slowest.gpu_memory_bytes, rank.gpu_memory_bytes);
  }
  return slowest;
}

}  // namespace octavo
