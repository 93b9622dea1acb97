// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/stores/server.h"
#include "agent/stores/tcp_wire.h"
#include "common/loop/loop.h"

namespace dtrain::stores {

// One connection of a TCPStore's client, for as long as the client wants: most live as long as
// their rank, and some never say a word. A client that does not read what it asked for is not
// listened to, and one that is sent too much is closed. Loop thread.
class TcpSession : public std::enable_shared_from_this<TcpSession> {
 public:
  struct Hooks {
    // An error: the connection is closed.
    absl::AnyInvocable<absl::Status(TcpRequest)> on_request;
    // What it holds in memory has changed by so much. False: that is too much.
    absl::AnyInvocable<bool(ptrdiff_t)> on_held;
    // It is closed, for `why` unless the client has left. Called once, and the last.
    absl::AnyInvocable<void(absl::Status why)> on_over;
  };
  TcpSession(loop::Loop& loop, StreamSocket socket, Hooks hooks);
  void Start();
  void Send(absl::string_view bytes);
  void Close(absl::Status why = absl::OkStatus());

 private:
  using Error = boost::system::error_code;
  void AwaitBytes();
  void OnReadable();
  void Take(absl::string_view bytes);
  void Flush();
  void OnWritable();
  void Account();

  loop::Loop& loop_;
  StreamSocket socket_;
  Hooks hooks_;
  TcpParser parser_;
  std::string rest_;  // not parsed yet, as the client does not read
  std::string out_;
  size_t sent_ = 0;       // of out_
  size_t held_ = 0;       // as on_held knows it
  bool taking_ = false;   // inside Take, which flushes at its end
  bool reading_ = false;  // until the socket is readable
  bool blocked_ = false;  // until the socket is writable
  bool closed_ = false;
};

}  // namespace dtrain::stores
