// The CUDA implementations of the ops in kernels/optimizer/ (kernels/cuda/dispatch.h). Each has the contract of its op.
#pragma once

#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/ema.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/skip_update.h"

namespace octavo::cuda {

void adamw(const Adamw& args, Stream& stream);
void ema(const Ema& args, Stream& stream);
void muon_momentum(const MuonMomentum& args, Stream& stream);
void muon_rows(const MuonRows& args, Stream& stream);
void muon_polynomial(const MuonPolynomial& args, Stream& stream);
void muon_update(const MuonUpdate& args, Stream& stream);
void skip_update(const SkipUpdate& args, Stream& stream);

}  // namespace octavo::cuda
