// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/host_list_builder.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {

// Adds every line of a host file to `builder`. A line that gives no slots has `default_slots`: a
// resource manager's node file means one slot by each line.
absl::Status AddHostfileLines(const Source& source, absl::string_view text,
                              std::optional<uint32_t> default_slots, HostListBuilder& builder);

}  // namespace dtrain::hosts
