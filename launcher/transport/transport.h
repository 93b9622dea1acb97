// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::transport {

// Where an agent is to be reached.
struct Target {
  std::string host;   // as the user wrote it; refused earlier when it is not a plain name
  std::string user;   // empty: the transport's default
  uint16_t port = 0;  // 0: the transport's default
  // A session that the node's resident agent has is gone on with. The agent may have been upgraded
  // since to another build, which is otherwise left alone.
  bool resume = false;
  // The job outlives this connection: where no resident agent serves its user, a private one of the
  // user does, which is started for it.
  bool keep = false;
  bool asks = false;  // no job is to be started over this connection
};

// What the agent's bridge is told of it, one word; empty: nothing, it is for a launch.
std::string BridgeFlag(const Target& target);

// How far a connection has come, for the live line and for "what is node3 waiting for".
// kLoginShell: logged in, and its start-up files run. kStartingAgent: the agent is looked for in
// the home directory, and started.
enum class Phase { kConnecting, kAuthenticating, kLoginShell, kStartingAgent, kPushingAgent };

// Why a connection could not be made, when it is that its host's name does not exist: a mistake of
// whoever wrote it, unlike all else that can fail.
absl::Status UnknownHostError(absl::string_view message);
bool IsUnknownHost(const absl::Status& status);

// Likewise, that one side does not let the other in who it proved, or did not prove, to be. What
// ssh says of logins is not meant: dtrain itself has refused nothing then.
absl::Status NotAuthorisedError(absl::string_view message);
bool IsNotAuthorised(const absl::Status& status);

// The same failure, which passes by itself: who tries again may succeed. `what`: the cause in a few
// words, for a line that is redrawn. Empty: it does not pass, and `why` stays as it is.
absl::Status PassingError(absl::Status why, absl::string_view what);
// These words; empty: trying again does not help.
std::string WhatPasses(const absl::Status& why);

// A machine that was there is there again, and knows nothing of before.
absl::Status StartedAnewError(absl::string_view message);
bool WasStartedAnew(const absl::Status& status);

// All calls are made on the loop thread, none from inside Connect; none after on_failed. on_ready
// and on_failed may destroy the connection.
struct Callbacks {
  absl::AnyInvocable<void(Phase)> on_phase;
  // The agent printed its handshake line; gRPC goes over this connected stream socket. Once.
  absl::AnyInvocable<void(os::UniqueFd stream)> on_ready;
  // It did not come that far. The message says what was tried, the cause and the next step, but
  // not the host, which the caller knows. Once.
  absl::AnyInvocable<void(absl::Status)> on_failed;
};

// One byte stream to one agent. Destroying it ends the stream, and with it the agent. Loop thread.
class Connection {
 public:
  virtual ~Connection() = default;
  // After the stream ended: why, as far as the transport knows ("ssh: Connection reset by peer",
  // "command exited with status 255: <last lines of its stderr>"). OK when it knows of nothing.
  virtual absl::Status CloseReason() const = 0;
  // Where on the network it has reached the host; empty: not known.
  virtual std::string address() const { return ""; }
};

// Of the other end of a TCP connection; empty when it has gone already, or is none.
std::string AddressOf(int socket);

// local, ssh and command are its three kinds (docs/architecture.md). Connecting to all nodes at
// once is the caller's; a transport bounds what it does at a time by itself. It outlives its
// connections, and its destructor sees to the end of what they left. Loop thread.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::unique_ptr<Connection> Connect(const Target& target, Callbacks callbacks) = 0;
};

// A connection that could not even be begun: tells so from the loop, as every other one does.
class FailedConnection : public Connection {
 public:
  FailedConnection(loop::Loop& loop, absl::Status status, Callbacks callbacks) {
    loop.Post([alive = alive_, status = std::move(status),
               on_failed = std::move(callbacks.on_failed)]() mutable {
      if (*alive) on_failed(std::move(status));
    });
  }
  ~FailedConnection() override { *alive_ = false; }
  absl::Status CloseReason() const override { return absl::OkStatus(); }

 private:
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::transport
