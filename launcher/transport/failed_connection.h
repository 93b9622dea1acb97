// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "common/loop/loop.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

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
