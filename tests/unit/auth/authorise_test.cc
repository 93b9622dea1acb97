// SPDX-License-Identifier: Apache-2.0
#include "agent/auth/authorise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::auth {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const Job kAlices{"dtrain-1f", "alice", 1001};

Identity Person(Role role, const std::string& name, std::optional<uint32_t> uid) {
  Identity out;
  out.role = role;
  out.name = name;
  out.proof = "certificate 1A2B";
  out.peer = "10.0.0.7";
  if (uid.has_value()) {
    out.account = Account{name, *uid, *uid};
  } else {
    out.no_account =
        role == Role::kObserver ? "observers have read-only access" : "there is no account";
  }
  return out;
}

const Identity kAlice = Person(Role::kUser, "alice", 1001);
const Identity kBob = Person(Role::kUser, "bob", 1002);
const Identity kNobodyHere = Person(Role::kUser, "carol", std::nullopt);
const Identity kObserver = Person(Role::kObserver, "mon", std::nullopt);
const Identity kAdmin = Person(Role::kAdmin, "ops", 1009);
const Identity kAdminElsewhere = Person(Role::kAdmin, "ops", std::nullopt);

// Rows: methods. Columns: who. Of a job of alice's, and without a job: y may, . may not.
TEST(Authorise, Matrix) {
  struct Column {
    const char* name;
    const Identity* who;
  };
  const std::vector<Column> columns = {{"mon", &kObserver}, {"carol", &kNobodyHere},
                                       {"bob", &kBob},      {"alice", &kAlice},
                                       {"admin", &kAdmin},  {"admin-", &kAdminElsewhere}};
  const char* const kWanted =
      // observer, user without account, another user, the owner, admin, admin without account
      "/dtrain.v1.Agent/Session                    job ...y..  none ..yyy.\n"
      "/dtrain.v1.Agent/Logs                       job ...yyy  none ....yy\n"
      "/dtrain.v1.Agent/NodeStatus                 job yyyyyy  none yyyyyy\n"
      "/dtrain.v1.Agent/ReadLog                    job ...yyy  none ....yy\n"
      "/dtrain.v1.Agent/StopJob                    job ...yyy  none ....yy\n"
      "GET /healthz                                job yyyyyy  none yyyyyy\n"
      "GET /metrics                                job yyyyyy  none yyyyyy\n"
      "GET /v1/jobs                                job yyyyyy  none yyyyyy\n"
      "GET /v1/jobs/{id}                           job y..yyy  none y...yy\n"
      "GET /v1/jobs/{id}/ranks                     job y..yyy  none y...yy\n"
      "GET /v1/jobs/{id}/ranks/{rank}              job y..yyy  none y...yy\n"
      "GET /v1/jobs/{id}/ranks/{rank}/log          job ...yyy  none ....yy\n"
      "GET /v1/node                                job yyyyyy  none yyyyyy\n"
      "GET /v1/nodes                               job yyyyyy  none yyyyyy\n";
  std::string got;
  for (const Rule& rule : Rules()) {
    std::string of_job, of_none;
    for (const Column& column : columns) {
      of_job += Authorise(*column.who, rule.method, &kAlices).ok() ? 'y' : '.';
      of_none += Authorise(*column.who, rule.method, nullptr).ok() ? 'y' : '.';
    }
    std::string name(rule.method);
    name.resize(44, ' ');
    absl::StrAppend(&got, name, "job ", of_job, "  none ", of_none, "\n");
  }
  EXPECT_EQ(got, kWanted);
}

TEST(Authorise, WhatIsNotInTheTableNobodyMay) {
  for (const char* method : {"", "/dtrain.v1.Agent/Reboot", "/dtrain.v1.Agent/session", "GET /v1/x",
                             "POST /v1/jobs", "/dtrain.v1.Agent/Session "}) {
    for (const Identity* who : {&kAdmin, &kAlice, &kObserver}) {
      const absl::Status status = Authorise(*who, method, &kAlices);
      EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << method;
      EXPECT_THAT(std::string(status.message()), HasSubstr("no one may"));
    }
    EXPECT_FALSE(AuthoriseStranger(method).ok());
  }
}

TEST(Authorise, StrangersAreToldToSayWhoTheyAre) {
  for (const Rule& rule : Rules()) {
    const absl::Status status = AuthoriseStranger(rule.method);
    if (rule.method == "GET /healthz") {
      EXPECT_TRUE(status.ok());
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << rule.method;
    }
  }
}

