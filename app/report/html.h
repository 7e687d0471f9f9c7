// Text for HTML and SVG, and numbers as axes and tables show them.
#pragma once

#include <string>
#include <string_view>

namespace octavo {

// As content or as the value of an attribute in double quotes. What is no UTF-8 and control characters become visible
// escapes (core/printable.h).
std::string html_escape(std::string_view text);

// JSON for a script element: nothing in it ends the element.
std::string script_escape(std::string_view json);

// "1.2k", "3.5M", "2.1B".
std::string short_number(double value);
// `value` on an axis whose largest tick is `largest`: all of them with its suffix, or with an exponent.
std::string tick_label(double value, double largest);
// About five digits: "2.3416", "16,432", "3.00e-05", "-" where it is not finite.
std::string long_number(double value);

}  // namespace octavo
