#include "kernels/documents.h"

#include <algorithm>

namespace octavo {

void append_documents(std::span<const int32_t> document_start, int64_t seq_len, std::vector<Document>& documents) {
  const auto first = static_cast<std::ptrdiff_t>(documents.size());
  for (size_t t = 0; t < document_start.size(); ++t) {
    const bool begins = document_start[t] == static_cast<int64_t>(t) % seq_len;
    if (begins) documents.push_back({.begin = static_cast<int32_t>(t), .length = 0});
    ++documents.back().length;
  }
  std::sort(documents.begin() + first, documents.end(), [](const Document& a, const Document& b) {
    return a.length != b.length ? a.length > b.length : a.begin < b.begin;
  });
}

}  // namespace octavo
