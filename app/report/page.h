// Makes pages, each a single HTML file that loads no other files. template.html, style.css and the scripts of this
// folder are embedded in the program. A page consists of them and of one JSON document, from which the scripts create
// everything that the page shows.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace octavo {

// Returns the page with the embedded `scripts`, in order. Texts in `document` can neither become markup nor end the
// element that contains them. Invalid UTF-8 becomes replacement characters, and numbers that are not finite become
// null.
std::string html_page(const char* title, std::initializer_list<const char*> scripts, const nlohmann::json& document);

}  // namespace octavo
