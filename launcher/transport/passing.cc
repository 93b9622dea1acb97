// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/passing.h"

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace dtrain::transport {
namespace {

// Said beside a cause that would pass, these do not: ssh ends some refusals with "Connection
// closed", and kubectl wraps whatever the node says.
constexpr absl::string_view kStays[] = {
    "permission denied",
    "host key verification failed",
    "host identification has changed",
    "too many authentication failures",
    "no matching ",
    "bad configuration option",
    "certificate",
    "(unauthorized)",
    "(forbidden)",
    "completed pod",
    "is not valid for pod",
    "unknown flag",
    "unknown shorthand flag",
};

struct Row {
  absl::string_view words;  // lower case
  absl::string_view what;
};

// Several programs' words for one cause; the first that is found counts.
constexpr Row kPasses[] = {
    // A system that boots or goes down lets in nobody but root (pam_nologin).
    {"system is booting up", "it is booting"},
    {"system is going down", "it is shutting down"},
    {"pam_nologin", "it lets in nobody yet"},
    // Names.
    {"could not resolve hostname", "name not known"},
    {"name or service not known", "name not known"},
    {"temporary failure in name resolution", "name not known"},
    {"no such host", "name not known"},
    // Containers and pods.
    {"container not found", "container not found"},
    {"no such container", "container not found"},
    {"no container with name", "container not found"},
    {"pod does not exist", "pod not found"},
    {"container is not running", "container not running"},
    {"only create exec sessions on running", "container not running"},
    {"is restarting", "container not running"},
    {"is waiting to start", "container not running"},
    {"containercreating", "container not running"},
    {"podinitializing", "container not running"},
    {"does not have a host assigned", "pod not scheduled"},
    {"instance is not running", "instance not running"},
    {"targetnotconnected", "instance not connected"},
    {"failed to connect to backend", "no connection to the instance"},
    {"error dialing backend", "its node does not answer"},
    {"serviceunavailable", "the API server is not available"},
    // sshd takes no more connections at a time (MaxStartups), or is being started.
    {"exchange_identification", "sshd closes new connections"},
    {"exceeded maxstartups", "sshd closes new connections"},
    {"not allowed at this time", "sshd closes new connections"},
    // The network.
    {"connection refused", "connection refused"},
    {" was refused - did you specify", "connection refused"},
    {"no route to host", "no route to host"},
    {"network is unreachable", "network unreachable"},
    {"host is down", "host is down"},
    {"connection timed out", "no answer"},
    {"operation timed out", "no answer"},
    {"tls handshake timeout", "no answer"},
    {"i/o timeout", "no answer"},
    {"banner exchange", "no answer from sshd"},
    {"connection reset by", "connection reset"},
    {"connection closed by", "connection closed"},
    {"closed by remote host", "connection closed"},
    {"broken pipe", "connection broken"},
};

// docker's names stand between the words.
bool IsStoppedContainer(absl::string_view words) {
  const size_t at = words.find("container ");
  return at != absl::string_view::npos && absl::StrContains(words.substr(at), " is not running");
}

}  // namespace

std::string WhatPassesOf(int error_number) {
  switch (error_number) {
    case ECONNREFUSED:
      return "connection refused";
    case EHOSTUNREACH:
      return "no route to host";
    case ENETUNREACH:
    case ENETDOWN:
      return "network unreachable";
    case EHOSTDOWN:
      return "host is down";
    case ETIMEDOUT:
      return "no answer";
    case ECONNRESET:
    case EPIPE:
      return "connection reset";
    default:
      return "";
  }
}

std::string WhatPassesIn(absl::string_view said) {
  const std::string words = absl::AsciiStrToLower(said);
  for (absl::string_view stays : kStays) {
    if (absl::StrContains(words, stays)) return "";
  }
  for (const Row& row : kPasses) {
    if (absl::StrContains(words, row.words)) return std::string(row.what);
  }
  // A pod that a deployment is about to make: Error from server (NotFound): pods "worker-0" not
  // found.
  if (absl::StrContains(words, "pods \"") && absl::StrContains(words, "not found")) {
    return "pod not found";
  }
  return IsStoppedContainer(words) ? "container not running" : "";
}

}  // namespace dtrain::transport
