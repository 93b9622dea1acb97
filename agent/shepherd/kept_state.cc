// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/kept_state.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::shepherd {
namespace {

// For the file system that has it to answer: meanwhile we answer nobody.
constexpr std::chrono::seconds kStateAnswer{2};

}  // namespace

void KeptState::Choose(const v1::JobPart& part, bool in_containers) {
  if (!part.has_state()) return;
  auto folder = StateFolder::Of(part, CacheOfUser());
  absl::Status usable = folder.status();
  if (usable.ok() && in_containers) usable = folder->Make();
  if (usable.ok()) {
    folder_ = *std::move(folder);
  } else {
    launcher_.Warn(absl::StrCat("dtrain.elastic cannot keep its state for a restart: cannot ",
                                usable.message()),
                   /*detail=*/true);
  }
}

// What failed workers have kept stays for the next attempt. Whether there is one, and whether it
// runs here, is not known.
void KeptState::Tidy(bool all_succeeded) const {
  if (!folder_) return;
  if (!folder_->Answers(kStateAnswer)) {
    return launcher_.Warn(absl::StrCat(
        "what dtrain.elastic may have kept is not removed: ", folder_->path(),
        " does not answer within ", kStateAnswer.count(), " s: is its file server down?"));
  }
  if (all_succeeded) {
    if (const absl::Status removed = folder_->Remove(); !removed.ok()) {
      launcher_.Warn(absl::StrCat("cannot ", removed.message()));
    }
  } else {
    folder_->RemoveIfEmpty();
  }
  folder_->RemoveOlder(kOldState);
}

}  // namespace dtrain::shepherd
