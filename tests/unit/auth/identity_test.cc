// SPDX-License-Identifier: Apache-2.0
#include "agent/auth/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

namespace dtrain::auth {
namespace {

using testing::HasSubstr;

std::optional<Account> Find(absl::string_view name) {
  static const std::map<std::string, uint32_t, std::less<>> kAccounts = {
      {"root", 0}, {"alice", 1001}, {"bob", 1002}, {"asmith", 1003}, {"toor", 0}};
  const auto found = kAccounts.find(name);
  if (found == kAccounts.end()) return std::nullopt;
  return Account{found->first, found->second, 100};
}

Identity Of(const CertificateFacts& certificate, const Policy& policy = {}) {
  const auto identity = IdentityOfCertificate(certificate, "10.0.0.7", policy, Find);
  EXPECT_TRUE(identity.ok()) << identity.status();
  return identity.value_or(Identity{});
}

TEST(CertificateIdentity, AUserIsTheAccountOfTheSameName) {
  const Identity alice = Of({"user", "alice", "1A2B"});
  EXPECT_EQ(alice.role, Role::kUser);
  EXPECT_EQ(alice.name, "alice");
  ASSERT_TRUE(alice.account.has_value());
  EXPECT_EQ(alice.account->name, "alice");
  EXPECT_EQ(alice.account->uid, 1001u);
  EXPECT_EQ(alice.account->gid, 100u);
  EXPECT_EQ(Describe(alice), "user alice (certificate 1A2B, 10.0.0.7)");
}

TEST(CertificateIdentity, RolesComeFromTheKindOnly) {
  EXPECT_EQ(Of({"admin", "bob", "1"}).role, Role::kAdmin);
  const Identity observer = Of({"observer", "alice", "1"});
  EXPECT_EQ(observer.role, Role::kObserver);
  // Not even when there is such an account.
  EXPECT_FALSE(observer.account.has_value());
  EXPECT_LT(Role::kObserver, Role::kUser);
  EXPECT_LT(Role::kUser, Role::kAdmin);
}

// I22: a node's key does not launch.
TEST(CertificateIdentity, NodesAndUnknownKindsAreNobody) {
  for (const char* kind : {"node", "", "root", "ADMIN"}) {
    const auto identity = IdentityOfCertificate({kind, "alice", "1"}, "10.0.0.7", {}, Find);
    EXPECT_EQ(identity.status().code(), absl::StatusCode::kPermissionDenied) << kind;
    EXPECT_THAT(std::string(identity.status().message()), HasSubstr("is not a user's"));
  }
  EXPECT_FALSE(IdentityOfCertificate({"user", "", "1"}, "10.0.0.7", {}, Find).ok());
}

TEST(CertificateIdentity, MappedAccounts) {
  Policy policy;
  policy.accounts = *AccountMap::Parse("alice = asmith\n");
  EXPECT_EQ(Of({"user", "alice", "1"}, policy).account->uid, 1003u);
  EXPECT_EQ(Of({"user", "alice", "1"}, policy).name, "alice");
  EXPECT_EQ(Of({"user", "bob", "1"}, policy).account->uid, 1002u);
}

TEST(CertificateIdentity, WhoHasNoAccountMayOnlyLook) {
  const Identity carol = Of({"user", "carol", "1"});
  EXPECT_FALSE(carol.account.has_value());
  EXPECT_THAT(carol.no_account, HasSubstr("this node has no account \"carol\""));
}

TEST(CertificateIdentity, NeverRootUnlessAllowed) {
  Policy policy;
  policy.accounts = *AccountMap::Parse("bob = toor");
  for (const char* name : {"root", "bob"}) {
    for (const char* kind : {"user", "admin"}) {
      const Identity identity = Of({kind, name, "1"}, policy);
      EXPECT_FALSE(identity.account.has_value()) << name;
      EXPECT_THAT(identity.no_account, HasSubstr("--allow-root"));
    }
  }
  policy.allow_root = true;
  EXPECT_EQ(Of({"user", "root", "1"}, policy).account->uid, 0u);
}

TEST(CertificateIdentity, AnUnprivilegedAgentIsOneAccountOnly) {
  Policy policy;
  policy.agent_uid = 1001;
  policy.allow_root = true;
  EXPECT_TRUE(Of({"user", "alice", "1"}, policy).account.has_value());
  for (const char* name : {"bob", "root"}) {
    const Identity identity = Of({"user", name, "1"}, policy);
    EXPECT_FALSE(identity.account.has_value());
    EXPECT_THAT(identity.no_account, HasSubstr("this agent runs as user id 1001"));
  }
}

TEST(UnixIdentity, OfAnAgentOfRoot) {
  const auto root = IdentityOfUnixPeer({0, 0, 42}, "root", {});
  ASSERT_TRUE(root.ok());
  EXPECT_EQ(root->role, Role::kAdmin);
  EXPECT_EQ(root->account->uid, 0u);
  const auto alice = IdentityOfUnixPeer({1001, 100, 43}, "alice", {});
  ASSERT_TRUE(alice.ok());
  EXPECT_EQ(alice->role, Role::kUser);
  EXPECT_EQ(alice->account->uid, 1001u);
  EXPECT_EQ(alice->account->gid, 100u);
  EXPECT_EQ(Describe(*alice), "user alice (unix socket, process 43)");
  const auto nameless = IdentityOfUnixPeer({7777, 7777, 44}, "", {});
  ASSERT_TRUE(nameless.ok());
  EXPECT_FALSE(nameless->account.has_value());
  EXPECT_THAT(nameless->no_account, HasSubstr("user id 7777 has no account"));
}

// I18
TEST(UnixIdentity, OfAnUnprivilegedAgent) {
  Policy policy;
  policy.agent_uid = 1001;
  const auto own = IdentityOfUnixPeer({1001, 100, 42}, "alice", policy);
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->role, Role::kAdmin);
  EXPECT_EQ(own->account->uid, 1001u);
  // In a container, of a user that its image does not know.
  const auto nameless = IdentityOfUnixPeer({1001, 100, 42}, "", policy);
  ASSERT_TRUE(nameless.ok());
  ASSERT_TRUE(nameless->account.has_value()) << nameless->no_account;
  EXPECT_EQ(nameless->account->name, "1001");
  const auto other = IdentityOfUnixPeer({1002, 100, 43}, "bob", policy);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(other.status().message(),
            "this agent is user id 1001's; user id 1002 (process 43) is refused");
  // Root may see and end what is there, and cannot be started by an agent that is not root's.
  const auto root = IdentityOfUnixPeer({0, 0, 44}, "root", policy);
  ASSERT_TRUE(root.ok());
  EXPECT_EQ(root->role, Role::kAdmin);
  EXPECT_FALSE(root->account.has_value());
}

// Its jobs are dtrain-spawner's, which decides whom it starts.
TEST(UnixIdentity, AnAgentOfItsOwnUserMayServeAll) {
  Policy policy;
  policy.agent_uid = 990;
  policy.for_all = true;
  const auto alice = IdentityOfUnixPeer({1001, 100, 43}, "alice", policy);
  ASSERT_TRUE(alice.ok()) << alice.status();
  EXPECT_EQ(alice->role, Role::kUser);
  EXPECT_EQ(alice->account->uid, 1001u);
  EXPECT_TRUE(IdentityOfUnixPeer({0, 0, 44}, "root", policy)->account.has_value());
  EXPECT_EQ(Of({"user", "alice", "1"}, policy).account->uid, 1001u);
  EXPECT_FALSE(Of({"user", "root", "1"}, policy).account.has_value()) << "without --allow-root";
}

TEST(AccountMap, Parses) {
  const auto map = AccountMap::Parse("# who is who\n\n alice = asmith  # was ann\r\nbob=bob2\n");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->AccountFor("alice"), "asmith");
  EXPECT_EQ(map->AccountFor("bob"), "bob2");
  EXPECT_EQ(map->AccountFor("carol"), "carol");
  EXPECT_EQ(AccountMap{}.AccountFor("carol"), "carol");
  EXPECT_EQ(AccountMap::Parse("a = b@corp.example\n")->AccountFor("a"), "b@corp.example");
}

TEST(AccountMap, NamesTheLineThatIsWrong) {
  for (const char* bad : {"alice", "alice =", "= bob", "a = b = c", "a b = c", "a = -c", "a = b;c",
                          "a = \"b\"", "a = b\001"}) {
    const auto map = AccountMap::Parse(std::string("ok = ok\n") + bad);
    EXPECT_EQ(map.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(map.status().message()), HasSubstr("line 2:")) << bad;
  }
  EXPECT_THAT(std::string(AccountMap::Parse("a = b\na = c").status().message()),
              HasSubstr("line 2: a has an account already"));
}

}  // namespace
}  // namespace dtrain::auth
