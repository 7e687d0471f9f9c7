// Table: rows of values as aligned text and as JSON. Each value is stated once, with its JSON key, its title and its
// format.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace octavo {

struct Column {
  const char* key = "";       // Key in JSON. Empty for a column of the text only.
  std::string title = {};     // Title in the text.
  int width = 0;              // Width in the text. Negative aligns to the left. 0 omits the column from the text.
  const char* format = "{}";  // Format of numbers in the text. "," separates thousands.
  double scale = 1;           // Factor by which the text multiplies numbers.
};

class Table {
 public:
  using Json = nlohmann::ordered_json;

  // Begins a row.
  Table& row();
  // Adds the next value of the row. The first row defines the columns. In the text null is "-" and true is "yes".
  Table& add(const Column& column, const Json& value);

  // Returns an array with one object per row.
  Json json() const;
  // Returns a line of titles and one line per row, each with a newline and without trailing spaces.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Json>> rows_;
};

}  // namespace octavo
