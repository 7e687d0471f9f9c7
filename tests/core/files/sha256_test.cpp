#include "core/files/sha256.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

std::string sha256(std::string_view bytes, size_t chunk) {
  Sha256 hash;
  for (size_t done = 0; done < bytes.size(); done += chunk) hash.add(bytes.substr(done, chunk));
  return hash.hex();
}

// The examples of FIPS 180-2, and the empty text.
TEST(Sha256, EqualsThePublishedHashes) {
  const std::string two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  for (const size_t chunk : {1, 7, 64, 100}) {
    EXPECT_EQ(sha256("", chunk), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256("abc", chunk), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256(two_blocks, chunk), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(sha256(std::string(1'000'000, 'a'), chunk),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

}  // namespace
}  // namespace octavo
