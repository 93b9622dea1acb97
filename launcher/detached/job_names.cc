// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/job_names.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "common/os/append_file.h"
#include "common/os/fd.h"
#include "launcher/journal/frame.h"

namespace dtrain::detached {
namespace {

constexpr size_t kLongestWord = 128;
// Of an id, without "dtrain-". By less, whoever mistypes a name would end another job.
constexpr size_t kShortestBeginning = 4;
constexpr size_t kMostListed = 5;

}  // namespace

bool IsWord(absl::string_view text) {
  return !text.empty() && text.size() <= kLongestWord && text[0] != '.' && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
                  c == '_';
         });
}

absl::Status CheckWord(absl::string_view what, absl::string_view text) {
  if (IsWord(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " \"", Escape(text), "\": it may have up to ", kLongestWord,
      " letters, digits, '.', '-' and '_', and must begin with a letter, a digit or '_'"));
}

bool BeginsWith(absl::string_view id, absl::string_view text) {
  return !text.empty() &&
         (absl::StartsWith(id, text) || absl::StartsWith(absl::StripPrefix(id, "dtrain-"), text));
}

absl::Status CheckBeginning(absl::string_view text, std::vector<std::string> ids) {
  const bool too_short = absl::StripPrefix(text, "dtrain-").size() < kShortestBeginning;
  if (ids.empty() || (ids.size() == 1 && !too_short)) return absl::OkStatus();
  std::sort(ids.begin(), ids.end());
  const bool more = ids.size() > kMostListed;
  ids.resize(std::min(ids.size(), kMostListed));
  const std::string quoted = absl::StrCat("\"", Escape(text), "\"");
  return absl::InvalidArgumentError(
      absl::StrCat(too_short ? absl::StrCat(quoted, " is too short for the beginning of an id (",
                                            kShortestBeginning, " characters or more); it fits ")
                             : absl::StrCat("several jobs begin with ", quoted, ": "),
                   absl::StrJoin(ids, ", "), more ? " ..." : ""));
}

absl::StatusOr<std::string> ChooseJob(absl::Span<const v1::JobEntry> jobs, absl::string_view text) {
  if (text.empty()) return absl::NotFoundError("");
  const v1::JobEntry* running = nullptr;
  const v1::JobEntry* ended = nullptr;
  std::vector<std::string> begin_so;
  for (const v1::JobEntry& job : jobs) {
    if (job.job_id() == text) return job.job_id();
    if (BeginsWith(job.job_id(), text)) begin_so.push_back(job.job_id());
    if (job.name() != text) continue;
    if (job.ended_unix_nanos() == 0) {
      running = &job;
    } else if (ended == nullptr || job.ended_unix_nanos() > ended->ended_unix_nanos()) {
      ended = &job;
    }
  }
  if (running != nullptr) return running->job_id();
  if (ended != nullptr) return ended->job_id();
  if (begin_so.empty()) return absl::NotFoundError("");
  if (absl::Status fits = CheckBeginning(text, begin_so); !fits.ok()) return fits;
  return begin_so[0];
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename());
  }
  if (!error || error == std::errc::no_such_file_or_directory) return names;
  return absl::UnavailableError(absl::StrCat("list ", folder, ": ", error.message()));
}

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
