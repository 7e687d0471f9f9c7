// What the pages of app/report/ have in common: their style, light or dark as the reader's system is, and the script of
// charts. Everything is in the page; nothing is loaded.
#pragma once

#include <string>
#include <string_view>

namespace octavo {

// The whole document around `body`; `script` is JavaScript, empty for none.
std::string html_page(std::string_view title, std::string_view body, std::string_view script);

// Draws the charts of `const charts = [chart_json...]`, `lastX` anew where the reader zooms (drag; a double click goes
// back), and says the values below the pointer.
std::string_view chart_script();

}  // namespace octavo
