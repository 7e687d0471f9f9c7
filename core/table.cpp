#include "core/table.h"

#include <cmath>
#include <string_view>

#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

std::string text_of(const Table::Json& value, const Column& column) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (std::string_view(column.format) == ",") return with_thousands_separators(std::llround(value.get<double>()));
  if (value.is_number_integer() && column.scale == 1)
    return fmt::format(fmt::runtime(column.format), value.get<int64_t>());
  return fmt::format(fmt::runtime(column.format), column.scale * value.get<double>());
}

void append(std::string& line, const std::string& text, int width) {
  if (!line.empty()) line += "  ";
  line += width < 0 ? fmt::format("{:<{}}", text, -width) : fmt::format("{:>{}}", text, width);
}

std::string ended(const std::string& line) { return line.substr(0, line.find_last_not_of(' ') + 1) + "\n"; }

}  // namespace

Table& Table::row() {
  rows_.emplace_back();
  return *this;
}

Table& Table::add(const Column& column, const Json& value) {
  std::vector<Json>& row = rows_.back();
  if (rows_.size() == 1) columns_.push_back(column);
  CHECK(row.size() < columns_.size(), "a row of a table has more values than the first row, which has {}",
        columns_.size());
  row.push_back(value);
  return *this;
}

Table::Json Table::json() const {
  Json array = Json::array();
  for (const std::vector<Json>& row : rows_) {
    Json& object = array.emplace_back(Json::object());
    for (size_t i = 0; i < row.size(); ++i) {
      if (*columns_[i].key != '\0') object[columns_[i].key] = row[i];
    }
  }
  return array;
}

std::string Table::text() const {
  std::string titles;
  for (const Column& column : columns_) {
    if (column.width != 0) append(titles, column.title, column.width);
  }
  std::string text = ended(titles);
  for (const std::vector<Json>& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (columns_[i].width != 0) append(line, text_of(row[i], columns_[i]), columns_[i].width);
    }
    text += ended(line);
  }
  return text;
}

}  // namespace octavo