TEST(Authorise, ADenialSaysWhoAskedForWhatAndWhoseItIs) {
  const absl::Status status = Authorise(kBob, "/dtrain.v1.Agent/Logs", &kAlices);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(),
            "user bob (certificate 1A2B, 10.0.0.7) may not read the output of job dtrain-1f, which "
            "is alice's; ask alice or an admin");
  EXPECT_EQ(Authorise(kNobodyHere, "/dtrain.v1.Agent/Session", nullptr).message(),
            "user carol (certificate 1A2B, 10.0.0.7) may not launch on this node: there is no "
            "account");
  EXPECT_THAT(std::string(Authorise(kObserver, "/dtrain.v1.Agent/Session", nullptr).message()),
              HasSubstr("observer mon (certificate 1A2B, 10.0.0.7) may not launch on this node: "
                        "observers have read-only access"));
}

// Names are no rights: who has the owner's name and another account does not own the job.
TEST(Authorise, TheAccountCountsNotTheName) {
  const Identity other = Person(Role::kUser, "alice", 1003);
  EXPECT_FALSE(Authorise(other, "/dtrain.v1.Agent/Logs", &kAlices).ok());
  const Identity mapped = Person(Role::kUser, "alice.smith", 1001);
  EXPECT_TRUE(Authorise(mapped, "/dtrain.v1.Agent/Logs", &kAlices).ok());
  // An observer owns nothing, whatever it is called.
  const Identity observer = Person(Role::kObserver, "alice", 1001);
  EXPECT_FALSE(Authorise(observer, "/dtrain.v1.Agent/Logs", &kAlices).ok());
  EXPECT_FALSE(Authorise(observer, "/dtrain.v1.Agent/Session", &kAlices).ok());
}

// Two users may have jobs of one name.
TEST(Authorise, WhoAsksMeansItsOwnJobElseTheOnlyOneThatItMay) {
  const Job bobs{kAlices.id, "bob", 1002};
  const auto choose = [](const Identity& who, const char* method, const std::vector<Job>& jobs) {
    const auto chosen = Choose(who, method, jobs);
    if (!chosen.ok()) return std::string(chosen.status().message());
    return *chosen ? jobs[**chosen].owner : "none";
  };
  for (const char* method : {"/dtrain.v1.Agent/StopJob", "GET /v1/jobs/{id}"}) {
    EXPECT_EQ(choose(kAlice, method, {bobs, kAlices}), "alice");
    EXPECT_EQ(choose(kBob, method, {bobs, kAlices}), "bob");
    EXPECT_EQ(choose(kBob, method, {kAlices}), "alice") << "to be refused";
    EXPECT_EQ(choose(kAdmin, method, {bobs}), "bob");
    EXPECT_EQ(choose(kAdmin, method, {bobs, kAlices}),
              "several users have a job dtrain-1f here; name its owner: bob, alice");
    EXPECT_EQ(choose(kAlice, method, {}), "none");
  }
  EXPECT_THAT(choose(kObserver, "GET /v1/jobs/{id}", {bobs, kAlices}), HasSubstr("bob, alice"));
  EXPECT_EQ(choose(kObserver, "/dtrain.v1.Agent/StopJob", {bobs, kAlices}), "bob")
      << "to be refused";
}

TEST(Audit, ALineOfWords) {
  EXPECT_EQ(
      AuditLine(kBob, "/dtrain.v1.Agent/Logs", &kAlices,
                Authorise(kBob, "/dtrain.v1.Agent/Logs", &kAlices)),
      "audit: denied who=\"user:bob\" account=\"bob\" uid=\"1002\" proof=\"certificate 1A2B\" "
      "peer=\"10.0.0.7\" method=\"/dtrain.v1.Agent/Logs\" job=\"dtrain-1f\" owner=\"alice\"");
  EXPECT_EQ(AuditLine(kObserver, "GET /v1/nodes", nullptr, absl::OkStatus()),
            "audit: allowed who=\"observer:mon\" proof=\"certificate 1A2B\" peer=\"10.0.0.7\" "
            "method=\"GET /v1/nodes\"");
}

TEST(Audit, NoNameForgesALine) {
  Identity evil = kBob;
  evil.name = "x\" uid=\"0\naudit: allowed";
  const std::string line = AuditLine(evil, "a\nb\"", nullptr, absl::OkStatus());
  EXPECT_THAT(line, AllOf(Not(HasSubstr("\n")), Not(HasSubstr("uid=\"0"))));
  EXPECT_THAT(std::string(Authorise(evil, "a\nb", nullptr).message()), Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace dtrain::auth
