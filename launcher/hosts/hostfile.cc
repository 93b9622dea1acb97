// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/hostfile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "launcher/hosts/host_list_builder.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

constexpr uint32_t kMaxPort = 65535;

absl::Status SetNumber(const Source& source, Position at, absl::string_view key,
                       absl::string_view value, uint32_t low, uint32_t high,
                       std::optional<uint32_t>& out) {
  auto number = ParseNumber(source, at, key, value, low, high);
  if (number.ok()) out = *number;
  return number.status();
}

absl::Status ApplySetting(const Source& source, Setting setting, absl::string_view key, Position at,
                          absl::string_view value, HostSpec& spec) {
  switch (setting) {
    case Setting::kSlots:
      return SetNumber(source, at, key, value, 1, kMaxSlots, spec.slots);
    case Setting::kMaxSlots:
      return SetNumber(source, at, key, value, 1, kMaxSlots, spec.max_slots);
    case Setting::kGpus:
      return SetNumber(source, at, key, value, 0, kMaxSlots, spec.gpus);
    case Setting::kPort: {
      std::optional<uint32_t> port;
      absl::Status status = SetNumber(source, at, key, value, 1, kMaxPort, port);
      spec.port = static_cast<uint16_t>(port.value_or(0));
      return status;
    }
    case Setting::kUser:
      spec.user = std::string(value);
      return CheckUser(source, at, value);
    case Setting::kAgent:
      spec.way = value == "tcp" ? Way::kTcp : Way::kSsh;
      if (value == "tcp" || value == "ssh") return absl::OkStatus();
      return source.Error(at, "agent is neither ssh nor tcp", value,
                          "write agent=tcp for a resident agent with TLS");
  }
  return absl::OkStatus();
}

bool IsSet(const HostSpec& spec, Setting setting) {
  switch (setting) {
    case Setting::kSlots:
      return spec.slots.has_value();
    case Setting::kMaxSlots:
      return spec.max_slots.has_value();
    case Setting::kGpus:
      return spec.gpus.has_value();
    case Setting::kPort:
      return spec.port != 0;
    case Setting::kUser:
      return !spec.user.empty();
    case Setting::kAgent:
      return spec.way != Way::kUnsaid;
  }
  return false;
}

// One `key=value`; Open MPI allows blanks around the '='.
absl::Status ParseSetting(const Source& source, LineReader& line, HostSpec& spec) {
  Position key_at = line.position();
  absl::string_view key = line.Take("=");
  if (!line.TakeChar('=')) {
    return source.Error(key_at, "not a setting", key,
                        "write one host a line, then key=value such as slots=4");
  }
  std::optional<Setting> setting = FindSetting(key);
  if (!setting) return source.Error(key_at, "unknown key", key, SettingAdvice(key));
  if (IsSet(spec, *setting)) {
    return source.Error(key_at, "given twice for one line", key, "keep one of them");
  }
  Position value_at = line.position();
  absl::string_view value = line.Take();
  absl::Status status = ApplySetting(source, *setting, key, value_at, value, spec);
  if (!status.ok()) return status;
  if (spec.slots && spec.max_slots && *spec.max_slots < *spec.slots) {
    return source.Error(value_at, "max_slots is smaller than slots", value,
                        absl::StrCat("slots is ", *spec.slots));
  }
  return absl::OkStatus();
}

absl::Status ParseLine(const Source& source, LineReader& line,
                       std::optional<uint32_t> default_slots, HostListBuilder& builder) {
  Position at = line.position();
  absl::string_view host = line.Take();
  if (host == "rank" && absl::ascii_isdigit(line.Peek())) {
    return source.Error(at, "a line of a rankfile", host, "give this file with --rankfile");
  }
  auto spec = ParseHostSpec(source, at, host);
  if (!spec.ok()) return spec.status();
  while (!line.AtEnd()) {
    absl::Status status = ParseSetting(source, line, *spec);
    if (!status.ok()) return status;
  }
  if (!spec->slots && !spec->max_slots) spec->slots = default_slots;
  return builder.Add(*spec);
}

}  // namespace

absl::Status AddHostfileLines(const Source& source, absl::string_view text,
                              std::optional<uint32_t> default_slots, HostListBuilder& builder) {
  LineReader line(source, text);
  while (line.NextLine()) {
    absl::Status status = ParseLine(source, line, default_slots, builder);
    if (!status.ok()) return status;
  }
  return line.status();
}

absl::StatusOr<HostList> ParseHostfile(absl::string_view text, absl::string_view name) {
  Source source = Source::File(name);
  HostListBuilder builder(source);
  absl::Status status = AddHostfileLines(source, text, std::nullopt, builder);
  if (!status.ok()) return status;
  return std::move(builder).Finish();
}

absl::StatusOr<HostList> ParseHostList(absl::string_view text, absl::string_view name) {
  Source source = Source::OneLine(name);
  HostListBuilder builder(source);
  if (text.find_first_not_of(" \t") == absl::string_view::npos) return std::move(builder).Finish();
  for (const auto& [at, item] : SplitHostList(text, /*blanks_separate=*/false)) {
    auto spec = ParseHostSpec(source, at, item);
    if (!spec.ok()) return spec.status();
    absl::Status status = builder.Add(*spec);
    if (!status.ok()) return status;
  }
  absl::StatusOr<HostList> list = std::move(builder).Finish();
  if (!list.ok()) return list;
  for (HostEntry& entry : list->entries) entry.slots_asked = entry.slots.has_value();
  return list;
}

namespace {

absl::string_view KindName(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& what) {
  std::string text;
  char buffer[65536];
  while (true) {
    ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, what);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    // While reading, too: a file may grow, and procfs files claim to be empty.
    if (text.size() > kMaxHostfileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", PosixErrorText(EFBIG),
                                                     ": more than ", kMaxHostfileBytes, " bytes"));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadHostfile(const std::string& path) {
  std::string what = absl::StrCat("cannot read ", Escape(path, 4096));
  if (path.empty()) return absl::InvalidArgumentError("cannot read a host file: its name is empty");
  if (path.find('\0') != std::string::npos) return PosixError(EINVAL, what);
  // A named pipe would block open() and every read() without O_NONBLOCK.
  int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return PosixError(errno, what);
  struct stat info {};
  absl::StatusOr<std::string> text = std::string();
  if (fstat(fd, &info) != 0) {
    text = PosixError(errno, what);
  } else if (!S_ISREG(info.st_mode)) {
    int error_number = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    text = absl::InvalidArgumentError(absl::StrCat(what, ": ", PosixErrorText(error_number),
                                                   ": it is ", KindName(info.st_mode),
                                                   ", give a regular file"));
  } else {
    text = ReadAll(fd, what);
  }
  close(fd);
  if (!text.ok()) return text;
  if (size_t nul = text->find('\0'); nul != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", PosixErrorText(EINVAL),
                                                   ": NUL byte at offset ", nul,
                                                   ", this is not a text file"));
  }
  return text;
}

}  // namespace dtrain::hosts
