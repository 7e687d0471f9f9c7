#include "app/report/page.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/files/embedded_file.h"

namespace octavo {

std::span<const EmbeddedFile> page_files();

namespace {

std::string_view embedded(std::string_view name) {
  const auto files = page_files();
  const auto found = std::find_if(files.begin(), files.end(), [&](const auto& file) { return name == file.name; });
  CHECK(found != files.end(), "the page file {} is not embedded", name);
  return found->text;
}

// Returns the document as ASCII text without "<".
std::string text_of(const nlohmann::json& document) {
  std::string text;
  for (const char c : document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string html_page(const char* title, std::initializer_list<const char*> scripts, const nlohmann::json& document) {
  std::string script;
  for (const char* name : scripts) script += embedded(name);
  std::string page;
  std::string_view rest = embedded("template");
  const auto put = [&](std::string_view place, std::string_view text) {
    const size_t at = rest.find(place);
    CHECK(at != std::string_view::npos, "template.html has no {} in its order", place);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + place.size());
  };
  put("{{title}}", title);
  put("{{style}}", embedded("style"));
  put("{{document}}", text_of(document));
  put("{{script}}", script);
  return page.append(rest);
}

}  // namespace octavo
