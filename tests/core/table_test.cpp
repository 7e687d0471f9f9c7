#include "core/table.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace octavo {
namespace {

TEST(Table, WritesItsRowsAsTextAndAsJson) {
  Table table;
  const auto add = [&](const char* name, int bytes, const Table::Json& share, const Table::Json& kept,
                       const char* note) {
    table.row()
        .add({"name", "item", -8}, name)
        .add({"bytes", "KiB", 6, "{:.1f}", 1.0 / 1024}, bytes)
        .add({"", "share", 5, "{:.0f}%", 100}, share)
        .add({"tokens", "tokens", 9, ","}, 1234567.2)
        .add({"kept", "kept", 4}, kept)
        .add({"hidden"}, 7)
        .add({"note", "note", -1}, note);
  };
  add("weights", 1536, 0.25, true, "all of it");
  add("rest", 512, "", nullptr, "");
  EXPECT_EQ(table.text(),
            "item         KiB  share     tokens  kept  note\n"
            "weights      1.5    25%  1,234,567   yes  all of it\n"
            "rest         0.5         1,234,567     -\n");
  EXPECT_EQ(table.json().dump(),
            R"([{"name":"weights","bytes":1536,"tokens":1234567.2,"kept":true,"hidden":7,"note":"all of it"},)"
            R"({"name":"rest","bytes":512,"tokens":1234567.2,"kept":null,"hidden":7,"note":""}])");
  EXPECT_THROW(table.add({"more"}, 1), Error);
  EXPECT_EQ(Table().json().dump(), "[]");
}

}  // namespace
}  // namespace octavo
