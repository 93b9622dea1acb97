// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::hosts {

// --include and --exclude, in DeepSpeed's words: `gpu1:0,2@gpu2` names GPUs of a host, or all of
// it. The hosts keep their order. Included GPUs are the workers' in the order that they are named,
// and their number takes the place of what the list says about slots. Errors as in hostfile.h.
absl::StatusOr<HostList> IncludeHosts(HostList list, absl::string_view text);
absl::StatusOr<HostList> ExcludeHosts(HostList list, absl::string_view text);

}  // namespace dtrain::hosts
