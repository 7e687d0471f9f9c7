// Names of the enumerations' values in a config. The tables kOptimizers, kRecipes and kLmHeads contain their own names.
#pragma once

#include <array>

#include "app/config/config.h"
#include "app/config/config_values.h"

namespace octavo::config_names {

inline constexpr Choice<Shuffle> kShuffle[] = {{"lcg", Shuffle::kLcg}, {"none", Shuffle::kNone}};
inline constexpr Choice<OnMaxEpochs> kOnMaxEpochs[] = {{"warn", OnMaxEpochs::kWarn}, {"error", OnMaxEpochs::kError}};
inline constexpr Choice<OnLossSpike> kOnLossSpike[] = {
    {"warn", OnLossSpike::kWarn}, {"skip", OnLossSpike::kSkip}, {"rollback", OnLossSpike::kRollback}};
inline constexpr Choice<OnPrecisionGap> kOnPrecisionGap[] = {{"warn", OnPrecisionGap::kWarn},
                                                             {"bfloat16", OnPrecisionGap::kBFloat16}};
inline constexpr Choice<OnCorruption> kOnCorruption[] = {
    {"stop", OnCorruption::kStop}, {"exclude", OnCorruption::kExclude}, {"warn", OnCorruption::kWarn}};
inline constexpr Choice<KeyClass> kKeyClass[] = {
    {"free", KeyClass::kCarriesOut},    {"model", KeyClass::kModel},       {"data", KeyClass::kData},
    {"training", KeyClass::kTraining},  {"schedule", KeyClass::kSchedule}, {"optimizer", KeyClass::kOptimizer},
    {"precision", KeyClass::kPrecision}};
// Classes of keys that checkpoint.allow_changes accepts, which are all but the first two.
inline constexpr std::span<const Choice<KeyClass>> kAllowedChange = std::span(kKeyClass).subspan(2);
inline constexpr Choice<Schedule> kSchedule[] = {{"cosine", Schedule::kCosine},
                                                 {"linear", Schedule::kLinear},
                                                 {"constant", Schedule::kConstant},
                                                 {"wsd", Schedule::kWsd},
                                                 {"inverse_sqrt", Schedule::kInverseSqrt}};
inline constexpr Choice<Decay> kDecayType[] = {{"linear", Decay::kLinear}, {"sqrt", Decay::kSqrt}};
inline constexpr Choice<DType> kFloatType[] = {{"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}};
inline constexpr Choice<DType> kStateType[] = {
    {"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}, {"float8", DType::kFloat8E4M3}};
inline constexpr Choice<DType> kFloat8Type[] = {{"e4m3", DType::kFloat8E4M3}, {"e5m2", DType::kFloat8E5M2}};
inline constexpr Choice<FastAccumulation> kFastAccumulation[] = {
    {"forward", FastAccumulation::kForward}, {"all", FastAccumulation::kAll}, {"none", FastAccumulation::kNone}};
inline constexpr Choice<ActivationCheckpointing::Mode> kMode[] = {
    {"auto", ActivationCheckpointing::Mode::kAuto},
    {"none", ActivationCheckpointing::Mode::kNone},
    {"selective", ActivationCheckpointing::Mode::kSelective},
    {"block", ActivationCheckpointing::Mode::kBlock},
    {"full", ActivationCheckpointing::Mode::kFull}};
inline constexpr Choice<AutoBool> kAutoBool[] = {
    {"auto", AutoBool::kAuto}, {"true", AutoBool::kTrue}, {"false", AutoBool::kFalse}};
inline constexpr Choice<PipelineSchedule> kPipelineSchedule[] = {{"1f1b", PipelineSchedule::kOneForwardOneBackward},
                                                                 {"interleaved", PipelineSchedule::kInterleaved},
                                                                 {"zero_bubble", PipelineSchedule::kZeroBubble}};
inline constexpr Choice<NcclMemory> kNcclMemory[] = {
    {"auto", NcclMemory::kAuto}, {"plain", NcclMemory::kPlain}, {"registered", NcclMemory::kRegistered}};
inline constexpr Choice<LogColor> kLogColor[] = {
    {"auto", LogColor::kAuto}, {"always", LogColor::kAlways}, {"never", LogColor::kNever}};
inline constexpr Choice<DeviceChoice> kDevice[] = {
    {"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}};

// Returns the names and values of the rows of a table.
template <typename Row, size_t kRows, typename Enum>
constexpr std::array<Choice<Enum>, kRows> rows_of(const Row (&table)[kRows], Enum Row::*value) {
  std::array<Choice<Enum>, kRows> choices{};
  for (size_t i = 0; i < kRows; ++i) choices[i] = {table[i].name, table[i].*value};
  return choices;
}
inline constexpr auto kOptimizerType = rows_of(kOptimizers, &OptimizerTraits::type);
inline constexpr auto kLinear = rows_of(kRecipes, &RecipeTraits::recipe);
inline constexpr auto kLmHead = rows_of(kLmHeads, &LmHeadTraits::precision);

}  // namespace octavo::config_names
