#include "app/commands/options.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

#include "core/error.h"

namespace octavo {

namespace {

// Returns a rule. `expected` completes the message that refuses a value, and `type` is shown in the help.
template <typename Allows>
CLI::Validator value(const Allows& allows, const std::string& expected, const std::string& type) {
  const auto check = [=](const std::string& text) {
    return allows(text) ? "" : fmt::format("is '{}', expected {}", text, expected);
  };
  return CLI::Validator(check, type);
}

// Parses the whole text as a number in plain decimal digits.
template <typename Number>
std::optional<Number> parse(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

}  // namespace

CLI::Validator number(double least, double most) {
  const std::string range = fmt::format("from {:g} to {:g}", least, most);
  const auto allows = [=](const std::string& text) {
    const std::optional<double> number = parse<double>(text);
    return number && least <= *number && *number <= most;
  };
  return value(allows, "a number " + range, range);
}

template <typename Integer>
CLI::Validator integer(Integer least, Integer most) {
  const std::string range = fmt::format("from {} to {}", least, most);
  const auto allows = [=](const std::string& text) {
    const std::optional<Integer> number = parse<Integer>(text);
    const bool is_plain = text.size() == 1 || (!text.starts_with('0') && !text.starts_with("-0"));
    return number && is_plain && least <= *number && *number <= most;
  };
  return value(allows, "an integer " + range, range);
}
template CLI::Validator integer(int, int);
template CLI::Validator integer(int64_t, int64_t);
template CLI::Validator integer(uint64_t, uint64_t);

CLI::Validator one_of(const std::vector<std::string>& choices) {
  const auto allows = [=](const std::string& text) {
    return std::find(choices.begin(), choices.end(), text) != choices.end();
  };
  return value(allows, fmt::format("one of {}", fmt::join(choices, ", ")),
               fmt::format("{{{}}}", fmt::join(choices, ",")));
}

void add_overrides(CLI::App* command, std::vector<std::string>& overrides, const char* what) {
  command->add_option("overrides", overrides, what)->default_str("");
}

void add_config_arguments(CLI::App* command, ConfigArguments& arguments, const char* what) {
  command->add_option("config", arguments.path, what)->required();
  add_overrides(command, arguments.overrides, "section.key=value, overrides the file");
}

void check_one_process(const char* command, ProcessGroup& group) {
  group.agree([&] {
    CHECK_INPUT(group.size() == 1,
                "{} was started on {} ranks, expected one process; --gpus says how many ranks the run has", command,
                group.size());
  });
}

}  // namespace octavo
