// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/tagger.h"

#include "absl/strings/str_cat.h"

namespace dtrain::output {

std::string LinePrefix(Tag tag, absl::string_view host, Rank rank) {
  switch (tag) {
    case Tag::kNone:
      return "";
    case Tag::kRank:
      return absl::StrCat("[", rank.value(), "] ");
    case Tag::kHost:
      return absl::StrCat("[", host, ":", rank.value(), "] ");
  }
  return "";
}

std::string TimePrefix(absl::Time time, absl::TimeZone zone) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3S ", time, zone);
}

Tag EffectiveTag(const Options& options, uint32_t world_size) {
  return options.tag.value_or(world_size > 1 ? Tag::kRank : Tag::kNone);
}

bool PassesThrough(const Options& options, uint32_t world_size) {
  return world_size <= 1 && !options.of_another &&
         EffectiveTag(options, world_size) == Tag::kNone && !options.timestamps;
}

}  // namespace dtrain::output
