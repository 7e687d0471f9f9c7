#include <zlib.h>

#include "core/error.h"
#include "data/text/decoder.h"

namespace octavo {
namespace {

class ZlibDecoder : public Decoder {
 public:
  ZlibDecoder() {
    constexpr int kGzipHeader = 16;
    CHECK(inflateInit2(&stream_, MAX_WBITS + kGzipHeader) == Z_OK, "zlib cannot allocate memory");
  }
  ~ZlibDecoder() override { inflateEnd(&stream_); }

  Result decode(std::string_view& in, std::span<char>& out) override {
    const int status = decode_with(stream_, in, out, [&] { return inflate(&stream_, Z_NO_FLUSH); });
    if (status == Z_STREAM_END) {
      inflateReset(&stream_);
      return {.ends_frame = true};
    }
    if (status == Z_OK || status == Z_BUF_ERROR) return {};
    return {.fault = stream_.msg != nullptr ? stream_.msg : "invalid data"};
  }

 private:
  z_stream stream_{};
};

}  // namespace

std::unique_ptr<Decoder> make_zlib_decoder() { return std::make_unique<ZlibDecoder>(); }

}  // namespace octavo
