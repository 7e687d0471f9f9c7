#include "kernels/attention_shapes/documents.h"

namespace octavo {

void append_documents(std::span<const int32_t> document_start, int64_t seq_len, std::vector<Document>& documents,
                      const ContextRank& context) {
  const int64_t chunk = seq_len / context.chunks();
  for (size_t t = 0; t < document_start.size(); ++t) {
    const auto token = static_cast<int64_t>(t);
    const int64_t before = context.position(token % seq_len, seq_len * context.size) - document_start[t];
    if (before == 0 || token % chunk == 0) {
      documents.push_back({.begin = static_cast<int32_t>(t), .length = 0, .before = static_cast<int32_t>(before)});
    }
    ++documents.back().length;
  }
}

void write_documents(std::span<const Document> documents, int32_t* numbers) {
  static_assert(sizeof(Document) == kNumbersOfDocument * sizeof(int32_t));
  for (const Document& document : documents) {
    *numbers++ = document.begin;
    *numbers++ = document.length;
    *numbers++ = document.before;
  }
}

}  // namespace octavo
