// Fixture of the config tests: loads a config from a file, and returns the message of the error that this throws.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "app/config/config_check.h"
#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {

class ConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / fmt::format("octavo_config_{}_{}", ::getpid(), test_name());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  static std::string test_name() { return testing::UnitTest::GetInstance()->current_test_info()->name(); }

  std::string write(const std::string& yaml) const {
    const std::string path = (dir_ / "small.yaml").string();
    std::ofstream(path) << yaml;
    return path;
  }

  Config load(const std::string& yaml, const std::vector<std::string>& overrides = {}) const {
    return load_config(write(yaml), overrides);
  }

  // Returns the message of the InputError that loading the config or calling `check` throws.
  template <typename Check>
  std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides, Check check) const {
    SCOPED_TRACE(fmt::format("{}{}", yaml, fmt::join(overrides, " ")));
    return message_of<InputError>([&] { check(load(yaml, overrides)); });
  }
  std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) const {
    return error_of(yaml, overrides, [](const Config&) {});
  }

  // Expects that loading fails with a message that contains each of the parts.
  void expect_error(const std::string& yaml, const std::vector<std::string>& parts,
                    const std::vector<std::string>& overrides = {}) const {
    expect_mentions(error_of(yaml, overrides), parts);
  }

  // Overrides that make a valid config invalid, and what the message contains.
  struct Invalid {
    std::vector<std::string> overrides;
    std::vector<std::string> parts;
    int64_t ranks = 1;
  };
  void expect_invalid(const std::vector<Invalid>& cases) const {
    for (const auto& [overrides, parts, ranks] : cases)
      expect_mentions(error_of(kTrainable, overrides, [&](const Config& config) { validate(config, ranks); }), parts);
  }

  static constexpr const char* kTrainable =
      "model: {hidden_size: 128, intermediate_size: 256, num_layers: 2, num_heads: 4, vocab_size: 272}\n"
      "data: {train: [{path: data/x}]}\n"
      "optimizer: {warmup_steps: 10}\n"
      "training: {steps: 100, global_batch_size: 8}\n";

  std::filesystem::path dir_;
};

}  // namespace octavo
