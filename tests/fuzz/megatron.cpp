// Fuzzes PREFIX.idx and PREFIX.bin of Megatron's format. The input selects how they are read, which parts of the index
// are repaired first (most random indexes fail the first check), and which bytes another process overwrites during the
// read.
#include <nlohmann/json.hpp>

#include "data/inspect.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/read_tokens.h"

namespace octavo::fuzz {
namespace {

constexpr size_t kHeaderBytes = 34, kMostBytes = size_t{1} << 16;

enum Mend : unsigned { kMendHeader = 1, kMendSequences = 2, kMendDocuments = 4, kMendBin = 8 };
enum Use : unsigned {
  kBos = 1,
  kEos = 2,
  kTwice = 4,
  kRewrite = 8,
  kVocabulary = 16,
  kInspect = 0xE0  // Inspection is slow, so only inputs with all three bits are inspected.
};

// Positions of the numbers in an index with a complete header, as far as the file contains them.
struct Index {
  std::string& bytes;
  size_t sequences, entries;

  explicit Index(std::string& text) : bytes(text) {
    const size_t left = bytes.size() - kHeaderBytes;
    sequences = std::min<uint64_t>(load_at<uint64_t>(bytes, 18), left / 12);
    entries = std::min<uint64_t>(load_at<uint64_t>(bytes, 26), (left - 12 * sequences) / 8);
  }
  int64_t width() const { return bytes[17] == 1 ? 1 : bytes[17] == 8 ? 2 : 4; }
  size_t length_at(size_t s) const { return kHeaderBytes + 4 * s; }
  size_t offset_at(size_t s) const { return kHeaderBytes + 4 * sequences + 8 * s; }
  size_t entry_at(size_t d) const { return kHeaderBytes + 12 * sequences + 8 * d; }
};

void mend_header(std::string& idx) {
  idx.resize(std::max(idx.size(), kHeaderBytes + 8));
  const uint64_t sequences = load_at<uint64_t>(idx, 18) % ((idx.size() - kHeaderBytes - 8) / 12 + 1);
  const uint64_t entries = (idx.size() - kHeaderBytes - 12 * sequences) / 8;
  idx.resize(kHeaderBytes + 12 * sequences + 8 * entries);
  idx.replace(0, 9, std::string_view("MMIDIDX\0\0", 9));
  store_at<uint64_t>(idx, 9, 1);
  idx[17] = "\1\4\x8"[static_cast<unsigned char>(idx[17]) % 3];
  store_at(idx, 18, sequences);
  store_at(idx, 26, entries);
}

void mend_sequences(const Index& index) {
  int64_t offset = 0;
  for (size_t s = 0; s < index.sequences; ++s) {
    const auto length = static_cast<int32_t>(load_at<uint32_t>(index.bytes, index.length_at(s)) % 61);
    store_at(index.bytes, index.length_at(s), length);
    store_at(index.bytes, index.offset_at(s), offset);
    offset += length * index.width();
  }
}

void mend_documents(const Index& index) {
  std::vector<int64_t> entries;
  for (size_t d = 0; d < index.entries; ++d) {
    const uint64_t entry = load_at<uint64_t>(index.bytes, index.entry_at(d));
    entries.push_back(static_cast<int64_t>(entry % (index.sequences + 1)));
  }
  std::sort(entries.begin(), entries.end());
  if (!entries.empty()) entries.front() = 0;
  if (entries.size() > 1) entries.back() = static_cast<int64_t>(index.sequences);
  for (size_t d = 0; d < entries.size(); ++d) store_at(index.bytes, index.entry_at(d), entries[d]);
}

// Resizes the file to the length that the index describes.
void mend_bin(const Index& index, std::string& bin) {
  uint64_t end = 0;
  for (size_t s = 0; s < index.sequences; ++s) {
    const uint64_t bytes = load_at<uint32_t>(index.bytes, index.length_at(s)) * static_cast<uint64_t>(index.width());
    end = std::max(end, load_at<uint64_t>(index.bytes, index.offset_at(s)) + bytes);
  }
  bin.resize(std::min<uint64_t>(end, kMostBytes), '\7');
}

void mend(unsigned what, std::string& idx, std::string& bin) {
  if (what & kMendHeader) mend_header(idx);
  if (idx.size() < kHeaderBytes) return;
  const Index index(idx);
  if (what & kMendSequences) mend_sequences(index);
  if (what & kMendDocuments) mend_documents(index);
  if (what & kMendBin) mend_bin(index, bin);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const ScratchDir dir;
  static ScratchFile idx_file(dir / "t.idx"), bin_file(dir / "t.bin");
  static const std::string path = dir / "t";

  Input input(bytes, size);
  const unsigned mended = input.take<uint8_t>(), use = input.take<uint8_t>();
  const size_t idx_bytes = input.take<uint16_t>(), position = input.take<uint16_t>();
  const std::string written = input.take_bytes(8);
  std::string idx = input.take_bytes(idx_bytes), bin = input.take_rest();
  mend(mended, idx, bin);
  idx_file.set(idx);
  bin_file.set(bin);

  accepts([&] {
    const TokenFile file(path);
    check_documents(file);
    if (use & kVocabulary) check_vocabulary(file, 1 + static_cast<int64_t>(position));
    if ((use & kInspect) == kInspect) (void)inspect_token_file(path).dump(2);
    const std::vector<std::string> paths((use & kTwice) ? 2 : 1, path);
    const TokenStream stream(paths, inserted_tokens(use & kBos, use & kEos));
    check_windows(stream, /*changes=*/false);
    if (!(use & kRewrite)) return;
    const size_t at = kHeaderBytes + position % (idx.size() - kHeaderBytes);
    idx_file.overwrite(at, std::string_view(written).substr(0, idx.size() - at));
    check_windows(stream, /*changes=*/true);
    accepts([&] { file.check_vocabulary(300); });
  });
  return 0;
}

}  // namespace octavo::fuzz
