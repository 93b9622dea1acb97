// SPDX-License-Identifier: Apache-2.0
#include "spawner/protocol.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace dtrain::spawner {
namespace {

template <typename T>
std::string Bytes(const T& packet) {
  return std::string(reinterpret_cast<const char*>(&packet), sizeof(packet));
}

SpawnRequest ByAccountOf(const std::string& account) {
  SpawnRequest out;
  out.header.tag = 3;
  Put("job", out.job);
  out.proof = Proof::kAccount;
  Put(account, out.account);
  return out;
}

std::string Check(const std::string& packet, size_t fds) {
  Request request;
  return Parse(packet, fds, &request);
}

// The other side is another program, maybe of another build.
TEST(ProtocolTest, ItsLayoutIsFixed) {
  EXPECT_EQ(sizeof(Header), 8u);
  EXPECT_EQ(sizeof(Name), 76u);
  EXPECT_EQ(sizeof(SpawnRequest), 168u);
  EXPECT_EQ(offsetof(SpawnRequest, attempt), 76u);
  EXPECT_EQ(offsetof(SpawnRequest, memory), 96u);
  EXPECT_EQ(offsetof(SpawnRequest, account), 104u);
  EXPECT_EQ(sizeof(KillRequest), 84u);
  EXPECT_EQ(sizeof(Refused), 464u);
  EXPECT_EQ(sizeof(Spawned), 916u);
  EXPECT_EQ(sizeof(JobEntry), 864u);
  EXPECT_EQ(offsetof(Jobs, entries), 16u);
  EXPECT_EQ(sizeof(Ended), 92u);
  EXPECT_EQ(sizeof(Unkillable), 344u);
  EXPECT_EQ(static_cast<int>(Type::kUnkillable), 97);
}

TEST(ProtocolTest, RequestsAreTaken) {
  Request request;
  EXPECT_EQ(Parse(Bytes(ByAccountOf("alice")), 0, &request), "");
  EXPECT_EQ(request.header.type, Type::kSpawn);
  EXPECT_EQ(request.header.tag, 3u);
  EXPECT_STREQ(request.spawn.account, "alice");
  SpawnRequest connected = ByAccountOf("");
  connected.proof = Proof::kConnection;
  EXPECT_EQ(Check(Bytes(connected), 1), "");
  KillRequest kill;
  Put(std::string(64, 'x'), kill.name.job);
  EXPECT_EQ(Check(Bytes(kill), 0), "");
  EXPECT_EQ(Check(Bytes(Header{kVersion, Type::kAlive, 1}), 0), "");
  EXPECT_EQ(Check(Bytes(Header{kVersion, Type::kList, 1}), 0), "");
}

TEST(ProtocolTest, AnyOtherSizeIsRefused) {
  KillRequest kill;
  Put("job", kill.name.job);
  for (const std::string& packet :
       {Bytes(ByAccountOf("alice")), Bytes(kill), Bytes(Header{kVersion, Type::kList, 1})}) {
    ASSERT_EQ(Check(packet, 0), "");
    for (size_t size = 0; size < packet.size(); ++size)
      EXPECT_NE(Check(packet.substr(0, size), 0), "") << size;
    EXPECT_EQ(Check(packet + '\0', 0), "wrong size");
  }
  EXPECT_EQ(Check("1234567", 0), "shorter than a header");
}

TEST(ProtocolTest, BadRequestsAreRefused) {
  const auto spawn = [](auto change, size_t fds = 0) {
    SpawnRequest request = ByAccountOf("alice");
    change(request);
    return Check(Bytes(request), fds);
  };
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.header.version = 2; }), "unknown version");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.header.type = Type::kNonce; }), "unknown type");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.header.type = Type::kSpawned; }), "unknown type");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.job[0] = '\0'; }), "the job's name is not plain");
  EXPECT_EQ(spawn([](SpawnRequest& r) { Put("..", r.job); }), "the job's name is not plain");
  EXPECT_EQ(spawn([](SpawnRequest& r) { Put("a/b", r.job); }), "the job's name is not plain");
  EXPECT_EQ(spawn([](SpawnRequest& r) { Put("a.0", r.job); }), "the job's name is not plain");
  EXPECT_EQ(spawn([](SpawnRequest& r) { Put(std::string(65, 'x'), r.job); }),
            "the job's name is not plain");
  EXPECT_EQ(spawn([](SpawnRequest& r) { memset(r.job, 'x', sizeof(r.job)); }),
            "the job's name is not plain");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.job[67] = 'x'; }), "the job's name is not plain");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.lease_ms = kLongestTime + 1; }),
            "lease or grace is too long");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.grace_ms = kLongestTime + 1; }),
            "lease or grace is too long");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.memory = 1; }), "limits are not supported");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.none = 1; }), "limits are not supported");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.proof = static_cast<Proof>(3); }), "unknown proof");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.proof = static_cast<Proof>(0); }), "unknown proof");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.account[63] = 'x'; }),
            "the account's name is not padded");
  for (const char* account : {"", ".a", "-a", "a b", "a/b", "a\n", "\xff", "a:b"}) {
    EXPECT_EQ(spawn([&](SpawnRequest& r) { Put(account, r.account); }),
              "the account's name is not plain");
  }
  EXPECT_EQ(spawn([](SpawnRequest&) {}, 1), "an account comes without descriptors");
  EXPECT_EQ(spawn([](SpawnRequest& r) { r.proof = Proof::kConnection; }, 1),
            "a connection comes without an account");
  for (const size_t fds : {0, 2}) {
    EXPECT_EQ(spawn(
                  [](SpawnRequest& r) {
                    r = ByAccountOf("");
                    r.proof = Proof::kConnection;
                  },
                  fds),
              "a connection is one descriptor");
  }
  EXPECT_EQ(Check(Bytes(Header{kVersion, Type::kAlive, 1}), 1),
            "descriptors that nobody asked for");
  KillRequest kill;
  EXPECT_EQ(Check(Bytes(kill), 0), "the job's name is not plain");
}

TEST(ProtocolTest, TextIsPaddedAndEscaped) {
  char to[8] = "1234567";
  EXPECT_TRUE(Put("ab", to));
  EXPECT_EQ(std::string(to, 8), std::string("ab\0\0\0\0\0\0", 8));
  EXPECT_FALSE(Put("12345678", to));
  EXPECT_STREQ(to, "1234567");
  EXPECT_EQ(Escape("a\n\x1b[\\\xff"), "a\\x0a\\x1b[\\x5c\\xff");
  EXPECT_EQ(Escape(std::string(1000, 'a')).size(), 400u);
  EXPECT_LE(Escape(std::string(1000, '\n')).size(), 403u);
}

}  // namespace
}  // namespace dtrain::spawner
