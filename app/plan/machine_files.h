// The machine files in machines/*.json. They are compiled into the program, so that plans need no files.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "app/plan/machine_rates.h"
#include "core/files/embedded_file.h"

namespace octavo {

std::span<const EmbeddedFile> machine_files();

// Returns the rates in the machine file with that name, or else in the file at that path, or else in the machine file
// with that name in other case, such as H100. Throws an InputError that names `option`, the option or key that gave the
// name.
MachineRates find_machine(const std::string& name_or_path, const char* option = "--machine");
// Returns the rates of a machine with such a device, or nothing. The file for "NVIDIA H100" also applies to "NVIDIA
// H100 80GB HBM3".
std::optional<MachineRates> find_machine_of(const std::string& device);

}  // namespace octavo
