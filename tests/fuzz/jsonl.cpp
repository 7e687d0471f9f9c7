// Fuzzes a .jsonl file of documents. If it is packed, the result must be a token file with these documents.
#include "data/tokens/pack.h"
#include "data/tokens/token_file.h"
#include "tests/fuzz/fuzz_target.h"

namespace octavo::fuzz {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const ScratchDir dir;
  static ScratchFile file(dir / "t.jsonl");
  static const PackOptions options{.inputs = {dir / "t.jsonl"}, .output = dir / "packed"};

  file.set({reinterpret_cast<const char*>(bytes), size});
  PackSummary summary;
  if (!accepts([&] { summary = pack(options); })) return 0;
  const TokenFile packed(options.output);
  require(packed.num_documents() == summary.documents && packed.num_tokens() == summary.tokens, "all is written");
  require(summary.documents > 0 && summary.tokens <= static_cast<int64_t>(size), "documents are parts of the input");
  packed.check_vocabulary(256);
  return 0;
}

}  // namespace octavo::fuzz
