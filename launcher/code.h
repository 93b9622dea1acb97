// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "dtrain/v1/job.pb.h"
#include "launcher/detached/job_folder.h"
#include "launcher/job/job_core.h"
#include "launcher/stage/contents.h"
#include "launcher/stage/distribution.h"
#include "launcher/stage/snapshot.h"

namespace dtrain {

// The code that a launch stages, the same for all its attempts.
struct Code {
  Code(stage::Snapshot taken, const stage::Options& options)
      : snapshot(std::move(taken)),
        contents(snapshot),
        compare(options.compare),
        only_warn(options.only_warn),
        keep(options.keep) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  const stage::Snapshot snapshot;
  stage::Contents contents;
  const bool compare;    // nothing is copied: all hosts must have it
  const bool only_warn;  // a host that has other code is named, and starts all the same
  const bool keep;       // hosts keep their copies
  // StageTree.
  std::shared_ptr<const v1::JobRequest> Request() const;
  // For launchers that come after us; `with_contents`: they may have to send it again. Blocks, and
  // beats meanwhile.
  absl::Status Keep(const detached::JobFolder& folder, bool with_contents,
                    detached::Beat beat = detached::NoBeat);
};

// As the files are now. Blocks.
absl::StatusOr<std::unique_ptr<Code>> TakeCode(const stage::Options& options);

// `directory` as seen from the top of `staged`, "." for the top itself; nothing: it is outside.
std::optional<std::string> InTree(const std::string& directory, const std::string& staged);

// Sends it to the nodes of one attempt.
class CodeSender {
 public:
  struct Sending {
    job::ToShepherds message;
    std::string warning;  // a file that cannot be read, which the nodes will refuse
  };
  CodeSender(Code& code, const std::vector<NodeId>& nodes, TimePoint now)
      : code_(code), distribution_(code.snapshot.files, nodes), begin_(now) {}

  // StageMissing, StageTaken, Staged. INVALID_ARGUMENT: the node must not say that.
  absl::Status OnEvent(NodeId node, const v1::JobEvent& event);
  // What may be sent now.
  std::optional<Sending> Next();
  bool all_staged() const { return distribution_.all_staged(); }
  // "2 files sent to 4 hosts in 0.3 s"
  std::string Sent(TimePoint now) const;

 private:
  Code& code_;
  stage::Distribution distribution_;
  const TimePoint begin_;
};

}  // namespace dtrain
