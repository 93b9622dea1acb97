// SPDX-License-Identifier: Apache-2.0
// What questions about the node cost, with readers that answer at once.
#include "agent/session/inquiries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "common/base/clock.h"

namespace dtrain::session {
namespace {

class InquiriesTest : public ::testing::Test {
 protected:
  InquiriesTest() {
    readers_.status = [this](absl::AnyInvocable<void(v1::Inventory)> done) {
      ++looks_;
      done(v1::Inventory());
    };
  }
  void Ask(const std::string& user, uint32_t uid, int count) {
    auth::Identity peer;
    peer.role = auth::Role::kUser;
    peer.name = user;
    peer.account = auth::Account{user, uid, uid};
    for (int i = 0; i < count; ++i) {
      inquiries_.ReportNode(peer, "/dtrain.v1.Agent/NodeStatus",
                            [this](const absl::StatusOr<v1::NodeReport>& report) {
                              (report.ok() ? answered_ : refused_)++;
                              if (!report.ok()) why_ = std::string(report.status().message());
                              if (answered_ == 2 + 32) loop_.Stop();
                            });
    }
  }

  loop::Loop loop_;
  Readers readers_;
  Reservations reservations_;
  spawn::Quarantine quarantine_;
  Roster roster_{loop_, false};
  Inquiries inquiries_{Surroundings{loop_, readers_, reservations_, {}, ""}, quarantine_, roster_};
  int looks_ = 0, answered_ = 0, refused_ = 0;
  std::string why_;
};

TEST_F(InquiriesTest, OneUsersQuestionsAboutTheNodeShareAnAnswer) {
  // As of many jobs.
  inquiries_.SetAbout([] {
    const TimePoint end = Clock::now() + std::chrono::milliseconds(20);
    while (Clock::now() < end) continue;
    return v1::NodeReport();
  });
  Ask("mallory", 7, 1000);
  EXPECT_EQ(looks_, 1);
  EXPECT_EQ(answered_, 1);
  EXPECT_EQ(refused_, 1000 - 1 - 32);
  EXPECT_EQ(why_,
            "32 questions of mallory about this node wait for their answer, as many as one user "
            "may have");
  Ask("alice", 8, 1);
  EXPECT_EQ(answered_, 2) << "others do not wait for them";
  loop::Timer deadline(loop_);
  deadline.After(std::chrono::minutes(1), [&] { loop_.Stop(); });
  loop_.Run();
  EXPECT_EQ(looks_, 3);
  EXPECT_EQ(answered_, 2 + 32);
}

}  // namespace
}  // namespace dtrain::session
