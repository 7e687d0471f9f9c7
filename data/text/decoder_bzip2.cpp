#include <bzlib.h>

#include "core/error.h"
#include "data/text/decoder.h"

namespace octavo {
namespace {

class Bzip2Decoder : public Decoder {
 public:
  Bzip2Decoder() { begin(); }
  ~Bzip2Decoder() override { BZ2_bzDecompressEnd(&stream_); }

  Result decode(std::string_view& in, std::span<char>& out) override {
    const int status = decode_with(stream_, in, out, [&] { return BZ2_bzDecompress(&stream_); });
    if (status == BZ_STREAM_END) {
      BZ2_bzDecompressEnd(&stream_);
      begin();
      return {.ends_frame = true};
    }
    if (status == BZ_OK) return {};
    return {.fault = status == BZ_DATA_ERROR_MAGIC ? "a frame does not begin with BZh" : "invalid data"};
  }

 private:
  void begin() {
    stream_ = {};
    CHECK(BZ2_bzDecompressInit(&stream_, 0, 0) == BZ_OK, "bzip2 cannot allocate memory");
  }

  bz_stream stream_{};
};

}  // namespace

std::unique_ptr<Decoder> make_bzip2_decoder() { return std::make_unique<Bzip2Decoder>(); }

}  // namespace octavo
