#include "app/train/decide.h"

#include <fmt/format.h>

#include <algorithm>

namespace octavo {

namespace {

constexpr uint64_t kStopBit = 1;
constexpr uint64_t kSaveBit = 2;
constexpr int kBackShift = 2;
constexpr uint64_t kBackMask = 3;
constexpr int kSpikeShift = 4;

Save final_save(const Facts& facts) { return facts.save_allowed ? Save::kFinal : Save::kRefused; }

// Decides the save of a run that continues.
void decide_save(const Facts& facts, Actions& actions) {
  const bool unsettled = facts.skipping || facts.comparing;
  actions.save_postponed = facts.save_postponed;
  if (facts.due.save || facts.requests.save) {
    if (unsettled || facts.save_waits) {
      actions.save_postponed = true;
      if (facts.save_waits && !facts.save_postponed && actions.notice == Notice::kNone) {
        actions.notice = Notice::kSavePostponed;
      }
    } else {
      // A refused save is not postponed: replicas that differ stay different, and the next due save compares them
      // again.
      actions.save_postponed = false;
      actions.save = facts.save_allowed ? Save::kOnDisk : Save::kNone;
    }
  } else if (facts.due.memory_save && !unsettled && facts.save_allowed) {
    actions.save = Save::kInMemory;
  }
}

}  // namespace

Due due_after_loading(const Due& due, int64_t step) {
  return step == 0 ? Due{} : Due{.comparison = due.comparison, .resume_fp8 = due.resume_fp8};
}

void Requests::roll_back(RollBack to, int64_t step) {
  roll_back_to = std::max(roll_back_to, to);
  spike = spike == 0 ? step : std::min(spike, step);
}

uint64_t Requests::pack() const {
  return (stop ? kStopBit : 0) | (save ? kSaveBit : 0) | static_cast<uint64_t>(roll_back_to) << kBackShift |
         static_cast<uint64_t>(spike) << kSpikeShift;
}

Requests Requests::unpack(uint64_t bits) {
  return {.stop = (bits & kStopBit) != 0,
          .save = (bits & kSaveBit) != 0,
          .roll_back_to = static_cast<RollBack>(bits >> kBackShift & kBackMask),
          .spike = static_cast<int64_t>(bits >> kSpikeShift)};
}

Actions decide(const Facts& facts) {
  const Due& due = facts.due;
  const Requests& requests = facts.requests;
  const bool rolls_back = requests.roll_back_to != RollBack::kNone;
  if (facts.over_limit && requests.roll_back_to != RollBack::kComparison)
    return {.save = Save::kLastGood, .next = Next::kGiveUp};
  if (requests.stop && rolls_back && facts.has_checkpoint) return {.notice = Notice::kNotSaved, .next = Next::kStop};
  if (requests.stop) return {.save = final_save(facts), .next = Next::kStop};
  if (requests.roll_back_to == RollBack::kComparison) return {.next = Next::kToComparison};
  if (requests.roll_back_to == RollBack::kCheckpoint && facts.has_checkpoint) return {.next = Next::kToCheckpoint};

  Actions actions;
  if (rolls_back) actions.notice = Notice::kNoCheckpoint;
  if (due.last) {
    actions.save = final_save(facts);
    actions.next = Next::kDone;
    return actions;
  }
  decide_save(facts, actions);
  if (due.comparison) {
    actions.next = Next::kCompare;
  } else if (due.resume_fp8) {
    actions.next = Next::kResumeFp8;
  }
  return actions;
}

bool validates(const Facts& facts) {
  if (!facts.due.validation) return false;
  const Next next = decide(facts).next;
  return next != Next::kStop && next != Next::kGiveUp && next != Next::kToCheckpoint && next != Next::kToComparison;
}

std::string cut_short(const Facts& facts) {
  const Actions actions = decide(facts);
  if (actions.next != Next::kStop || actions.save != Save::kFinal) return "";
  std::string text;
  if (facts.due.validation && !facts.validated) text = "the validation, so this step has no validation_loss";
  if (facts.comparing) text += fmt::format("{}the comparison of FP8 with bfloat16", text.empty() ? "" : ", and ");
  return text;
}

}  // namespace octavo
