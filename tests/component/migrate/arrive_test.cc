// SPDX-License-Identifier: Apache-2.0
// Whose job a host has to which one is to be moved.
#include "launcher/migrate/arrive.h"

#include <gtest/gtest.h>

#include <string>

#include "dtrain/v1/agent.pb.h"

namespace dtrain::migrate {
namespace {

void AddJob(v1::NodeReport& report, const std::string& owner, bool in_name) {
  v1::JobOnNode& job = *report.add_jobs();
  job.set_job_id("dtrain-2e");
  job.set_owner(owner);
  job.set_in_name(in_name);
}

TEST(ArriveTest, AnotherUsersJobOfThatIdDoesNotCount) {
  v1::NodeReport report;
  EXPECT_FALSE(HasOwnJob(report, "dtrain-2e", ""));
  AddJob(report, "mallory", /*in_name=*/true);
  EXPECT_FALSE(HasOwnJob(report, "dtrain-2e", ""));
  AddJob(report, "alice", /*in_name=*/false);
  EXPECT_TRUE(HasOwnJob(report, "dtrain-2e", ""));
  EXPECT_FALSE(HasOwnJob(report, "dtrain-2f", ""));
}

TEST(ArriveTest, NorDoesItForAnAdminWhoSeesAll) {
  v1::NodeReport report;
  AddJob(report, "mallory", /*in_name=*/false);
  EXPECT_FALSE(HasOwnJob(report, "dtrain-2e", "root"));
  AddJob(report, "root", /*in_name=*/false);
  EXPECT_TRUE(HasOwnJob(report, "dtrain-2e", "root"));
}

}  // namespace
}  // namespace dtrain::migrate
