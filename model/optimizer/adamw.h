// AdamW (kernels/optimizer/adamw.h) over this rank's shard of the parameters, with one fused update per range of
// parameters that are updated alike.
#pragma once

#include <memory>

namespace octavo {

class ParameterUpdate;
struct UpdateOptions;

std::unique_ptr<ParameterUpdate> make_adamw_update(const UpdateOptions& options);

}  // namespace octavo
