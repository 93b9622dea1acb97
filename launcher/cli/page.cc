// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/page.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/cli/cli11.h"

namespace dtrain::cli {
namespace {

// A longer word has a line of its own.
constexpr size_t kWidest = 34;

std::string FormatList(const Page& page) {
  size_t width = 0;
  for (const Page::Entry& entry : page.list) {
    if (entry.word.size() <= kWidest) width = std::max(width, entry.word.size());
  }
  std::string out;
  const std::string* group = nullptr;
  for (const Page::Entry& entry : page.list) {
    if (group == nullptr || *group != entry.group) {
      group = &entry.group;
      absl::StrAppend(&out, "\n", group->empty() ? page.list_title : *group, ":\n");
    }
    const bool fits = entry.word.size() <= width;
    absl::StrAppend(&out, "  ", entry.word, fits ? "" : "\n  ",
                    std::string(width + 3 - (fits ? entry.word.size() : 0), ' '), entry.summary,
                    "\n");
  }
  return out;
}

std::vector<Flag> CommonFlags(const Page& page) {
  std::vector<Flag> flags;
  for (const Flag& flag : page.flags) {
    if (std::find(page.common.begin(), page.common.end(), FlagName(flag)) == page.common.end()) {
      continue;
    }
    flags.push_back(flag);
    flags.back().group = "Common flags";
  }
  return flags;
}

}  // namespace

std::string FormatHelp(const Page& page, bool all_flags) {
  std::string out = absl::StrCat(page.text, "\nUsage: ", page.usage, "\n");
  if (!page.more.empty()) absl::StrAppend(&out, "\n", page.more);
  if (!page.list.empty()) absl::StrAppend(&out, FormatList(page));
  if (!page.examples.empty()) absl::StrAppend(&out, "\nExamples:\n", page.examples);
  if (!all_flags && !page.common.empty()) {
    absl::StrAppend(&out, FormatFlags(CommonFlags(page)), "\n", page.command,
                    " --help-all explains all ", page.flags.size(), " flags.\n");
  } else if (!page.flags.empty()) {
    absl::StrAppend(&out, FormatFlags(page.flags));
  }
  if (!page.notes.empty()) absl::StrAppend(&out, "\n", page.notes);
  return out;
}

}  // namespace dtrain::cli
