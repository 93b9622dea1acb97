// SPDX-License-Identifier: Apache-2.0
#include "common/view/lateness.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"

namespace dtrain::view {
namespace {

constexpr absl::string_view kLevels =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr char kNoData = '-';

}  // namespace

void Lateness::Sample(absl::Span<const std::optional<uint64_t>> wait_nanos, Duration length) {
  const auto most =
      static_cast<uint64_t>(std::max<int64_t>(1, std::chrono::nanoseconds(length).count()));
  std::vector<std::optional<uint64_t>> waited(wait_nanos.size());
  uint64_t longest = 0;
  for (size_t i = 0; i < wait_nanos.size(); ++i) {
    // The counters are the workers' to write.
    if (i >= last_.size() || !last_[i] || !wait_nanos[i] || *wait_nanos[i] < *last_[i]) continue;
    waited[i] = std::min(*wait_nanos[i] - *last_[i], most);
    longest = std::max(longest, *waited[i]);
  }
  const bool any = std::any_of(wait_nanos.begin(), wait_nanos.end(),
                               [](const auto& each) { return each.has_value(); });
  last_.assign(wait_nanos.begin(), wait_nanos.end());
  if (!any) return;
  std::string bin(waited.size(), kNoData);
  for (size_t i = 0; i < waited.size(); ++i) {
    if (!waited[i]) continue;
    const double share = static_cast<double>(longest - *waited[i]) / static_cast<double>(most);
    bin[i] = kLevels[std::min<size_t>(
        kLevels.size() - 1, static_cast<size_t>(share * static_cast<double>(kLevels.size())))];
  }
  bins_.push_back(std::move(bin));
  if (bins_.size() <= kMostBins) return;
  bins_.pop_front();
  ++first_;
}

nlohmann::ordered_json Lateness::Since(uint64_t bin, uint64_t most) const {
  using Json = nlohmann::ordered_json;
  const uint64_t end = first_ + bins_.size();
  // Of bins that are still to come: another launcher's.
  const uint64_t from =
      std::max(bin > end ? first_ : std::max(bin, first_), end - std::min(end, most));
  Json late = Json::array();
  for (uint64_t each = from; each < end; ++each) late.push_back(bins_[each - first_]);
  return {{"seconds", kBin.count()}, {"first", from}, {"late", std::move(late)}};
}

}  // namespace dtrain::view
