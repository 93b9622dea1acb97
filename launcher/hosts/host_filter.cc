// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_filter.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/hosts/host_list_builder.h"
#include "launcher/hosts/host_name.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

constexpr uint32_t kMaxGpu = 1023;
constexpr size_t kMostNamed = 8;
constexpr absl::string_view kAdvice = "write HOST, HOST:0,2 or HOST:0-3, and [ADDRESS]:0 for IPv6";

// What is said of one host; no GPUs: all of it.
struct Choice {
  Position at;
  std::vector<uint32_t> gpus;
};
using Choices = std::map<size_t, Choice>;  // by index in the list

std::string Names(const HostList& list) {
  std::string text;
  for (size_t i = 0; i < std::min(list.entries.size(), kMostNamed); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", list.entries[i].host);
  }
  if (list.entries.size() <= kMostNamed) return text;
  return absl::StrCat(text, " and ", list.entries.size() - kMostNamed, " more");
}

// "0,2" and "0-3", in their order.
absl::StatusOr<std::vector<uint32_t>> ParseGpus(const Source& source, Position at,
                                                absl::string_view text) {
  std::vector<uint32_t> gpus;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(item, absl::MaxSplits('-', 1));
    const auto low = ParseNumber(source, at, "GPU", ends.first, 0, kMaxGpu);
    if (!low.ok()) return low.status();
    const bool range = ends.first.size() < item.size();
    const auto high = ParseNumber(source, at, "GPU", range ? ends.second : ends.first, 0, kMaxGpu);
    if (!high.ok()) return high.status();
    if (*high < *low) {
      return source.Error(at, "range runs backwards", item, "write the smaller GPU first");
    }
    for (uint32_t gpu = *low; gpu <= *high; ++gpu) {
      if (std::find(gpus.begin(), gpus.end(), gpu) != gpus.end()) {
        return source.Error(at, "GPU is named twice", absl::StrCat(gpu), "name it once");
      }
      gpus.push_back(gpu);
    }
    at = at.Plus(item.size() + 1);
  }
  return gpus;
}

class Parser {
 public:
  Parser(const Source& source, const HostList& list) : source_(source), list_(list) {
    for (size_t i = 0; i < list.entries.size(); ++i) {
      index_.emplace(HostKey(list.entries[i].host), i);
    }
  }

  absl::StatusOr<Choices> Parse(absl::string_view text) {
    Position at;
    for (absl::string_view item : absl::StrSplit(text, '@')) {
      const absl::string_view word = absl::StripAsciiWhitespace(item);
      absl::Status status = Add(at.Plus(static_cast<size_t>(word.data() - item.data())), word);
      if (!status.ok()) return status;
      at = at.Plus(item.size() + 1);
    }
    return std::move(choices_);
  }

 private:
  absl::Status Add(Position at, absl::string_view word) {
    auto host = ParseHostWord(source_, at, word, kAdvice);
    if (!host.ok()) return host.status();
    std::vector<uint32_t> gpus;
    if (!host->tail.empty()) {
      auto parsed =
          ParseGpus(source_, at.Plus(word.size() - host->tail.size() + 1), host->tail.substr(1));
      if (!parsed.ok()) return parsed.status();
      gpus = *std::move(parsed);
    }
    return host->pattern.Expand([&](const std::string& name) { return AddHost(at, name, gpus); });
  }

  absl::Status AddHost(Position at, const std::string& name, const std::vector<uint32_t>& gpus) {
    const auto found = index_.find(HostKey(name));
    if (found == index_.end()) {
      return source_.Error(at, "host is not in the host list", name,
                           absl::StrCat("its hosts are ", Names(list_)));
    }
    const HostEntry& entry = list_.entries[found->second];
    for (uint32_t gpu : gpus) {
      if (!entry.gpus || gpu < *entry.gpus) continue;
      return source_.Error(at, absl::StrCat("host has no GPU ", gpu, " for this job"), name,
                           absl::StrCat("the host list says gpus=", *entry.gpus));
    }
    if (choices_.emplace(found->second, Choice{at, gpus}).second) return absl::OkStatus();
    return source_.Error(at, "host is named twice", name, "name all its GPUs in one place");
  }

  const Source& source_;
  const HostList& list_;
  absl::flat_hash_map<std::string, size_t> index_;
  Choices choices_;
};

}  // namespace

absl::StatusOr<HostList> IncludeHosts(HostList list, absl::string_view text) {
  const Source source = Source::OneLine("--include");
  auto choices = Parser(source, list).Parse(text);
  if (!choices.ok()) return choices.status();
  std::vector<HostEntry> kept;
  for (auto& [index, choice] : *choices) {
    HostEntry& entry = kept.emplace_back(std::move(list.entries[index]));
    if (choice.gpus.empty()) continue;
    entry.slots.reset();
    entry.gpus.reset();
    entry.only_gpus = std::move(choice.gpus);
  }
  list.entries = std::move(kept);
  return list;
}

absl::StatusOr<HostList> ExcludeHosts(HostList list, absl::string_view text) {
  const Source source = Source::OneLine("--exclude");
  auto choices = Parser(source, list).Parse(text);
  if (!choices.ok()) return choices.status();
  std::vector<HostEntry> kept;
  for (size_t i = 0; i < list.entries.size(); ++i) {
    HostEntry& entry = list.entries[i];
    const auto choice = choices->find(i);
    if (choice != choices->end()) {
      entry.without_gpus = std::move(choice->second.gpus);
      const bool all = entry.gpus && entry.without_gpus.size() == *entry.gpus;
      if (entry.without_gpus.empty() || all) continue;
    }
    kept.push_back(std::move(entry));
  }
  list.entries = std::move(kept);
  if (!list.entries.empty()) return list;
  return source.Error({}, "no host is left", text, "leave at least one");
}

}  // namespace dtrain::hosts
