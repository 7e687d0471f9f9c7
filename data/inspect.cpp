#include "data/inspect.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/printable.h"
#include "data/loader.h"
#include "data/sample_stream.h"
#include "data/tokens/token_file.h"

namespace octavo {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kEntropyVocabulary = 1024;

// Calls visit(ids, begin) for consecutive chunks of every document, as TokenFile::for_each_piece does.
template <typename Visit>
void for_each_piece(const TokenFile& file, const Visit& visit) {
  for (int64_t d = 0; d < file.num_documents(); ++d) file.for_each_piece(d, file.document_length(d), visit);
}

struct IdRange {
  int64_t min = std::numeric_limits<int64_t>::max(), max = std::numeric_limits<int64_t>::min();
};

IdRange token_ids(const TokenFile& file) {
  IdRange range;
  for_each_piece(file, [&](std::span<const int32_t> ids, int64_t) {
    const auto [low, high] = std::ranges::minmax_element(ids);
    range = {std::min<int64_t>(range.min, *low), std::max<int64_t>(range.max, *high)};
  });
  return range;
}

// Returns -sum n ln(n / total) over `counts` with 0 ln 0 = 0, where total is their sum. The result is in nats and not
// divided by the total.
double summed_information(std::span<const int64_t> counts) {
  const int64_t total = std::reduce(counts.begin(), counts.end());
  double sum = 0;
  for (const int64_t n : counts) {
    if (n > 0) sum -= static_cast<double>(n) * std::log(static_cast<double>(n) / static_cast<double>(total));
  }
  return sum;
}

// Returns the entropy per token of single tokens (unigram) and of tokens given the previous token (bigram), in nats.
// All ids in the file must be below `end`.
OrderedJson entropies(const TokenFile& file, int64_t end) {
  const auto v = static_cast<size_t>(end);
  std::vector<int64_t> singles(v), pairs(v * v);  // pairs[previous, next]
  size_t previous = 0;
  int64_t num_pairs = 0;
  for_each_piece(file, [&](std::span<const int32_t> ids, int64_t begin) {
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto id = static_cast<size_t>(ids[i]);
      CHECK_INPUT(id < v, "{}: has been changed while it was read", file.path());
      ++singles[id];
      if (begin > 0 || i > 0) {
        ++pairs[previous * v + id];
        ++num_pairs;
      }
      previous = id;
    }
  });
  double pair_information = 0;
  for (size_t a = 0; a < v; ++a) pair_information += summed_information(std::span(pairs).subspan(a * v, v));
  OrderedJson json{{"unigram", nullptr}, {"bigram", nullptr}};
  if (file.num_tokens() > 0) json["unigram"] = summed_information(singles) / static_cast<double>(file.num_tokens());
  if (num_pairs > 0) json["bigram"] = pair_information / static_cast<double>(num_pairs);
  return json;
}

OrderedJson document_lengths(const TokenFile& file) {
  if (file.num_documents() == 0) return nullptr;
  int64_t shortest = std::numeric_limits<int64_t>::max(), longest = 0;
  for (int64_t d = 0; d < file.num_documents(); ++d) {
    const int64_t length = file.document_length(d);
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
  }
  return {{"min", shortest},
          {"mean", static_cast<double>(file.num_tokens()) / static_cast<double>(file.num_documents())},
          {"max", longest}};
}

// Returns the content of PREFIX.json, or null if there is none. Reports a problem if it is not a JSON object.
OrderedJson read_sidecar(const std::string& path, OrderedJson& problems) {
  if (!path_exists(path)) return nullptr;
  try {
    OrderedJson json = parse_ordered_json(read_input_file(path, kMaxOrderedJsonBytes), path);
    CHECK_INPUT(json.is_object(), "{}: is not a JSON object", path);
    return json;
  } catch (const InputError& error) {
    problems.push_back(error.what());
    return nullptr;
  }
}

int64_t integer_or(const OrderedJson& sidecar, const char* key, int64_t otherwise) {
  if (!sidecar.is_object() || !sidecar.contains(key) || !sidecar[key].is_number_integer()) return otherwise;
  // A value beyond int64 becomes the largest int64, which contradicts every file. It must not become negative.
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (sidecar[key].is_number_unsigned()) return static_cast<int64_t>(std::min(sidecar[key].get<uint64_t>(), kMost));
  return sidecar[key].get<int64_t>();
}

