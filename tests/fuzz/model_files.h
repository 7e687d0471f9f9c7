// A model with a few weights, and files with these weights, for the fuzz targets that read checkpoints and Hugging Face
// directories.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/printable.h"
#include "model/parameters/parameters.h"
#include "tests/fuzz/fuzz_target.h"

namespace octavo::fuzz {

// Values of weights in the folder of the input, and in a folder next to it whose files must never be read.
inline constexpr float kInside = 0.5F, kOutside = 666;

inline ModelConfig tiny_model() {
  return {.hidden_size = 2,
          .intermediate_size = 2,
          .num_layers = 1,
          .num_heads = 1,
          .num_kv_heads = 1,
          .head_dim = 32,
          .vocab_size = 3,
          .rope_scaling = {}};
}

// Writes the parameters of tiny_model(). Every element is `value`.
inline void write_weights(const std::string& path, float value) {
  const ParameterLayout layout(tiny_model());
  std::vector<SafetensorsEntry> entries;
  for (const ParameterSpec& spec : layout.specs())
    entries.push_back({.name = spec.name, .dtype = "F32", .shape = spec.shape});
  SafetensorsWriter writer(path, entries);
  for (const ParameterSpec& spec : layout.specs()) {
    const std::vector<float> values(static_cast<size_t>(spec.numel()), value);
    writer.write(values.data(), spec.numel() * static_cast<int64_t>(sizeof(float)));
  }
  writer.commit();
}

// Checks that no value was read from the folder outside.
inline void check_values(const std::vector<float>& values) {
  for (const float value : values) require(value != kOutside, "nothing is read outside the directory");
}

// Checks that the lines contain no control characters, so that they are safe to print on a terminal.
inline void check_printed(std::string lines) {
  std::replace(lines.begin(), lines.end(), '\n', ' ');
  require(printable(lines, 4 * lines.size()) == lines, "what is printed has no control characters");
}

}  // namespace octavo::fuzz
