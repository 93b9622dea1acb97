// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "launcher/status/ended_job.h"
#include "launcher/status/node_page.h"
#include "launcher/status/runtime_dir.h"

namespace dtrain::status {

// Serves the page about that job on loopback (`listen` as ParseListening takes it), with a token of
// its own, and passes the page's questions to the job's launcher, until a signal ends it. Prints
// the link, which has the token, to a terminal only; with `open` it is in a file that only this
// user can read, which a browser is told to open: command lines are for everybody to see.
absl::Status ServePage(const LiveJob& job, const std::string& listen, bool open);
// Likewise, with the answers that are in the folder of a job that has ended.
absl::Status ServePage(const EndedJob& job, const std::string& listen, bool open);
// Likewise about a node, with what its agent tells.
absl::Status ServePage(NodePage& node, const std::string& listen, bool open);

}  // namespace dtrain::status
