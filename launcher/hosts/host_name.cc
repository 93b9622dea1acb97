// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_name.h"

#include <arpa/inet.h>

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

std::optional<NameFault> FindFault(absl::string_view kind, absl::string_view text,
                                   absl::string_view extra, size_t max_length = kMaxNameLength) {
  if (text.empty()) return NameFault{0, absl::StrCat(kind, " is empty")};
  if (text.front() == '-') return NameFault{0, absl::StrCat(kind, " starts with '-'")};
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    bool ok = absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' ||
              extra.find(c) != absl::string_view::npos;
    if (!ok) {
      return NameFault{
          i, absl::StrCat(kind, " must not contain '", EscapeAscii(text.substr(i, 1)), "'")};
    }
  }
  if (text.size() > max_length) {
    return NameFault{
        0, absl::StrCat(kind, " has ", text.size(), " characters, more than ", max_length)};
  }
  return std::nullopt;
}

using Ipv6Bytes = std::array<char, 16>;

std::optional<std::pair<Ipv6Bytes, absl::string_view>> SplitIpv6(absl::string_view text) {
  constexpr size_t kMaxZone = 15;  // IFNAMSIZ without its NUL
  size_t percent = text.find('%');
  absl::string_view address = text.substr(0, percent);
  absl::string_view zone;
  if (percent != absl::string_view::npos) {
    zone = text.substr(percent + 1);
    if (zone.size() > kMaxZone || FindFault("zone", zone, "")) return std::nullopt;
  }
  Ipv6Bytes bytes;
  // inet_pton stops at a NUL.
  if (address.size() > INET6_ADDRSTRLEN || address.find('\0') != absl::string_view::npos ||
      inet_pton(AF_INET6, std::string(address).c_str(), bytes.data()) != 1) {
    return std::nullopt;
  }
  return std::pair(bytes, zone);
}

}  // namespace

std::optional<NameFault> FindHostNameFault(absl::string_view host, size_t max_length) {
  if (auto fault = FindFault("host name", host, "", max_length)) return fault;
  if (host.front() == '.') return NameFault{0, "host name starts with '.'"};
  size_t empty_label = host.find("..");
  if (empty_label != absl::string_view::npos)
    return NameFault{empty_label, "host name contains '..'"};
  return std::nullopt;
}

std::optional<NameFault> FindUserFault(absl::string_view user) {
  return FindFault("user name", user, "@+");
}

bool IsIpv6(absl::string_view text) { return SplitIpv6(text).has_value(); }

std::string HostKey(absl::string_view host) {
  if (host.find(':') != absl::string_view::npos) {
    if (auto parts = SplitIpv6(host)) {
      return absl::StrCat(absl::string_view(parts->first.data(), parts->first.size()), "%",
                          parts->second);
    }
  }
  return absl::AsciiStrToLower(host);
}

absl::Status CheckHostName(absl::string_view host) {
  if (IsIpv6(host)) return absl::OkStatus();
  auto fault = FindHostNameFault(host);
  if (!fault) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(fault->what, ": \"", EscapeAscii(host), "\"; ", kNameAdvice));
}

}  // namespace dtrain::hosts
