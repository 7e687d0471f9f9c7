#include "app/plan/machine_files.h"

#include "core/error.h"
#include "core/input_file.h"

namespace octavo {

MachineRates find_machine(const std::string& name_or_path) {
  std::string names;
  for (const MachineFile& file : machine_files()) {
    if (name_or_path == file.name) {
      return machine_rates_from_json(nlohmann::json::parse(file.json), fmt::format("machines/{}.json", file.name));
    }
    names += (names.empty() ? "" : ", ") + std::string(file.name);
  }
  CHECK_INPUT(path_exists(name_or_path),
              "--machine {}: there is no such file, expected one that octavo doctor --save wrote, or one of {}",
              name_or_path, names);
  return load_machine_rates(name_or_path);
}

}  // namespace octavo
