// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/job_index.h"

#include <cstdint>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/os/append_file.h"
#include "common/os/fd.h"
#include "launcher/journal/frame.h"

namespace dtrain::detached {
namespace {

constexpr uint8_t kEntryFrame = 1;

}  // namespace

JobIndex JobIndex::Read(const std::string& file) {
  JobIndex index;
  const auto bytes = os::ReadSmallFile(file, std::numeric_limits<size_t>::max());
  absl::string_view rest = bytes.ok() ? *bytes : absl::string_view();
  while (!rest.empty()) {
    const auto frame = journal::CutFrame(rest);
    v1::JobEntry entry;
    if (!frame || frame->type != kEntryFrame || !frame->IsCorrect() ||
        !entry.ParseFromArray(frame->payload.data(), static_cast<int>(frame->payload.size()))) {
      index.stale = true;
      break;
    }
    rest.remove_prefix(frame->size());
    std::string id = entry.job_id();
    index.ended.insert_or_assign(std::move(id), std::move(entry));
  }
  return index;
}

void JobIndex::Write(const std::string& file) const {
  std::string bytes;
  for (const auto& [id, entry] : ended) {
    journal::AppendFrame(kEntryFrame, entry.SerializeAsString(), &bytes);
  }
  // Not synced: each launch that ends writes it, and one that a crash has cut is made again.
  const std::string draft = absl::StrCat(file, ".", os::RandomHex(4), ".new");
  auto made = os::AppendFile::Create(draft);
  absl::Status written = made.ok() ? made->Append(bytes) : made.status();
  if (written.ok()) written = os::Rename(draft, file);
  std::error_code error;
  if (!written.ok()) std::filesystem::remove(draft, error);
}

}  // namespace dtrain::detached
