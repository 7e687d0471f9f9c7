#include "app/records/alert_command.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

RunEvent event(EventKind kind, std::string text, std::optional<int64_t> step = {}) {
  return {.kind = kind, .step = step, .text = std::move(text)};
}

TEST(AlertCommandTest, EventsThatAreLoggedAsWarningsCauseAlerts) {
  for (const EventKind kind : {EventKind::kSkip, EventKind::kRollback, EventKind::kFallback, EventKind::kWarning})
    EXPECT_TRUE(causes_alert(event(kind, "text"))) << event_kind_name(kind);
  for (const EventKind kind : {EventKind::kNote, EventKind::kCheckpoint, EventKind::kRestart})
    EXPECT_FALSE(causes_alert(event(kind, "text"))) << event_kind_name(kind);
  EXPECT_FALSE(causes_alert(event(EventKind::kWarning, "logging.alert_command ended with exit code 1")));
}

TEST(AlertCommandTest, EventsAreJoined) {
  const std::vector<RunEvent> events = {event(EventKind::kSkip, "a", 3), event(EventKind::kSkip, "b", 5),
                                        event(EventKind::kWarning, "c")};
  const std::span<const RunEvent> all = events;
  const Alert one = join_events(all.first(1), 0, false);
  EXPECT_EQ(one.event, "skip");
  EXPECT_EQ(one.message, "a");
  EXPECT_EQ(one.step, 3);
  EXPECT_EQ(join_events(all.first(2), 0, false).event, "skip");
  const Alert mixed = join_events(all, 4, false);
  EXPECT_EQ(mixed.event, "warning");
  EXPECT_EQ(mixed.message, "a\nb\nc\n4 more in log.txt");
  EXPECT_EQ(mixed.step, 5);
  EXPECT_EQ(join_events(all, 0, true).event, "error");
  EXPECT_EQ(join_events(all.last(1), 0, false).step, 0);
}

TEST(AlertCommandTest, AlertFitsIntoAVariable) {
  const std::vector<RunEvent> events(kMaxAlertEvents + 1, event(EventKind::kWarning, std::string(100000, 'x')));
  EXPECT_LT(join_events(events, 1, true).message.size(), 100000u);
}

}  // namespace
}  // namespace octavo
