// Fuzzes the output of scripts/hf_tokenizer.py for a tokenizer.json. Octavo itself does not parse tokenizer.json. A
// checkpoint only has its bytes attached.
#include "app/text/tokenizer_answer.h"

#include "tests/fuzz/fuzz_target.h"

namespace octavo::fuzz {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view output(reinterpret_cast<const char*>(bytes), size);
  accepts([&] {
    const std::vector<int32_t> ids = answered_ids(output, "t");
    require(ids.size() <= size, "an id has a byte at least");
    for (const int32_t id : ids) require(id >= 0, "no id is negative");
  });
  accepts([&] { require(answered_text(output, "t").size() <= size, "a text is part of the answer"); });
  return 0;
}

}  // namespace octavo::fuzz
