// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <cstddef>
#include <string>

#include "absl/functional/any_invocable.h"
#include "agent/stores/admission.h"
#include "common/loop/loop.h"
#include "dtrain/v1/elastic.pb.h"

namespace dtrain::stores {

using StreamSocket = boost::asio::generic::stream_protocol::socket;

// What a server has to say to the shepherd.
struct Reports {
  // A rank has left something that it would miss. May be called again.
  absl::AnyInvocable<void()> used;
  // Who was turned away, and why: "a connection from 10.0.0.9, which …". Not all of them are passed
  // on, and each only once.
  absl::AnyInvocable<void(std::string what)> refused;
  absl::AnyInvocable<void(const v1::ElasticUp& up)> elastic;
};

// One of the protocols that ranks speak. Loop thread.
class Server {
 public:
  virtual ~Server() = default;
  // `over` is called once, when its connection is closed.
  virtual void Serve(StreamSocket client, const Admission::Guest& guest, loop::Task over) = 0;
  // Of connections at a time. Others wait in the listener's queue.
  virtual size_t most_sessions() const = 0;
  // Of an elastic job, by way of the shepherd. False: it is not the server of one.
  virtual bool OnDown(const v1::ElasticDown& /*down*/) { return false; }
};

}  // namespace dtrain::stores
