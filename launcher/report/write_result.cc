// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/write_result.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "common/os/output_file.h"
#include "common/os/unique_fd.h"
#include "launcher/job/outcome.h"

namespace dtrain::report {
namespace {

absl::Status WriteAll(int fd, absl::string_view text, absl::string_view what) {
  while (!text.empty()) {
    ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {  // a descriptor that we were given may be so
      pollfd writable = {fd, POLLOUT, 0};
      (void)poll(&writable, 1, -1);
      continue;
    }
    if (n < 0) return PosixError(errno, what);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// What is there already and is not a file: a FIFO or a device.
absl::Status WriteAsItIs(const os::FilePlace& place, absl::string_view text,
                         absl::string_view what) {
  os::UniqueFd fd(openat(place.folder.get(), place.name.c_str(),
                         O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) {
    int error = errno;
    return PosixError(error,
                      error == ENXIO ? absl::StrCat(what, " (no process is reading it)") : what);
  }
  absl::Status status = os::CheckMaker(place.folder.get(), fd.get(), what);
  if (status.ok()) status = os::SetNonBlocking(fd.get(), false);
  return status.ok() ? WriteAll(fd.get(), text, what) : status;
}

// Whether something is there that is not to be replaced by a file: a FIFO, a device, a directory.
bool IsSpecial(const os::FilePlace& place, mode_t* mode) {
  struct stat status;
  if (fstatat(place.folder.get(), place.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return false;
  }
  *mode = status.st_mode;
  return !S_ISREG(status.st_mode);
}

std::string What(absl::string_view flag, const std::string& path) {
  return absl::StrCat(flag, ": write ", Escape(path));
}

absl::Status CanBeWritten(const std::string& path, const std::string& what) {
  if (const auto fd = os::DescriptorOf(path)) {
    return fcntl(*fd, F_GETFD) < 0 ? PosixError(errno, what) : absl::OkStatus();
  }
  const absl::StatusOr<os::FilePlace> place = os::PlaceOfFile(path, what);
  if (!place.ok()) return place.status();
  mode_t mode = 0;
  if (IsSpecial(*place, &mode)) {
    if (S_ISDIR(mode)) return PosixError(EISDIR, what);
    const os::UniqueFd there(
        openat(place->folder.get(), place->name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    return there ? os::CheckMaker(place->folder.get(), there.get(), what) : absl::OkStatus();
  }
  if (faccessat(place->folder.get(), ".", W_OK | X_OK, 0) != 0) return PosixError(errno, what);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWritable(absl::string_view flag, const std::string& path) {
  const absl::Status can = CanBeWritten(path, What(flag, path));
  // A mistake on the command line, whatever the kernel calls it.
  return can.ok() ? can : absl::InvalidArgumentError(can.message());
}

absl::Status WriteResult(const std::string& path, absl::string_view text) {
  return WriteWhole("--result-json", path, text);
}

absl::Status WriteWhole(absl::string_view flag, const std::string& path, absl::string_view text) {
  const std::string what = What(flag, path);
  // Opening it by its name would fail when it is a socket.
  if (const auto fd = os::DescriptorOf(path)) return WriteAll(*fd, text, what);
  const absl::StatusOr<os::FilePlace> place = os::PlaceOfFile(path, what);
  if (!place.ok()) return place.status();
  const int folder = place->folder.get();
  mode_t mode = 0;
  if (IsSpecial(*place, &mode)) return WriteAsItIs(*place, text, what);
  // The link, if `path` is one, stays.
  const std::string temporary = absl::StrCat(place->name, ".", os::RandomHex(8), ".tmp");
  os::UniqueFd fd(openat(folder, temporary.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) return PosixError(errno, what);
  absl::Status status = WriteAll(fd.get(), text, what);
  if (status.ok()) status = os::CloseWritten(std::move(fd), what);
  if (status.ok() && renameat(folder, temporary.c_str(), folder, place->name.c_str()) != 0) {
    status = PosixError(errno, what);
  }
  if (!status.ok()) unlinkat(folder, temporary.c_str(), 0);
  return status;
}

std::string ReportOf(absl::string_view result_json) {
  const auto json = nlohmann::json::parse(result_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  const auto report = json.find("report");
  if (report == json.end() || !report->is_string()) return "";
  // The file may have been changed since: what it says goes to a terminal.
  const auto printable = [](std::string* out, absl::string_view line) {
    out->append(job::Printable(line));
  };
  return absl::StrJoin(absl::StrSplit(report->get_ref<const std::string&>(), '\n'), "\n",
                       printable);
}

}  // namespace dtrain::report
