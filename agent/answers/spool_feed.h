// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "agent/auth/identity.h"
#include "agent/session/sessions.h"
#include "common/http/message.h"

namespace dtrain::answers {

// A rank's output as it grows, from the spool, until the job is over. A reader that falls behind
// what is kept is told how much it has missed. Loop thread.
class SpoolFeed final : public http::Feed {
 public:
  // `sessions` outlives it.
  SpoolFeed(session::Sessions& sessions, auth::Identity peer, v1::ReadLogRequest request)
      : sessions_(sessions), peer_(std::move(peer)), request_(std::move(request)) {}
  std::string Next(size_t limit) override;
  bool ended() const override { return ended_; }
  void Notify(absl::AnyInvocable<void()> task) override;

 private:
  session::Sessions& sessions_;
  const auth::Identity peer_;
  v1::ReadLogRequest request_;
  bool begun_ = false;
  bool ended_ = false;
  // Ours alone: it holds the connection, which must not wait for output when its reader has left.
  std::shared_ptr<loop::Task> wake_;
};

}  // namespace dtrain::answers
