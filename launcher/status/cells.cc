// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/cells.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

const Json kNothing;

}  // namespace

const Json& At(const Json& json, const char* key) {
  if (!json.is_object()) return kNothing;
  auto it = json.find(key);
  return it == json.end() ? kNothing : *it;
}

std::string Text(const Json& json, size_t limit) {
  if (json.is_string()) return Escape(json.get<std::string>(), limit);
  if (json.is_number_integer()) return absl::StrCat(json.get<int64_t>());
  return "-";
}

double Number(const Json& json) { return json.is_number() ? json.get<double>() : 0; }

std::string Age(double seconds) {
  const auto s = static_cast<int64_t>(std::max(seconds, 0.0));
  if (s < 60) return absl::StrFormat("%d s", s);
  if (s < 3600) return absl::StrFormat("%d min %d s", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%d h %d min", s / 3600, s / 60 % 60);
  return absl::StrFormat("%d d %d h", s / 86400, s / 3600 % 24);
}

std::string Align(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      absl::StrAppend(&out, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    absl::StrAppend(&out, row.back(), "\n");
  }
  return out;
}

}  // namespace dtrain::status
