// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "launcher/output/options.h"

// What stands before a worker's line. Pure.
namespace dtrain::output {

// "[3] ", "[node2:3] " or nothing.
std::string LinePrefix(Tag tag, absl::string_view host, Rank rank);

// "2026-11-20T21:52:53.123 ", in the zone given.
std::string TimePrefix(absl::Time time, absl::TimeZone zone);

// Whether lines need no care at all: bytes may pass as they come, before their line has ended.
// Only the output of a lone rank may: those of several would mix within a line.
bool PassesThrough(const Options& options, uint32_t world_size);

// The tag to use when the user did not choose.
Tag EffectiveTag(const Options& options, uint32_t world_size);

}  // namespace dtrain::output
