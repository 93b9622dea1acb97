// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/worker_scratch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"

namespace dtrain::shepherd {

void WorkerScratch::Make() {
  auto made = os::ScratchFolder::Make(os::ScratchPlaces());
  if (made.ok()) {
    folder_.emplace(*std::move(made));
  } else {
    launcher_.Warn(absl::StrCat("workers get no TORCHELASTIC_ERROR_FILE: cannot ",
                                std::string(made.status().message())),
                   /*detail=*/true);
  }
}

std::string WorkerScratch::ReadErrorFile(uint32_t rank) {
  if (!folder_) return "";
  auto bytes = folder_->Read(ErrorFileName(rank), kMostErrorBytes);
  if (bytes.ok()) return *std::move(bytes);
  if (!absl::IsNotFound(bytes.status())) {
    launcher_.Warn(absl::StrCat("rank ", rank, ": cannot ", std::string(bytes.status().message()),
                                " (TORCHELASTIC_ERROR_FILE)"),
                   /*detail=*/true);
  }
  return "";
}

void WorkerScratch::Remove() {
  if (!folder_) return;
  const std::string place = folder_->path().substr(0, folder_->path().rfind('/'));
  absl::Status removed = folder_->Remove();
  folder_.reset();
  // And those of the user's shepherds that were killed with their agent, as with a login session.
  // Elsewhere a file server may be down, and what others left would hold up this job's end.
  removed.Update(os::RemoveDeadScratchFolders({place}, /*of_all_users=*/false));
  if (!removed.ok()) launcher_.Warn(absl::StrCat("cannot ", std::string(removed.message())));
}

}  // namespace dtrain::shepherd
