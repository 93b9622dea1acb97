// SPDX-License-Identifier: Apache-2.0
#include "common/os/unix_sockets.h"

#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {
namespace {

// Since Linux 5.3, newer than the headers that we may be built against.
constexpr uint32_t kShowMaker = 0x40;  // UDIAG_SHOW_UID
constexpr uint16_t kMaker = 7;         // UNIX_DIAG_UID

// One socket, as the kernel describes it.
void ReadSocket(absl::string_view attributes, SeeUnixSocket see) {
  absl::string_view path;
  std::optional<uid_t> maker;
  nlattr attribute;
  while (attributes.size() >= sizeof(attribute)) {
    std::memcpy(&attribute, attributes.data(), sizeof(attribute));
    if (attribute.nla_len < sizeof(attribute) || attribute.nla_len > attributes.size()) break;
    const absl::string_view value =
        attributes.substr(sizeof(attribute), attribute.nla_len - sizeof(attribute));
    if (attribute.nla_type == UNIX_DIAG_NAME) path = value.substr(0, value.find('\0'));
    if (attribute.nla_type == kMaker && value.size() == sizeof(uid_t)) {
      maker.emplace();
      std::memcpy(&*maker, value.data(), sizeof(uid_t));
    }
    attributes.remove_prefix(
        std::min(attributes.size(), static_cast<size_t>(NLA_ALIGN(attribute.nla_len))));
  }
  if (!path.empty()) see(path, maker);
}

}  // namespace

absl::Status ForEachUnixSocket(size_t most, SeeUnixSocket see) {
  const absl::Status silent = absl::UnavailableError("the kernel does not list unix sockets");
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } question{};
  question.header.nlmsg_len = sizeof(question);
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  question.request.sdiag_family = AF_UNIX;
  // Bound or listening. A connection that nobody has accepted has the name, too, and no maker.
  question.request.udiag_states = 1u << TCP_CLOSE | 1u << TCP_LISTEN;
  question.request.udiag_show = UDIAG_SHOW_NAME | kShowMaker;
  const UniqueFd netlink(
      socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
  if (!netlink || send(netlink.get(), &question, sizeof(question), 0) < 0) return silent;
  constexpr size_t kHead = NLMSG_ALIGN(sizeof(nlmsghdr)) + NLMSG_ALIGN(sizeof(unix_diag_msg));
  std::string answers(32 << 10, '\0');  // as many as the kernel gives at once
  for (size_t seen = 0;;) {
    const ssize_t size = recv(netlink.get(), answers.data(), answers.size(), 0);
    if (size <= 0) return silent;
    absl::string_view left(answers.data(), static_cast<size_t>(size));
    nlmsghdr header;
    while (left.size() >= sizeof(header)) {
      std::memcpy(&header, left.data(), sizeof(header));
      if (header.nlmsg_type == NLMSG_DONE) return absl::OkStatus();
      if (header.nlmsg_type == NLMSG_ERROR || header.nlmsg_len < kHead ||
          header.nlmsg_len > left.size()) {
        return silent;
      }
      if (++seen > most) {
        return absl::ResourceExhaustedError(absl::StrCat("more than ", most, " unix sockets"));
      }
      ReadSocket(left.substr(kHead, header.nlmsg_len - kHead), see);
      left.remove_prefix(std::min(left.size(), static_cast<size_t>(NLMSG_ALIGN(header.nlmsg_len))));
    }
  }
}

}  // namespace dtrain::os
