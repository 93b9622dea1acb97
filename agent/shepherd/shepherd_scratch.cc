// SPDX-License-Identifier: Apache-2.0
// The folder in which a job's workers may leave why they failed.
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/error_file.h"
#include "agent/shepherd/shepherd.h"

namespace dtrain::shepherd {

void Shepherd::MakeScratch() {
  auto made = os::ScratchFolder::Make(os::ScratchPlaces());
  if (made.ok()) {
    scratch_.emplace(*std::move(made));
  } else {
    Warn(absl::StrCat("workers get no TORCHELASTIC_ERROR_FILE: cannot ",
                      std::string(made.status().message())),
         /*detail=*/true);
  }
}

std::string Shepherd::ReadErrorFile(uint32_t rank) {
  if (!scratch_) return "";
  auto bytes = scratch_->Read(ErrorFileName(rank), kMostErrorBytes);
  if (bytes.ok()) return *std::move(bytes);
  if (!absl::IsNotFound(bytes.status())) {
    Warn(absl::StrCat("rank ", rank, ": cannot ", std::string(bytes.status().message()),
                      " (TORCHELASTIC_ERROR_FILE)"),
         /*detail=*/true);
  }
  return "";
}

void Shepherd::RemoveScratch() {
  if (!scratch_) return;
  const std::string place = scratch_->path().substr(0, scratch_->path().rfind('/'));
  absl::Status removed = scratch_->Remove();
  scratch_.reset();
  // And those of the user's shepherds that were killed with their agent, as with a login session.
  // Elsewhere a file server may be down, and what others left would hold up this job's end.
  removed.Update(os::RemoveDeadScratchFolders({place}, /*of_all_users=*/false));
  if (!removed.ok()) Warn(absl::StrCat("cannot ", std::string(removed.message())));
}

}  // namespace dtrain::shepherd
