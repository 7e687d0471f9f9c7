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
    stream_.next_in = const_cast<char*>(in.data());
    stream_.avail_in = static_cast<unsigned>(in.size());
    stream_.next_out = out.data();
    stream_.avail_out = static_cast<unsigned>(out.size());
    const int status = BZ2_bzDecompress(&stream_);
    in.remove_prefix(in.size() - stream_.avail_in);
    out = out.last(stream_.avail_out);
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
