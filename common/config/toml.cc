// SPDX-License-Identifier: Apache-2.0
#include "common/config/toml.h"

// toml++ asserts of its parser what "[[[" makes false, and with NDEBUG promises it to the compiler.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"

namespace dtrain::config {
namespace {

std::string Place(absl::string_view path, size_t line) {
  return absl::StrCat(Escape(path), line == 0 ? "" : absl::StrCat(":", line));
}

absl::Status Wrong(absl::string_view path, size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(Place(path, line), ": ", what));
}

// `; text needs quotes: lease = "20s"`, if what is wrong is a value without them.
std::string QuotesHint(absl::string_view text, size_t number, absl::string_view what) {
  if (absl::StrContains(what, "key")) return "";
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (number == 0 || number > lines.size()) return "";
  const absl::string_view line = lines[number - 1];
  const size_t equals = line.find('=');
  if (equals == absl::string_view::npos) return "";
  const absl::string_view value =
      absl::StripAsciiWhitespace(line.substr(equals + 1, line.find('#') - equals - 1));
  if (value.empty() || value.find_first_of("\"'[]{}") != absl::string_view::npos) return "";
  return absl::StrCat(
      "; text needs quotes: ", Escape(absl::StripAsciiWhitespace(line.substr(0, equals)), 80),
      " = \"", Escape(value, 80), "\"");
}

std::string TextOf(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* is = node.as_boolean()) return is->get() ? "true" : "false";
  if (const auto* number = node.as_integer()) return absl::StrCat(number->get());
  std::ostringstream out;
  if (const auto* number = node.as_floating_point()) out << number->get();
  if (const auto* date = node.as_date()) out << date->get();
  if (const auto* time = node.as_time()) out << time->get();
  if (const auto* both = node.as_date_time()) out << both->get();
  return out.str();
}

struct Found {
  toml::source_position at;
  Entry entry;
};

absl::Status Collect(absl::string_view path, const toml::table& table, const std::string& section,
                     std::vector<Found>& out) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const toml::source_position at = key.source().begin;
    if (const toml::table* inner = node.as_table()) {
      absl::Status status =
          Collect(path, *inner, section.empty() ? name : absl::StrCat(section, ".", name), out);
      if (!status.ok()) return status;
      continue;
    }
    Entry entry{section, name, {}, at.line};
    if (const toml::array* list = node.as_array()) {
      for (const toml::node& each : *list) {
        if (!each.is_value()) {
          return Wrong(
              path, each.source().begin.line,
              absl::StrCat(Escape(name, 80), ": a list of lists or tables means nothing here"));
        }
        entry.values.push_back(TextOf(each));
      }
    } else {
      entry.values.push_back(TextOf(node));
    }
    out.push_back({at, std::move(entry)});
  }
  return absl::OkStatus();
}

}  // namespace

std::string Entry::PlaceIn(absl::string_view path) const { return Place(path, line); }

absl::StatusOr<std::vector<Entry>> ParseToml(absl::string_view path, absl::string_view text) {
  const toml::parse_result parsed = toml::parse(std::string_view(text.data(), text.size()));
  if (!parsed) {
    const size_t line = parsed.error().source().begin.line;
    const std::string_view described = parsed.error().description();
    const absl::string_view what(described.data(), described.size());
    return Wrong(path, line, absl::StrCat(Escape(what), QuotesHint(text, line, what)));
  }
  std::vector<Found> found;
  absl::Status status = Collect(path, parsed.table(), "", found);
  if (!status.ok()) return status;
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.at.line, a.at.column) < std::pair(b.at.line, b.at.column);
  });
  std::vector<Entry> entries;
  for (Found& each : found) entries.push_back(std::move(each.entry));
  return entries;
}

}  // namespace dtrain::config
