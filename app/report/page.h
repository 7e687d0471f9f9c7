// Pages: one HTML file each, which loads nothing. template.html, style.css and the scripts of this folder are part of
// the program; a page is made of them and of one JSON document, from which its scripts make everything that it shows.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace octavo {

// Returns the page with the embedded `scripts`, one after another. Nothing in `document` can become markup or end its
// element, whatever texts and numbers it has: text that is not UTF-8 gets replacement characters, and a number that is
// not finite is null.
std::string html_page(const char* title, std::initializer_list<const char*> scripts, const nlohmann::json& document);

}  // namespace octavo
