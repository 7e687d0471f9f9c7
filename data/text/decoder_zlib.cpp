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
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int status = inflate(&stream_, Z_NO_FLUSH);
    in.remove_prefix(in.size() - stream_.avail_in);
    out = out.last(stream_.avail_out);
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
