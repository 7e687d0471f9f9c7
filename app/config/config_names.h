// The names of the config's enumerations, shared by reading and writing.
#pragma once

#include "app/config/config.h"
#include "app/config/config_reader.h"

namespace octavo::config_names {

inline constexpr Choice<Shuffle> kShuffle[] = {{"lcg", Shuffle::kLcg}, {"none", Shuffle::kNone}};
inline constexpr Choice<Schedule> kSchedule[] = {{"cosine", Schedule::kCosine},
                                                 {"linear", Schedule::kLinear},
                                                 {"constant", Schedule::kConstant},
                                                 {"wsd", Schedule::kWsd}};
inline constexpr Choice<DType> kFloatType[] = {{"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}};
inline constexpr Choice<LinearPrecision> kLinear[] = {{"bfloat16", LinearPrecision::kBFloat16},
                                                      {"fp8_tensorwise", LinearPrecision::kFp8Tensorwise},
                                                      {"fp8_delayed", LinearPrecision::kFp8Delayed},
                                                      {"fp8_rowwise", LinearPrecision::kFp8Rowwise},
                                                      {"fp8_blockwise", LinearPrecision::kFp8Blockwise}};
inline constexpr Choice<DType> kFloat8Type[] = {{"e4m3", DType::kFloat8E4M3}, {"e5m2", DType::kFloat8E5M2}};
inline constexpr Choice<FastAccumulation> kFastAccumulation[] = {
    {"forward", FastAccumulation::kForward}, {"all", FastAccumulation::kAll}, {"none", FastAccumulation::kNone}};
inline constexpr Choice<ActivationCheckpointing::Mode> kMode[] = {
    {"auto", ActivationCheckpointing::Mode::kAuto},
    {"none", ActivationCheckpointing::Mode::kNone},
    {"selective", ActivationCheckpointing::Mode::kSelective},
    {"block", ActivationCheckpointing::Mode::kBlock},
    {"full", ActivationCheckpointing::Mode::kFull}};
inline constexpr Choice<Reshard> kReshard[] = {
    {"auto", Reshard::kAuto}, {"true", Reshard::kTrue}, {"false", Reshard::kFalse}};
inline constexpr Choice<NcclMemory> kNcclMemory[] = {{"auto", NcclMemory::kAuto},
                                                     {"plain", NcclMemory::kPlain},
                                                     {"registered", NcclMemory::kRegistered},
                                                     {"copy_engine", NcclMemory::kCopyEngine}};
inline constexpr Choice<DeviceChoice> kDevice[] = {
    {"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}};

template <typename Enum, size_t kCount>
const char* name_of(const Choice<Enum> (&choices)[kCount], Enum value) {
  for (const Choice<Enum>& one : choices) {
    if (one.value == value) return one.name;
  }
  return "?";
}

}  // namespace octavo::config_names
