// Tests of events as lines of the log and of events.jsonl.
#include "app/process/events.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

namespace octavo {
namespace {

// A log sink that collects the lines of events.jsonl.
class EventLines : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::vector<std::string> lines;

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (const std::optional<RunEvent> event = event_of(message)) lines.push_back(event_json(*event));
  }
  void flush_() override {}
};

class EventsTest : public testing::Test {
 protected:
  void SetUp() override { start_log(sink_); }
  void TearDown() override { remove_log_sink(sink_); }

  RunEvent last() const { return parse_event(sink_->lines.back()).value(); }

  std::shared_ptr<EventLines> sink_ = std::make_shared<EventLines>();
};

TEST_F(EventsTest, EveryKindIsReadBack) {
  const std::vector<std::string> names = {"restart", "checkpoint", "skip", "rollback", "warning", "note", "fallback"};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto kind = static_cast<EventKind>(i);
    EXPECT_EQ(event_kind_name(kind), names[i]);
    log_event(kind, 7, "step {} of {}", 7, "a \"run\"");
    ASSERT_EQ(sink_->lines.size(), i + 1);
    const nlohmann::json written = nlohmann::json::parse(sink_->lines.back());
    EXPECT_EQ(written["event"], names[i]);
    EXPECT_EQ(last().kind, kind);
    EXPECT_EQ(last().step, 7);
    EXPECT_EQ(last().text, "step 7 of a \"run\"");
    EXPECT_EQ(last().time.size(), std::string("2026-11-22T20:34:41.120Z").size());
  }
}

TEST_F(EventsTest, AWarningOfAnyFloorIsAnEvent) {
  log_info("started in 1 s");
  EXPECT_TRUE(sink_->lines.empty());
  log_warning("{} is not used", "tuning.json");
  ASSERT_EQ(sink_->lines.size(), 1u);
  EXPECT_EQ(last().kind, EventKind::kWarning);
  EXPECT_FALSE(last().step.has_value());
  EXPECT_FALSE(nlohmann::json::parse(sink_->lines.back()).contains("step"));
}

TEST_F(EventsTest, ControlCharactersAreEscaped) {
  log_event(EventKind::kNote, 0, "red \x1b[31m \xff");
  EXPECT_EQ(last().text, "red \\x1b[31m \\xff");
  EXPECT_FALSE(last().step.has_value()) << "step 0";
}

TEST(Events, LinesThatAreNoEvents) {
  for (const char* line :
       {"", "{}", "[]", "null", R"({"event":"party","text":"x"})", R"({"event":7})", R"({"event":"ski)"}) {
    EXPECT_FALSE(parse_event(line).has_value()) << line;
  }
  EXPECT_FALSE(parse_event(R"({"event":"skip","step":"x"})")->step.has_value());
}

}  // namespace
}  // namespace octavo
