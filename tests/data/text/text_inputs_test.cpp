// Tests the rule that decides how an input file is read, on the cases that tests/scripts/tokenizing_test.py also uses.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/json_input.h"
#include "data/text/text_file.h"
#include "data/tokens/pack.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

std::string content_of_case(const nlohmann::json& inputs) {
  if (!inputs.contains("hex")) return inputs["content"].get<std::string>();
  const std::string hex = inputs["hex"].get<std::string>();
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

bool can_unpack(const std::string& name) {
  const FileKind kind = kind_of_file(name);
  return kind.compression == nullptr || kind.compression->make() != nullptr;
}

TEST(TextInputs, CasesOfTokenizeHf) {
  const auto cases = read_json_file(OCTAVO_SOURCE_DIR "/tests/data/text/inputs.json");
  EXPECT_GT(cases.size(), 70u);
  for (const auto& inputs : cases) {
    const std::string name = inputs["name"].get<std::string>();
    if (!can_unpack(name)) continue;
    for (const bool named : {true, false}) {
      SCOPED_TRACE(name + (named ? ", named" : ", in a directory"));
      const TempDir dir;
      write_file(dir / ("d/" + name), content_of_case(inputs));
      write_file(dir / "other.txt", "other");
      const PackOptions options{.inputs = {dir / "other.txt", named ? dir / ("d/" + name) : dir / "d"},
                                .output = dir / "p"};
      const bool is_left_out = !named && inputs.contains("left_out");
      if (!inputs.contains("documents") && !is_left_out) {
        expect_mentions(message_of<InputError>([&] { pack(options); }), inputs["refused"]);
        continue;
      }
      const PackSummary summary = pack(options);
      std::vector<std::string> expected = inputs.value("documents", std::vector<std::string>{});
      expected.insert(expected.begin(), "other");
      EXPECT_EQ(texts_of(dir / "p"), expected);
      const std::string kind = is_left_out ? inputs["left_out"].get<std::string>() : "";
      const bool is_damaged = kind.starts_with("damaged");  // Such a file is named instead of counted.
      EXPECT_EQ(summary.unreadable.size(), is_damaged ? 1 : 0);
      EXPECT_EQ(summary.describe_skipped(), is_left_out && !is_damaged ? "skipped 1 files and folders: 1 " + kind : "");
    }
  }
}

TEST(TextInputs, BlocksAndLinesOfLongFiles) {
  const TempDir dir;
  std::string text, line;
  std::vector<std::string> expected;
  for (const int64_t length :
       {int64_t{0}, TextFile::kBlockBytes - 2, int64_t{0}, 3 * TextFile::kBlockBytes, int64_t{5}}) {
    expected.emplace_back(static_cast<size_t>(length), 'x');
    text += expected.back() + "\n";
  }
  for (const char* end : {"", "last"}) {
    write_file(dir / "lines", text + end);
    TextFile file(dir / "lines", nullptr);
    std::vector<std::string> lines;
    while (file.read_line(line)) lines.push_back(line);
    std::vector<std::string> all = expected;
    if (*end != '\0') all.emplace_back(end);
    EXPECT_EQ(lines, all);
  }
}

}  // namespace
}  // namespace octavo
