// Checks of the keys of a config against each other, the number of ranks, the device and the weights. All throw
// InputError naming the key, what was found and what was expected.
#pragma once

#include <cstdint>
#include <string>

#include "app/config/config.h"
#include "core/stream.h"

namespace octavo {

// The datasets that a command needs.
enum class Purpose : uint8_t { kTrain, kEvaluate, kSynthetic };

// Checks the keys against each other for a run on `ranks` ranks. The model is checked if its shape is complete.
// Otherwise init_from must be given, and validate is called again after adopt_model.
void validate(const Config& config, int64_t ranks, Purpose purpose = Purpose::kTrain);

// Refuses a GPU for which this program has no kernels, and names what the recipe needs and what would work instead.
void check_gpu(const GpuInfo& gpu, const PrecisionConfig& precision);
inline bool has_kernels_for(const GpuInfo& gpu) { return gpu.compute_major == 9 && gpu.compute_minor == 0; }

// Takes the shape of the weights at `path`. Throws an InputError with the path and the first field in which the config
// differs.
void adopt_model(Config& config, const ModelConfig& from_weights, const std::string& path);

// Sets precision.compute to the device's default (bfloat16 on a GPU, float32 on the CPU) if it was not given, and
// refuses values for which the device has no kernels. Sets `device` to the one that is used.
void resolve_device(Config& config, Device device);

}  // namespace octavo
