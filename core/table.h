// Table: rows of values as aligned text and as JSON. Each value is stated once, with its key in JSON, its title in the
// text and how the text shows it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace octavo {

struct Column {
  const char* key = "";       // in JSON; empty for a column of the text alone
  std::string title = {};     // in the text
  int width = 0;              // in the text; negative for a column aligned to the left, 0 for one of JSON alone
  const char* format = "{}";  // of numbers in the text; "," separates thousands
  double scale = 1;           // factor of numbers in the text
};

class Table {
 public:
  using Json = nlohmann::ordered_json;

  // Begins a row.
  Table& row();
  // Adds the next value of the row. The columns are those of the first row. In the text null is "-", and true is "yes".
  Table& add(const Column& column, const Json& value);

  // Returns an array with an object for each row.
  Json json() const;
  // Returns a line of titles and a line for each row, each with its newline and without trailing spaces.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Json>> rows_;
};

}  // namespace octavo
