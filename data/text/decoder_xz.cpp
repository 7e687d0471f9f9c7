#include <lzma.h>

#include "core/error.h"
#include "data/text/decoder.h"

namespace octavo {
namespace {

const char* fault_of(lzma_ret status) {
  switch (status) {
    case LZMA_FORMAT_ERROR:
      return "a frame does not begin with the bytes of an .xz file";
    case LZMA_MEMLIMIT_ERROR:
      return "its window is larger than 2 GiB";
    case LZMA_OPTIONS_ERROR:
      return "it uses options that liblzma does not know";
    default:
      return "invalid data";
  }
}

class XzDecoder : public Decoder {
 public:
  XzDecoder() { begin(); }
  ~XzDecoder() override { lzma_end(&stream_); }

  Result decode(std::string_view& in, std::span<char>& out) override {
    const lzma_ret status = decode_with(stream_, in, out, [&] { return lzma_code(&stream_, LZMA_RUN); });
    if (status == LZMA_STREAM_END) {
      begin();
      return {.ends_frame = true};
    }
    if (status == LZMA_OK || status == LZMA_BUF_ERROR) return {};
    CHECK(status != LZMA_MEM_ERROR, "liblzma cannot allocate memory");
    return {.fault = fault_of(status)};
  }

 private:
  void begin() {
    constexpr uint64_t kTables = uint64_t{1} << 20;  // Memory that liblzma needs in addition to the window.
    CHECK(lzma_stream_decoder(&stream_, kMaxWindowBytes + kTables, 0) == LZMA_OK, "liblzma cannot allocate memory");
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
};

}  // namespace

std::unique_ptr<Decoder> make_xz_decoder() { return std::make_unique<XzDecoder>(); }

}  // namespace octavo
