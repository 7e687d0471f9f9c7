// Checks a config's keys against each other, the number of ranks, the device and the weights. All functions throw an
// InputError that names the key, what was found and what was expected.
#pragma once

#include <cstdint>
#include <string>

#include "app/config/config.h"
#include "app/config/stages.h"
#include "core/stream.h"

namespace octavo {

// Use that a command makes of the config, which determines the datasets that the config must name.
enum class Purpose : uint8_t { kTrain, kEvaluate, kSynthetic };

// Checks the keys against each other for a run on `ranks` ranks, stage by stage, and reports the errors of the first
// invalid stage. Checks the model too if its shape is complete. Otherwise reports an error unless init_from is given,
// and the caller calls validate again after adopt_model.
void validate(const Config& run, int64_t ranks, Purpose purpose = Purpose::kTrain);
void validate(const StageConfig& stage, int64_t ranks, Purpose purpose = Purpose::kTrain) = delete;
void validate_stage(const StageConfig& config, int64_t ranks, Purpose purpose = Purpose::kTrain);

// Refuses a GPU for which this program has no kernels. The error says what the recipe needs and what would work
// instead.
void check_gpu(const GpuInfo& gpu, const PrecisionConfig& precision);
inline bool has_kernels_for(const GpuInfo& gpu) { return gpu.compute_major == 9 && gpu.compute_minor == 0; }

// Completes the model's shape with the shape of the weights at `path`. Throws an InputError with the path and the first
// field in which the config contradicts the weights.
void adopt_model(Config& config, const ModelConfig& from_weights, const std::string& path);

// Sets precision.compute to the device's default if it was not given: bfloat16 on a GPU, float32 on the CPU. Refuses
// values for which the device has no kernels. Sets the key `device` to the device that is used.
void resolve_device(Config& config, Device device);

}  // namespace octavo
