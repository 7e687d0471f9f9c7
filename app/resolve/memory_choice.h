// The choices between keeping tensors in memory and computing, gathering or reducing them more often, fastest first. A
// choice says which activations are recomputed (activation_checkpointing.mode), whether backward gathers the full
// weights again (parallel.reshard_after_forward), and whether full gradients are kept over the micro-batches of a step
// and reduced once (parallel.accumulate_unsharded). If the config says auto, the first choice that fits is used:
//
//         activations            gathered weights   gradients
//   1.    kept                   kept               reduced once per step
//   2.    kept                   gathered again     reduced once per step
//   3.    kept                   kept               reduced in every micro-batch
//   4.    kept                   gathered again     reduced in every micro-batch
//   5-8.  mode selective         like 1 to 4        like 1 to 4
//   9.    mode block with        gathered again     reduced in every micro-batch
//         2, 3, ... blocks
//   10.   mode full              gathered again     reduced in every micro-batch
//
// The activations of the last recomputed block are in memory anyway, so recomputing a single block would save nothing.
// With pipeline stages, recomputing a single block saves its activations in all micro-batches in flight but one, so
// mode block begins with one block.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/job/job.h"

namespace octavo {

struct MemoryChoice {
  ActivationCheckpointing checkpointing;
  bool reshard_after_forward = false;
  bool accumulate_unsharded = false;
};

// Returns whether parallel.accumulate_unsharded: auto may choose true. This requires that parameters are sharded and
// that a rank has several micro-batches per step, because otherwise true would save nothing. The choice depends on the
// free memory and changes the order in which gradients are summed, so runs that must repeat bit for bit, which are
// those on CPUs and with training.deterministic, take false. Runs that send gradients in bfloat16 (precision.reduce)
// take false too, because true would send them in float32.
// Requires: `config` has been resolved for the device (resolve_device).
bool may_accumulate_unsharded(const Config& config, const MeshShape& mesh);

// Returns the choices that the config leaves open, at least one.
// Requires: `config` has been resolved for the device.
std::vector<MemoryChoice> memory_choices(const Config& config, const MeshShape& mesh);

// Returns the index of the first choice that fits, or the number of choices if none fits. Uses bisection over the
// number of recomputed blocks, because recomputing more blocks takes less memory.
size_t first_fitting(const std::vector<MemoryChoice>& choices, const std::function<bool(const MemoryChoice&)>& fits);

// Returns the job with a choice.
Job with_choice(Job job, const MemoryChoice& choice);

// Describes how much is recomputed, such as "block with ratio 0.25, 8 of 32 blocks".
std::string describe(const ActivationCheckpointing& checkpointing, int64_t num_layers);
// Describes what was chosen for a job, such as "selective, weights gathered again in backward".
std::string describe_choice(const Job& job);

}  // namespace octavo
