// How much of a run's time counts when GPUs fail: what is saved, done again and restarted, and how often to save.
//
// With T seconds of steps, a save of d seconds after every t seconds of them, R seconds of a restart and failures that
// come at random, one in M seconds on average, a run takes
//
//   M e^(R/M) (e^((t+d)/M) - 1) T/t
//
// (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
// Systems 22 (2006)). It is shortest near t = sqrt(2 d M) (1 + sqrt(d/2M)/3 + (d/2M)/9) - d (the same; M where d > 2
// M), whose first factor alone is J. W. Young's (A first order approximation to the optimum checkpoint interval, CACM
// 17 (1974)).
#pragma once

#include <cstdint>

namespace octavo {

// Interruptions of a GPU and day: 466 in 54 days of 16,384 GPUs (The Llama 3 Herd of Models, https://arxiv.org/abs/
// 2407.21783, section 3.3.4), planned ones too.
inline constexpr double kPublishedFailuresPerGpuDay = 466.0 / 54 / 16384;

struct FailureRates {
  double failures_per_gpu_day = kPublishedFailuresPerGpuDay;  // at least 0
  // What a save adds to the step that makes it: copies run beside steps, and the longest step of a run that saved took
  // 0.3 s more than the others (docs/benchmarks/2026-11-22-reliability.md).
  double save_s = 0.3;
  double restart_s = 0;  // from a failure to the next step; 0: restart_seconds(gpus)
};

// From a failure to the next step: 22 s on two GPUs (docs/benchmarks/2026-11-22-reliability.md), and with more of them
// the time in which NCCL connects them: 265 s of 96,000 (https://arxiv.org/abs/2510.20171). That a machine has to be
// found for one that is lost is not in it.
double restart_seconds(int64_t gpus);

struct RunTimes {
  double share = 1;               // steps_s of wall_s
  double wall_s = 0;              // of the whole run
  double failures = 0;            // expected in it
  double between_failures_s = 0;  // infinity where none are expected
  double restart_s = 0;           // of one
  double saving_s = 0;            // what makes up the rest of wall_s
  double restarting_s = 0;
  double repeating_s = 0;  // steps done again, and restarts that were cut short
};

// Of steps that take `steps_s` together, saved every `interval_s` of them.
RunTimes run_times(const FailureRates& rates, int64_t gpus, double steps_s, double interval_s);
// The seconds of steps between saves that make a run the shortest, by Daly; infinity where no failures are expected.
double best_interval_s(const FailureRates& rates, int64_t gpus);

}  // namespace octavo
