// Unpacks compressed text. Each format has a row in kCompressions and a file decoder_LIBRARY.cpp, which is the only one
// that includes a header of that library.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace octavo {

// A decoder of frames. A frame is what a compressor writes at once; a file may have several. Used by one thread. Memory
// is bounded by kMaxWindowBytes.
class Decoder {
 public:
  // Largest window of earlier text that a frame may refer to, 2^31 bytes, as `zstd --long=31` needs.
  static constexpr int kMaxWindowLog = 31;
  static constexpr int64_t kMaxWindowBytes = int64_t{1} << kMaxWindowLog;

  struct Result {
    bool ends_frame = false;  // Whether the frame is complete. The next call begins another one.
    std::string fault = {};   // Reason why the bytes are no frame. Empty if they are intact so far.
  };

  Decoder() = default;
  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Unpacks bytes of `in` into `out`, and removes from both what was read and written. Does nothing if `in` has too few
  // bytes.
  virtual Result decode(std::string_view& in, std::span<char>& out) = 0;

 protected:
  // Calls `decode` with the input and the output in a library's `stream`, and returns its result. Removes from `in` and
  // `out` what the library read and wrote.
  template <typename Stream, typename Decode>
  static auto decode_with(Stream& stream, std::string_view& in, std::span<char>& out, const Decode& decode) {
    stream.next_in = reinterpret_cast<decltype(stream.next_in)>(const_cast<char*>(in.data()));
    stream.avail_in = static_cast<decltype(stream.avail_in)>(in.size());
    stream.next_out = reinterpret_cast<decltype(stream.next_out)>(out.data());
    stream.avail_out = static_cast<decltype(stream.avail_out)>(out.size());
    const auto status = decode();
    in.remove_prefix(in.size() - stream.avail_in);
    out = out.last(stream.avail_out);
    return status;
  }
};

// Return null if the build lacks the library.
std::unique_ptr<Decoder> make_zlib_decoder();
std::unique_ptr<Decoder> make_bzip2_decoder();
std::unique_ptr<Decoder> make_xz_decoder();
std::unique_ptr<Decoder> make_zstd_decoder();

struct Compression {
  std::string_view suffix;  // In lower case.
  const char* name;         // Name in messages.
  std::unique_ptr<Decoder> (*make)();
};

// The formats that are unpacked. scripts/tokenizing/blocks.py has the same rows, and docs/data.md names them.
inline constexpr std::array kCompressions = {
    Compression{".gz", "gzip", make_zlib_decoder},
    Compression{".bz2", "bzip2", make_bzip2_decoder},
    Compression{".xz", "xz", make_xz_decoder},
    Compression{".zst", "Zstandard", make_zstd_decoder},
    Compression{".zstd", "Zstandard", make_zstd_decoder},
};

}  // namespace octavo
