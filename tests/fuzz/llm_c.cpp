// Fuzzes llm.c shards. The first byte of the input selects how the shard is read, and whether its header is repaired
// first.
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/read_tokens.h"

namespace octavo::fuzz {
namespace {

constexpr size_t kHeaderBytes = 1024;

enum Use : unsigned { kMendHeader = 1, kLlama3 = 2, kBos = 4, kEos = 8, kVocabulary = 16, kWholeHeader = 32 };

// The input has only the 12 bytes of the header that are read. The rest of the header is zeros.
std::string make_shard(unsigned use, Input& input) {
  std::string shard = input.take_bytes(12);
  if (!(use & kWholeHeader)) shard.resize(kHeaderBytes);
  shard += input.take_rest();
  if (!(use & kMendHeader)) return shard;
  shard.resize(std::max(shard.size(), kHeaderBytes));
  store_at<int32_t>(shard, 0, (use & kLlama3) ? 20240801 : 20240520);
  store_at<int32_t>(shard, 4, (use & kLlama3) ? 7 : 1);
  const size_t width = (use & kLlama3) ? 4 : 2;
  const size_t tokens = (shard.size() - kHeaderBytes) / width;
  shard.resize(kHeaderBytes + tokens * width);
  store_at(shard, 8, static_cast<int32_t>(tokens));
  return shard;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const ScratchDir dir;
  static ScratchFile bin_file(dir / "t.bin");
  static const std::string path = dir / "t.bin";

  Input input(bytes, size);
  const unsigned use = input.take<uint8_t>();
  bin_file.set(make_shard(use, input));
  accepts([&] {
    const TokenFile file(path);
    check_documents(file);
    if (use & kVocabulary) check_vocabulary(file, 50257);
    check_windows(TokenStream({path}, inserted_tokens(use & kBos, use & kEos)), /*changes=*/false);
  });
  return 0;
}

}  // namespace octavo::fuzz
