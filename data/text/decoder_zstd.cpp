#include <zstd.h>

#include "core/error.h"
#include "data/text/decoder.h"

namespace octavo {
namespace {

class ZstdDecoder : public Decoder {
 public:
  ZstdDecoder() : context_(ZSTD_createDCtx()) {
    CHECK(context_ != nullptr, "zstd cannot allocate memory");
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kMaxWindowLog);
  }
  ~ZstdDecoder() override { ZSTD_freeDCtx(context_); }

  Result decode(std::string_view& in, std::span<char>& out) override {
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const size_t status = ZSTD_decompressStream(context_, &output, &input);
    in.remove_prefix(input.pos);
    out = out.subspan(output.pos);
    if (ZSTD_isError(status)) return {.fault = ZSTD_getErrorName(status)};
    return {.ends_frame = status == 0};
  }

 private:
  ZSTD_DCtx* context_;
};

}  // namespace

std::unique_ptr<Decoder> make_zstd_decoder() { return std::make_unique<ZstdDecoder>(); }

}  // namespace octavo