void compare_sidecar(const OrderedJson& sidecar, const TokenFile& file, const IdRange& ids, OrderedJson& problems) {
  const int64_t documents = integer_or(sidecar, "documents", file.num_documents());
  const int64_t tokens = integer_or(sidecar, "tokens", file.num_tokens());
  const int64_t vocab_size = integer_or(sidecar, "vocab_size", std::numeric_limits<int64_t>::max());
  if (documents != file.num_documents() || tokens != file.num_tokens()) {
    problems.push_back(fmt::format("the sidecar says {} documents and {} tokens, but the file has {} and {}", documents,
                                   tokens, file.num_documents(), file.num_tokens()));
  }
  if (file.num_tokens() > 0 && ids.max >= vocab_size) {
    problems.push_back(
        fmt::format("token id {} is outside the vocabulary of {} that the sidecar names", ids.max, vocab_size));
  }
}

}  // namespace

OrderedJson inspect_token_file(const std::string& path) {
  const TokenFile file(path);
  const IdRange ids = token_ids(file);
  OrderedJson problems = OrderedJson::array();
  const OrderedJson sidecar = read_sidecar(token_file_prefix(path) + ".json", problems);
  compare_sidecar(sidecar, file, ids, problems);
  if (file.num_tokens() > 0 && ids.min < 0) problems.push_back(fmt::format("token id {} is negative", ids.min));

  OrderedJson json;
  json["path"] = file.path();
  json["format"] = file.format();
  json["dtype"] = token_dtype_name(file.dtype());
  json["documents"] = file.num_documents();
  json["sequences"] = file.num_sequences();
  json["tokens"] = file.num_tokens();
  json["document_length"] = document_lengths(file);
  json["token_id"] = nullptr;
  if (file.num_tokens() > 0) json["token_id"] = OrderedJson{{"min", ids.min}, {"max", ids.max}};
  json["sidecar"] = sidecar;
  const int64_t vocab_size = std::max(integer_or(sidecar, "vocab_size", 0), file.num_tokens() > 0 ? ids.max + 1 : 0);
  if (ids.min >= 0 && vocab_size > 0 && vocab_size <= kEntropyVocabulary) {
    json["entropy_nats"] = entropies(file, file.num_tokens() > 0 ? ids.max + 1 : 0);
  }
  json["problems"] = problems;
  json["intact"] = problems.empty();
  return json;
}

namespace {

// Calls write(stream, sample, data) for samples begin to end - 1 of the training data. `stream` has that data.
template <typename Write>
void for_each_sample(const DataConfig& config, int64_t begin, int64_t end, std::ostream& out, Write write) {
  SampleStream stream(config, config.train, /*vocab_size=*/0);
  CHECK_INPUT(begin >= 0 && begin <= end, "samples {}:{}, expected A:B with 0 <= A <= B", begin, end);
  stream.seek(begin);
  SampleScratch data(stream.seq_len());
  for (int64_t g = begin; g < end; ++g) {
    const Sample sample = stream.next();
    stream.read(sample, data.tokens, data.document_start);
    write(stream, sample, data);
  }
  out.flush();
  CHECK(out.good(), "writing the samples failed");
}

}  // namespace

void write_samples(const DataConfig& config, int64_t begin, int64_t end, std::ostream& out) {
  for_each_sample(config, begin, end, out, [&](const SampleStream&, const Sample& sample, const SampleScratch& data) {
    out << fmt::format("{{\"sample\":{},\"dataset\":{},\"epoch\":{},\"window\":{},\"tokens\":[{}]}}\n", sample.index,
                       sample.dataset, sample.window.epoch, sample.window.index, fmt::join(data.tokens, ","));
  });
}

void write_sample_texts(const DataConfig& config, int64_t begin, int64_t end,
                        const std::function<std::string(const std::vector<int32_t>&)>& decode, std::ostream& out) {
  for_each_sample(config, begin, end, out,
                  [&](const SampleStream& stream, const Sample& sample, const SampleScratch& data) {
                    const auto& [tokens, starts] = data;
                    for (size_t first = 0, next = 0; first < tokens.size(); first = next) {
                      next = first + 1;
                      while (next < tokens.size() && starts[next] == starts[first]) ++next;
                      const std::vector<int32_t> document(tokens.begin() + static_cast<int64_t>(first),
                                                          tokens.begin() + static_cast<int64_t>(next));
                      out << fmt::format("sample {} of {} (epoch {}, window {}), tokens {} to {}:\n{}\n", sample.index,
                                         stream.name(sample.dataset), sample.window.epoch, sample.window.index, first,
                                         next - 1, printable_lines(decode(document)));
                    }
                  });
}

}  // namespace octavo
