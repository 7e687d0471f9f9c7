#include "app/plan/machine_files.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/files/input_file.h"

namespace octavo {

namespace {

MachineRates rates_of(const EmbeddedFile& file) {
  return machine_rates_from_json(nlohmann::json::parse(file.text), fmt::format("machines/{}.json", file.name));
}

}  // namespace

MachineRates find_machine(const std::string& name_or_path, const char* option) {
  std::string names;
  std::string lower = name_or_path;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const EmbeddedFile& file : machine_files()) {
    if (lower == file.name && (name_or_path == lower || !path_exists(name_or_path))) return rates_of(file);
    names += (names.empty() ? "" : ", ") + std::string(file.name);
  }
  CHECK_INPUT(path_exists(name_or_path),
              "{} {}: there is no such file, expected one that octavo doctor --save wrote, or one of {}", option,
              name_or_path, names);
  return load_machine_rates(name_or_path);
}

std::optional<MachineRates> find_machine_of(const std::string& device) {
  for (const EmbeddedFile& file : machine_files()) {
    MachineRates rates = rates_of(file);
    if ((device + " ").starts_with(rates.device + " ")) return rates;
  }
  return std::nullopt;
}

}  // namespace octavo
