// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/passing.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "launcher/transport/ssh_link.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {
namespace {

struct Row {
  const char* said;
  const char* what;  // "": it does not pass
};

// As the programs write it: OpenSSH 8 to 9.9, kubectl 1.2x, docker, podman, and clouds' clients.
const Row kRows[] = {
    {"ssh: connect to host node1 port 22: Connection refused", "connection refused"},
    {"ssh: connect to host node1 port 22: No route to host", "no route to host"},
    {"ssh: connect to host node1 port 22: Network is unreachable", "network unreachable"},
    {"ssh: connect to host node1 port 22: Connection timed out", "no answer"},
    {"ssh: connect to host node1 port 22: Operation timed out", "no answer"},
    {"ssh: connect to host node1 port 22: Host is down", "host is down"},
    {"ssh: Could not resolve hostname node1: Name or service not known", "name not known"},
    {"ssh: Could not resolve hostname node1: Temporary failure in name resolution",
     "name not known"},
    {"kex_exchange_identification: Connection closed by remote host\r\n"
     "Connection closed by 10.0.0.2 port 22",
     "sshd closes new connections"},
    {"kex_exchange_identification: read: Connection reset by peer", "sshd closes new connections"},
    {"ssh_exchange_identification: Connection closed by remote host",
     "sshd closes new connections"},
    {"Connection timed out during banner exchange", "no answer"},
    {"banner exchange: Connection to 10.0.0.2 port 22: invalid format", "no answer from sshd"},
    {"Connection reset by 10.0.0.2 port 22", "connection reset"},
    {"Connection to 10.0.0.2 closed by remote host.", "connection closed"},
    {"client_loop: send disconnect: Broken pipe", "connection broken"},
    {"\"System is booting up. Unprivileged users are not permitted to log in yet. Please come "
     "back later. For technical details, see pam_nologin(8).\"\nConnection closed by 10.0.0.2 port "
     "22",
     "it is booting"},
    {"error: unable to upgrade connection: container not found (\"main\")", "container not found"},
    {"Error from server (NotFound): pods \"worker-1\" not found", "pod not found"},
    {"Error from server (BadRequest): pod worker-1 does not have a host assigned",
     "pod not scheduled"},
    {"error: Internal error occurred: error executing command in container: container is not "
     "running",
     "container not running"},
    {"Error from server: error dialing backend: dial tcp 10.0.0.2:10250: connect: connection "
     "refused",
     "its node does not answer"},
    {"Unable to connect to the server: net/http: TLS handshake timeout", "no answer"},
    {"The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or "
     "port?",
     "connection refused"},
    {"Error response from daemon: No such container: node1", "container not found"},
    {"Error: No such container: node1", "container not found"},
    {"Error response from daemon: Container 3f2a is not running", "container not running"},
    {"Error response from daemon: container 3f2a is not running", "container not running"},
    {"Error response from daemon: Container 3f2a is restarting, wait until the container is "
     "running",
     "container not running"},
    {"Error: no container with name or ID \"node1\" found: no such container",
     "container not found"},
    {"Error: can only create exec sessions on running containers: container state improper",
     "container not running"},
    {"An error occurred (TargetNotConnected) when calling the StartSession operation",
     "instance not connected"},

    {"node1: Permission denied (publickey).", ""},
    {"Received disconnect from 10.0.0.2 port 22:2: Too many authentication failures\n"
     "Connection closed by 10.0.0.2 port 22",
     ""},
    {"Host key verification failed.\r\nConnection closed by 10.0.0.2 port 22", ""},
    {"@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", ""},
    {"Unable to negotiate with 10.0.0.2 port 22: no matching host key type found. Their offer: "
     "ssh-rsa\nConnection closed by 10.0.0.2 port 22",
     ""},
    {"/root/.ssh/config: line 3: Bad configuration option: hostnam", ""},
    {"Error from server (Forbidden): pods \"worker-1\" is forbidden: not found in policy", ""},
    {"error: You must be logged in to the server (Unauthorized)", ""},
    {"error: cannot exec into a container in a completed pod; current phase is Succeeded", ""},
    {"Error from server (BadRequest): container x is not valid for pod worker-1", ""},
    {"bash: kubectl: command not found", ""},
    {"unknown shorthand flag: 'q' in -q", ""},
    {"", ""},
};

TEST(Passing, WhatProgramsSay) {
  for (const Row& row : kRows) EXPECT_EQ(WhatPassesIn(row.said), row.what) << row.said;
}

TEST(Passing, WhatTheSystemSays) {
  for (const int error : {ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT, ECONNRESET}) {
    EXPECT_NE(WhatPassesOf(error), "") << error;
  }
  for (const int error : {EACCES, EPERM, EMFILE, EINVAL, EADDRNOTAVAIL}) {
    EXPECT_EQ(WhatPassesOf(error), "") << error;
  }
}

TEST(Passing, TheMarkGoesWithCopies) {
  const absl::Status plain = absl::UnavailableError("connect");
  EXPECT_EQ(WhatPasses(plain), "");
  EXPECT_EQ(WhatPasses(PassingError(plain, "")), "");
  EXPECT_EQ(WhatPasses(absl::OkStatus()), "");
  const absl::Status unknown = PassingError(UnknownHostError("resolve"), "name not known");
  EXPECT_TRUE(IsUnknownHost(unknown));
  EXPECT_EQ(WhatPasses(Unshared(unknown)), "name not known");
  EXPECT_TRUE(IsUnknownHost(Unshared(unknown)));
}

}  // namespace
}  // namespace dtrain::transport
