// The machine files of machines/*.json, compiled into the program, so that plans need no files.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "app/plan/machine_rates.h"
#include "core/files/embedded_file.h"

namespace octavo {

std::span<const EmbeddedFile> machine_files();

// Returns the rates of the machine file of that name, or else of the file at that path. Throws InputError, which names
// the option or key that gave the name.
MachineRates find_machine(const std::string& name_or_path, const char* option = "--machine");
// Returns the rates for such a device, or nothing. The file of "NVIDIA H100" also applies to an "NVIDIA H100 80GB
// HBM3".
std::optional<MachineRates> find_machine_of(const std::string& device);

}  // namespace octavo
