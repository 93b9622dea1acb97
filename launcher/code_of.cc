// SPDX-License-Identifier: Apache-2.0
#include "launcher/code_of.h"

#include <utility>

#include "common/os/scratch_folder.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<Code>> CodeOf(const stage::Options& options,
                                             const JobRecords* records, bool may_restart) {
  if (records != nullptr) {
    auto kept = records->folder().ReadCode();
    if (kept.ok()) {
      auto snapshot = stage::SnapshotOf(kept->manifest(), kept->git(), options.directory);
      if (!snapshot.ok()) return snapshot.status();
      auto code = std::make_unique<Code>(*std::move(snapshot), options);
      // Of one that was detached while it ran, and has no restarts, the contents were not kept.
      absl::Status used;
      if (!code->compare && (may_restart || !records->spec().had_terminal())) {
        used = code->contents.UseCopy(records->folder().CodeContents());
      }
      if (!used.ok()) return used;
      return code;
    }
    if (!absl::IsNotFound(kept.status()) ||
        records->before().phase() != v1::JournalState::PHASE_ACCEPTED) {
      return kept.status();
    }
  }
  auto taken = TakeCode(options);
  if (!taken.ok()) return taken.status();
  std::unique_ptr<Code> code = *std::move(taken);
  absl::Status copied;
  if (records != nullptr) {
    copied = code->Keep(records->folder(), /*with_contents=*/true);
  } else if (!code->compare && may_restart) {
    // A node may lack it when the tree has changed long since.
    copied = code->contents.Copy(os::TemporaryDirectories());
  }
  if (!copied.ok()) return copied;
  return code;
}

}  // namespace dtrain
