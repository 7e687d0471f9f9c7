#include "app/text/tokenizer_answer.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/json_input.h"

namespace octavo {
namespace {

constexpr const char* kNeeded =
    "python3 with the package tokenizers is needed: run scripts/setup.sh --tokenizing, or set OCTAVO_PYTHON to a "
    "Python that has it";

nlohmann::json last_line(std::string_view output) {
  while (output.ends_with('\n')) output.remove_suffix(1);
  try {
    return parse_json(output.substr(output.rfind('\n') + 1), "its answer");
  } catch (const InputError&) {
    return {};  // The script failed before it answered.
  }
}

nlohmann::json answer_of(std::string_view output, const char* key, const std::string& tokenizer) {
  nlohmann::json answer = last_line(output);
  CHECK_INPUT(answer.is_object() && answer.contains(key), "the tokenizer {} could not be used: {}", tokenizer,
              answer.is_object() && answer.contains("error") ? answer["error"].dump() : kNeeded);
  return std::move(answer[key]);
}

std::vector<int32_t> ids_in(const nlohmann::json& list, const std::string& tokenizer) {
  CHECK_INPUT(list.is_array(), "the tokenizer {} does not return a list of ids", tokenizer);
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  const std::string where = "an id of the tokenizer " + tokenizer;
  for (const nlohmann::json& id : list) {
    ids.push_back(static_cast<int32_t>(as_integer(id, where, 0, std::numeric_limits<int32_t>::max())));
  }
  return ids;
}

}  // namespace

TextEnds answered_ends(std::string_view output, const std::string& tokenizer) {
  static_cast<void>(answer_of(output, "vocab_size", tokenizer));
  const nlohmann::json answer = last_line(output);
  TextEnds ends{.bos = {}, .eos = ids_in(answer.value("ends", nlohmann::json::array()), tokenizer)};
  const nlohmann::json bos = answer.value("bos", nlohmann::json());
  if (!bos.is_null()) ends.bos = ids_in(nlohmann::json::array({bos}), tokenizer).front();
  return ends;
}

std::vector<int32_t> answered_ids(std::string_view output, const std::string& tokenizer) {
  return ids_in(answer_of(output, "ids", tokenizer), tokenizer);
}

std::string answered_text(std::string_view output, const std::string& tokenizer) {
  const nlohmann::json text = answer_of(output, "text", tokenizer);
  CHECK_INPUT(text.is_string(), "the tokenizer {} does not return a text", tokenizer);
  return text.get<std::string>();
}

}  // namespace octavo
