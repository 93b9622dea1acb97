// SPDX-License-Identifier: Apache-2.0
#include "agent/session/state_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::session {

std::string DraftOf(absl::string_view path) { return absl::StrCat(path, ".new"); }

absl::Status WriteStateFile(const std::string& path, absl::string_view bytes) {
  const std::string draft = DraftOf(path);
  os::UniqueFd fd(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return PosixError(errno, absl::StrCat("make ", draft));
  const ssize_t n = write(fd.get(), bytes.data(), bytes.size());
  if (n != static_cast<ssize_t>(bytes.size())) {
    return PosixError(n < 0 ? errno : ENOSPC, absl::StrCat("write ", draft));
  }
  if (absl::Status closed = os::CloseWritten(std::move(fd), absl::StrCat("write ", draft));
      !closed.ok()) {
    return closed;
  }
  if (rename(draft.c_str(), path.c_str()) != 0) {
    return PosixError(errno, absl::StrCat("rename ", draft));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::session
