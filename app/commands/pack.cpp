#include "data/tokens/pack.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <system_error>

#include "app/commands/commands.h"
#include "core/format.h"
#include "core/printable.h"

namespace octavo {

namespace {

std::string describe_files(const std::string& prefix, int64_t documents, int64_t tokens) {
  std::error_code unknown;
  const auto bytes = std::filesystem::file_size(prefix + ".bin", unknown);
  return fmt::format("{0}.bin, {0}.idx, {0}.json: {1} documents, {2} tokens, {3:.3f} GB", printable(prefix),
                     with_thousands_separators(documents), with_thousands_separators(tokens),
                     unknown ? 0.0 : static_cast<double>(bytes) / 1e9);
}

int run_pack(const PackOptions& options) {
  const PackSummary s = pack(options);
  std::cout << fmt::format("{}, from {} files\n", describe_files(options.output, s.documents, s.tokens), s.files);
  if (options.hold_out_every > 0) {
    const std::string prefix = options.hold_out_output.empty() ? options.output + "_held_out" : options.hold_out_output;
    std::cout << fmt::format("{}, held out\n", describe_files(prefix, s.held_out_documents, s.held_out_tokens));
  }
  if (s.held_out_as_equals > 0)
    std::cout << fmt::format("held out {} more documents, because their text is held out\n", s.held_out_as_equals);
  for (const std::string& line : {s.describe_skipped(), s.describe_repeated()}) {
    if (!line.empty()) std::cout << line << "\n";
  }
  if (s.empty_documents > 0) std::cout << fmt::format("skipped {} empty documents\n", s.empty_documents);
  if (!s.unreadable.empty())
    std::cout << fmt::format("skipped {} unreadable files and directories\n", s.unreadable.size());
  for (const std::string& file : s.unreadable) std::cout << fmt::format("unreadable: {}\n", printable(file));
  return kExitDone;
}

}  // namespace

void add_pack(CommandLine& line) {
  const auto [pack, options] =
      line.add<PackOptions>("pack", "turn text, JSON lines or source trees into a token file, with bytes as tokens",
                            run_pack, "octavo pack --input my_project/ --output corpus/train --hold-out-every 20");
  pack->add_option("--input", options.inputs, "files and directories to pack")->default_str("");
  pack->add_option("--input-list", options.input_list, "file with one input per line");
  pack->add_option("--output", options.output, "PREFIX of the token file")->required();
  pack->add_option("--text-field", options.text_field, "field of JSON lines that has the text");
  pack->add_option("--hold-out-every", options.hold_out_every,
                   "write every n-th document, and all with the same text, to a second token file; 0 disables it")
      ->check(integer(0, uint64_t{1} << 40));
  pack->add_option("--hold-out-output", options.hold_out_output, "PREFIX of the token file with the held-out documents")
      ->default_str("OUTPUT_held_out");
  pack->add_flag("--overwrite", options.overwrite, "replace existing token files");
}

}  // namespace octavo
