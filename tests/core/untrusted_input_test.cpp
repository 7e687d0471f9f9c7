// Tests of the readers of untrusted text: printable, InputFile, JSON.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/printable.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class UntrustedInput : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(dir_ / name, std::ios::binary) << content;
    return (dir_ / name).string();
  }

  TempDir scratch_;
  fs::path dir_ = scratch_ / "";
};

void expect_refusal(const std::function<void()>& action, const std::string& part) {
  expect_mentions(message_of<InputError>(action), {part});
}

TEST(Printable, EscapesControlCharactersAndInvalidUtf8) {
  EXPECT_EQ(printable("plain, caf\u00e9 \u4e2d \U0001f600 \\n"), "plain, caf\u00e9 \u4e2d \U0001f600 \\n");
  EXPECT_EQ(printable("a\nb\tc\r\x1b[31m\x7f"), "a\\nb\\tc\\r\\x1b[31m\\x7f");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");  // 0xff never occurs in UTF-8, and 0xc3 is half a character.
  EXPECT_EQ(printable("\xc2\x85\xc2\xa0"), "\\u0085\xc2\xa0");  // U+0085 is a control character outside ASCII.
  // U+202E reverses the text after it, so that gpj.exe is displayed as exe.jpg. The next line has marks, a line
  // separator and a byte order mark.
  EXPECT_EQ(printable("\u202egpj.exe"), "\\u202egpj.exe");
  EXPECT_EQ(printable("\u200f \u2066 \u2069 \u2028 \ufeff"), "\\u200f \\u2066 \\u2069 \\u2028 \\ufeff");
  // These characters occur within words, so they are not escaped.
  EXPECT_EQ(printable("\u200c \u200d \u2027 \u202f"), "\u200c \u200d \u2027 \u202f");
  // The bytes are an overlong encoding, a surrogate, and a code point beyond the range of Unicode.
  EXPECT_EQ(printable("\xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80"), "\\xc0\\xaf \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80");
}

TEST(Printable, LongTextLosesItsMiddle) {
  EXPECT_EQ(printable("0123456789", 10), "0123456789");
  EXPECT_EQ(printable("begin" + std::string(1000, 'x') + "end.!", 15), "begin ... end.!");
  for (const size_t length : {601u, 1200u, 1201u, 1'000'000u}) {
    const std::string ascii = printable(std::string(length, '\n'));
    EXPECT_LE(ascii.size(), kMaxSentenceBytes);
    EXPECT_GE(ascii.size(), kMaxSentenceBytes - 8);
    std::string wide;
    while (wide.size() < length) wide += "\u4e2d";
    const std::string shortened = printable(wide);
    EXPECT_LE(shortened.size(), kMaxSentenceBytes);
    EXPECT_EQ(shortened, printable(shortened)) << "no character is cut in two";
  }
}

