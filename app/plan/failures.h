// Estimates the share of a run's time that is spent in steps that count when GPUs fail, and the best interval between
// checkpoints.
//
// Assume that saving takes d seconds after every t seconds of steps, that a restart takes R seconds, and that failures
// occur at random, every M seconds on average. Then T seconds of steps take
//
//   M e^(R/M) (e^((t+d)/M) - 1) T/t
//
// seconds (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation
// Computer Systems 22 (2006)). The time is close to its minimum at t = sqrt(2 d M) (J. W. Young, A first order
// approximation to the optimum checkpoint interval, CACM 17 (1974)).
#pragma once

#include <cstdint>

namespace octavo {

struct FailureRates {
  // Mean time between failures of one GPU. The default follows from 466 interruptions, including planned ones, in 54
  // days of 16,384 GPUs (The Llama 3 Herd of Models, https://arxiv.org/abs/2407.21783, section 3.3.4).
  double gpu_mtbf_hours = 45566;
  // Time that a checkpoint adds to its step in seconds (docs/benchmarks/2026-11-22-reliability.md).
  double save_s = 0.3;
  // Time from a failure to the next step in seconds. 0 means restart_seconds(gpus).
  double restart_s = 0;
};

// Returns the time from a failure to the next step in seconds: 22 s, measured on two GPUs
// (docs/benchmarks/2026-11-22-reliability.md), plus the time that NCCL needs to connect more GPUs, 265 s for 96,000
// (https://arxiv.org/abs/2510.20171).
double restart_seconds(int64_t gpus);

// Returns the mean time between failures of a run on `gpus` GPUs, in seconds.
double seconds_between_failures(const FailureRates& rates, int64_t gpus);

// Returns the share of a run's time that is spent in steps that count, if the state is saved after every `interval_s`
// seconds of steps.
double goodput(const FailureRates& rates, int64_t gpus, double interval_s);

// Returns Young's interval between checkpoints in seconds of steps.
double best_interval_s(const FailureRates& rates, int64_t gpus);

}  // namespace octavo
