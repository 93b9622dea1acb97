// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/node_caches.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/bounded_look.h"
#include "common/os/file_system.h"
#include "common/os/local_folder.h"
#include "common/os/private_file.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {
namespace {

constexpr std::chrono::seconds kHomeAnswers{1};
// What fits there shows that the place is not full.
constexpr size_t kTrialBytes = 64 << 10;

std::string HomeIn(const std::vector<std::string>& env) {
  for (absl::string_view entry : env) {
    if (absl::ConsumePrefix(&entry, "HOME=")) return std::string(entry);
  }
  return "";
}

absl::StatusOr<std::string> TypeAt(const std::string& path) {
  const bool answers = os::IsAtHand(path) || os::ReturnsWithin(kHomeAnswers, [&path] {
                         (void)access(path.c_str(), F_OK);
                       });
  if (!answers) return absl::DeadlineExceededError(absl::StrCat(Escape(path), " does not answer"));
  const os::UniqueFd fd(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return PosixError(errno, absl::StrCat("open ", Escape(path)));
  return os::FileSystemOf(fd.get());
}

absl::Status TakesFiles(const std::string& folder) {
  std::string name = absl::StrCat(folder, "/trial-XXXXXX");
  const os::UniqueFd file(mkostemp(name.data(), O_CLOEXEC));
  if (!file) return PosixError(errno, absl::StrCat("write to ", folder));
  (void)unlink(name.c_str());
  const std::string bytes(kTrialBytes, 'x');
  const ssize_t written = write(file.get(), bytes.data(), bytes.size());
  if (written == static_cast<ssize_t>(kTrialBytes)) return absl::OkStatus();
  return PosixError(written < 0 ? errno : ENOSPC, absl::StrCat("write to ", folder));
}

absl::StatusOr<std::string> MakeIn(const std::string& place) {
  const auto type = TypeAt(place);
  if (!type.ok()) return type.status();
  if (os::IsShared(*type)) {
    return absl::FailedPreconditionError(absl::StrCat(place, " is on ", *type));
  }
  auto own = os::OwnFolderIn(place, /*make=*/true);
  if (!own.ok()) return own.status();
  const std::string folder = absl::StrCat(own->path, "/caches");
  absl::Status made = os::MakeOwnDirectory(folder, 0700, 0700);
  for (const CacheName& each : kCacheNames) {
    if (!made.ok()) return made;
    made = os::MakeOwnDirectory(absl::StrCat(folder, "/", each.name), 0700, 0700);
  }
  if (made.ok()) made = TakesFiles(folder);
  if (!made.ok()) return made;
  return folder;
}

}  // namespace

NodeCaches ChooseNodeCaches(v1::NodeCaches wanted, const std::vector<std::string>& agent_env,
                            const std::vector<std::string>& places) {
  NodeCaches out;
  if (wanted == v1::NODE_CACHES_ON) {
    out.why = "--node-caches on";
  } else if (wanted == v1::NODE_CACHES_AUTO) {
    const std::string home = HomeIn(agent_env);
    if (home.empty()) return out;
    const auto type = TypeAt(home);
    if (!type.ok() || !os::IsShared(*type)) return out;
    out.why = absl::StrCat(Escape(home), " is on ", *type);
  } else {
    return out;
  }
  std::vector<std::string> troubles;
  for (const std::string& place : places) {
    absl::StatusOr<std::string> made = MakeIn(place);
    if (made.ok()) {
      out.folder = *std::move(made);
      return out;
    }
    troubles.emplace_back(made.status().message());
  }
  out.trouble = absl::UnavailableError(absl::StrJoin(troubles, "; "));
  return out;
}

}  // namespace dtrain::shepherd
