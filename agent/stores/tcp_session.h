// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/stores/server.h"
#include "agent/stores/tcp_store.h"
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

// PyTorch's TCPStore for the ranks of one job. Each node may have so many connections for each of
// its ranks, so that its users cannot keep out the ranks of another; when it has them all, a new
// one takes the place of the oldest that has never said anything. Loop thread.
class TcpServer : public Server {
 public:
  TcpServer(loop::Loop& loop, TcpLimits limits, Reports& reports)
      : loop_(loop), reports_(reports), store_(limits) {}
  void Serve(StreamSocket client, const Admission::Guest& guest, loop::Task over) override;
  size_t most_sessions() const override { return SIZE_MAX; }

 private:
  struct Client {
    std::shared_ptr<TcpSession> session;
    std::string node, address;
    loop::Task over;
  };
  struct Node {
    size_t sessions = 0;
    std::set<TcpStore::Client> silent;  // those that have not made a request yet
  };
  bool MakeRoom(const Admission::Guest& guest);
  absl::Status OnRequest(TcpStore::Client from, TcpRequest request);
  void OnOver(TcpStore::Client client, const absl::Status& why);

  loop::Loop& loop_;
  Reports& reports_;
  TcpStore store_;
  std::map<TcpStore::Client, Client> clients_;
  std::map<std::string, Node> nodes_;
  TcpStore::Client last_client_ = 0;
  size_t held_ = 0;  // bytes on their way, of all sessions
};

}  // namespace dtrain::stores
