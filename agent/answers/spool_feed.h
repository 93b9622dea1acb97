// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/auth/identity.h"
#include "agent/session/inquiries.h"
#include "common/http/message.h"

namespace dtrain::answers {

// A rank's output as it grows, until the job is over. A reader that falls behind what is kept is
// told how much it has missed. Loop thread.
class SpoolFeed final : public http::Feed {
 public:
  // `route`: whose rule says who may.
  static absl::StatusOr<std::unique_ptr<SpoolFeed>> Open(session::Inquiries& inquiries,
                                                         const auth::Identity& peer,
                                                         absl::string_view route,
                                                         const v1::ReadLogRequest& request);
  std::string Next(size_t limit) override;
  bool ended() const override { return over_ && data_.size() == 0; }
  void Notify(absl::AnyInvocable<void()> task) override { wake_ = std::move(task); }

 private:
  SpoolFeed() = default;
  void OnPiece(uint64_t offset, link::SharedBytes data);
  void Wake();

  std::shared_ptr<session::LogSource> source_;
  link::SharedBytes data_;  // not given out yet
  uint64_t missed_ = 0;     // before it
  uint64_t next_ = 0;
  bool begun_ = false;
  bool over_ = false;
  absl::AnyInvocable<void()> wake_;
};

}  // namespace dtrain::answers