TEST(Printable, LinesKeepTheirEnds) {
  EXPECT_EQ(printable_lines("a\n\tb\r\x1b[2J\xff\u009b"), "a\n\tb\\r\\x1b[2J\\xff\\u009b");
  const std::string long_text(10'000, 'x');
  EXPECT_EQ(printable_lines(long_text), long_text);
}

TEST(Printable, RecognizesUtf8) {
  for (const char* text : {"", "plain \x1b\n", "caf\u00e9 \u0085 \U0001f600"}) EXPECT_TRUE(is_utf8(text)) << text;
  for (const char* text : {"\xff", "a\xc3", "\xc0\xaf", "\xed\xa0\x80"}) EXPECT_FALSE(is_utf8(text)) << printable(text);
  for (const char* text :
       {"", "a", "caf\u00e9", "\U0001f600", "\xff", "\xc0", "\xf5\x80", "\xe2\x82\xac", "\x80\x80\x80\x80"}) {
    EXPECT_EQ(incomplete_character_bytes(text), 0U) << printable(text);
  }
  EXPECT_EQ(incomplete_character_bytes("a\xc3"), 1U);
  EXPECT_EQ(incomplete_character_bytes("\xe2\x82"), 2U);
  EXPECT_EQ(incomplete_character_bytes("a\xf0\x9f\x98"), 3U);
}

TEST(Printable, JsonHasNoControlCharacters) {
  const nlohmann::json json{{"a\x7f", "\x1b \u009b caf\u00e9 \xff"}};
  const std::string text = printable_json(json);
  EXPECT_EQ(text, "{\"a\\u007f\":\"\\u001b \\u009b caf\u00e9 \ufffd\"}");
  EXPECT_EQ(nlohmann::json::parse(text).at("a\x7f"), "\x1b \u009b caf\u00e9 \ufffd");
  EXPECT_EQ(printable_json(nlohmann::ordered_json{{"b", 1}, {"a", "x"}}, 1), "{\n \"b\": 1,\n \"a\": \"x\"\n}");
}

TEST_F(UntrustedInput, NamesOfFilesArePlain) {
  for (const char* name : {"a", "rank_00000.safetensors", "..a", "caf\u00e9 x"}) EXPECT_TRUE(is_plain_file_name(name));
  for (const char* name : {"", ".", "..", "a/b", "/a", "../a", "a\n", "\x1b[2J", "\xff"}) {
    EXPECT_FALSE(is_plain_file_name(name)) << printable(name);
  }
  EXPECT_FALSE(is_plain_file_name(std::string_view("a\0b", 3)));
}

TEST_F(UntrustedInput, LinksStayInside) {
  fs::create_directories(dir_ / "cache/blobs");
  fs::create_directories(dir_ / "cache/snapshots/1");
  const fs::path home = dir_ / "cache/snapshots/1";
  std::ofstream(dir_ / "cache/blobs/x") << "x";
  std::ofstream(dir_ / "outside") << "x";
  std::ofstream(home / "file") << "x";
  fs::create_symlink("file", home / "near");
  fs::create_symlink("../../blobs/x", home / "cached");
  fs::create_symlink("../../../outside", home / "far");
  fs::create_symlink(dir_ / "outside", home / "absolute");
  fs::create_symlink("nowhere", home / "nowhere");
  for (const char* name : {"file", "near", "cached", "nowhere", "not_there"}) {
    EXPECT_EQ(path_inside(home.string(), name), (home / name).string());
  }
  for (const char* name : {"far", "absolute"}) {
    expect_refusal([&] { path_inside(home.string(), name); }, "1/" + std::string(name) + ": is a link that leads out");
  }
  // The directory itself may be a link.
  fs::create_symlink(home, dir_ / "link");
  EXPECT_EQ(path_inside((dir_ / "link").string(), "near"), (dir_ / "link/near").string());
  expect_refusal([&] { path_inside((dir_ / "link").string(), "far"); }, "is a link that leads out");
}

TEST_F(UntrustedInput, ReadsAllAndLineByLine) {
  const std::string big = std::string(3'000'000, 'x') + "\n\n" + std::string(1'048'576, 'y') + "\nlast";
  for (const std::string& content :
       {std::string(), std::string("\n"), std::string("a\n\nb"), std::string("a\nb\n"), big}) {
    const std::string path = write("file", content);
    EXPECT_EQ(read_input_file(path), content);
    InputFile file(path);
    EXPECT_EQ(file.size_bytes(), static_cast<int64_t>(content.size()));
    std::ifstream expected(path);
    std::string line, expected_line;
    while (std::getline(expected, expected_line)) {
      ASSERT_TRUE(file.read_line(line));
      EXPECT_EQ(line, expected_line);
    }
    EXPECT_FALSE(file.read_line(line));
    EXPECT_FALSE(file.read_line(line));
  }
  EXPECT_EQ(read_input_file(write("file", "1234"), 4), "1234");
  expect_refusal([&] { read_input_file(write("file", "12345"), 4); }, "file: is longer than 4 bytes");
  EXPECT_FALSE(read_input_file("/proc/self/status").empty());  // The kernel reports a size of 0 for this file.
}

TEST_F(UntrustedInput, RefusesPathsThatAreNotFiles) {
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  fs::create_symlink("loop", dir_ / "loop");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (dir_ / "socket").string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::vector<std::pair<std::string, std::string>> cases{{"fifo", "fifo: is a FIFO"},
                                                               {"socket", "socket: is a socket"},
                                                               {"loop", "loop: cannot be opened"},
                                                               {"missing", "missing: cannot be opened"}};
  for (const auto& [name, message] : cases) expect_refusal([&] { read_input_file((dir_ / name).string()); }, message);
  ::close(socket);
  expect_refusal([&] { read_input_file(dir_.string()); }, "is a directory, expected a file");
  expect_refusal([] { read_input_file("/dev/zero"); }, "/dev/zero: is a device");
  expect_refusal([] { read_input_file("/proc/self/mem"); }, "/proc/self/mem: cannot be read");
}

TEST_F(UntrustedInput, OnlyAMissingPathIsAbsent) {
  const std::string file = write("file", "");
  EXPECT_TRUE(path_exists(file));
  EXPECT_FALSE(is_directory_at(file));
  EXPECT_TRUE(is_directory_at(dir_.string()));
  for (const std::string& path : {(dir_ / "missing").string(), file + "/below", std::string()}) {
    EXPECT_FALSE(path_exists(path));
    EXPECT_FALSE(is_directory_at(path));
  }
  fs::create_symlink("loop", dir_ / "loop");
  expect_refusal([&] { path_exists((dir_ / "loop/below").string()); }, "loop/below: cannot be accessed: Too many");
}

TEST_F(UntrustedInput, JsonOfAnyDepthIsParsedOrRefused) {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    const auto nested = [&](int depth) {
      std::string text, end;
      for (int i = 0; i < depth; ++i) {
        text += open;
        end += close;
      }
      return text + "1" + end;
    };
    EXPECT_EQ(parse_json(nested(kMaxJsonDepth), "x").dump(), nested(kMaxJsonDepth));
    for (const int depth : {kMaxJsonDepth + 1, 100'000, 1'000'000}) {
      expect_refusal([&] { parse_json(nested(depth), "x"); }, "x: has lists and objects nested more than 64 deep");
      expect_refusal([&] { parse_ordered_json(nested(depth).substr(0, nested(depth).find('1')), "x"); }, "64 deep");
    }
  }
  const std::string brackets = R"({"\"[[\\": "]]{{\\\"", "a": [)" + std::string(100, ' ') + "]}";
  EXPECT_EQ(parse_json(brackets, "x").size(), 2u) << "brackets in strings do not count";
  const std::string wide = "[" + std::string(static_cast<size_t>(kMaxOrderedJsonBytes) - 2, ' ') + "]";
  EXPECT_TRUE(parse_ordered_json(wide, "x").empty());
  expect_refusal([&] { parse_ordered_json(wide + " ", "x"); }, "x: has 65537 bytes, expected at most 65536");
  std::string flat = "[";
  for (int i = 0; i < 200'000; ++i) flat += "{},";
  EXPECT_EQ(parse_json(flat + "{}]", "x").size(), 200'001u);
}

TEST_F(UntrustedInput, JsonFaultsAreNamed) {
  for (const char* text : {"", "{", "[1,]", "nul", "1 2", "\"\xff\"", "1e999", "\"\\ud800\""}) {
    const std::string message = input_error_of([&] { parse_json(text, "file.json"); });
    EXPECT_EQ(message.rfind("file.json: is not JSON: ", 0), 0u) << message;
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  }
  EXPECT_LE(input_error_of([] { parse_json('"' + std::string(100'000, 'x'), "f"); }).size(), 300u);
  expect_refusal([&] { read_json_file(write("file", "{")); }, "file: is not JSON: ");
}

TEST_F(UntrustedInput, IntegersDoNotWrap) {
  const nlohmann::json json = parse_json(
      R"({"most": 9223372036854775807, "beyond": 9223372036854775808, "minus": -1, "real": 1.0, "text": "1", "five": 5})",
      "x");
  EXPECT_EQ(integer_at(json, "most", "file"), 9223372036854775807);
  EXPECT_EQ(integer_at(json, "minus", "file", -1), -1);
  EXPECT_EQ(integer_at(json, "five", "file", 5, 5), 5);
  for (const char* key : {"beyond", "minus", "real", "text"}) {
    expect_refusal([&] { integer_at(json, key, "file"); },
                   fmt::format("file: {} is {}, expected", key, json[key].dump()));
  }
  expect_refusal([&] { integer_at(json, "five", "file", 6, 9); }, "file: five is 5, expected an integer from 6 to 9");
  expect_refusal([&] { integer_at(json, "six", "file"); }, "file: has no six");
  expect_refusal([&] { integer_at(json["five"], "six", "file"); }, "file: has no six");
}

}  // namespace
}  // namespace octavo
