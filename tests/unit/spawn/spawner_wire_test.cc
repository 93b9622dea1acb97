// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/spawner_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace dtrain::spawn {
namespace {

using ::testing::HasSubstr;

template <typename T>
std::string Raw(const T& packet) {
  return std::string(reinterpret_cast<const char*>(&packet), sizeof(packet));
}

spawner::Name NameOf(const std::string& job) {
  spawner::Name name;
  spawner::Put(job, name.job);
  name.uid = 1001;
  name.attempt = 2;
  return name;
}

spawner::Spawned AStart() {
  spawner::Spawned packet;
  packet.header.tag = 7;
  packet.name = NameOf("job-1");
  spawner::Put("alice", packet.account);
  spawner::Put("/run/x/link.sock", packet.link);
  spawner::Put("/sys/fs/cgroup/jobs", packet.cgroup);
  return packet;
}

std::string JobsPacket(uint32_t count, uint32_t more) {
  spawner::Jobs packet;
  packet.header.tag = 3;
  packet.count = count;
  packet.more = more;
  for (spawner::JobEntry& entry : packet.entries) {
    entry.name = NameOf("job-1");
    entry.state = spawner::State::kRunning;
    entry.lease_ms = 1000;
    spawner::Put("/run/x/link.sock", entry.link);
    spawner::Put("/sys/fs/cgroup/jobs", entry.cgroup);
  }
  return Raw(packet).substr(0,
                            offsetof(spawner::Jobs, entries) + count * sizeof(spawner::JobEntry));
}

std::string WhyWrong(const std::string& bytes, size_t fds = 0) {
  return std::string(DecodeSpawnerPacket(bytes, fds).status().message());
}

TEST(SpawnerWireTest, TheSpawnerTakesWhatWeEncode) {
  spawner::Request request;
  const auto by_account = EncodeSpawn(9, {"job-1", 4, 15000, 5000, "alice"});
  ASSERT_TRUE(by_account.ok()) << by_account.status();
  EXPECT_EQ(spawner::Parse(*by_account, 0, &request), "");
  EXPECT_EQ(request.header.tag, 9u);
  EXPECT_STREQ(request.spawn.job, "job-1");
  EXPECT_EQ(request.spawn.attempt, 4u);
  EXPECT_EQ(request.spawn.lease_ms, 15000u);
  EXPECT_EQ(request.spawn.grace_ms, 5000u);
  EXPECT_STREQ(request.spawn.account, "alice");
  const auto by_connection = EncodeSpawn(9, {"job-1", 4, 0xffffffff, 0xffffffff, ""});
  EXPECT_EQ(spawner::Parse(*by_connection, 1, &request), "") << "the longest lease is its longest";
  EXPECT_EQ(spawner::Parse(EncodeKill(1, {1001, "job-1", 4}), 0, &request), "");
  EXPECT_EQ(request.kill.name.uid, 1001u);
  EXPECT_EQ(spawner::Parse(EncodePlain(spawner::Type::kAlive, 1), 0, &request), "");
  EXPECT_EQ(spawner::Parse(EncodePlain(spawner::Type::kList, 1), 0, &request), "");
}

TEST(SpawnerWireTest, WhatItWouldNotTakeIsNotSent) {
  for (const char* job : {"", "..", "a/b", "a b"}) {
    EXPECT_FALSE(EncodeSpawn(1, {job, 0, 1, 1, "alice"}).ok()) << job;
  }
  EXPECT_FALSE(EncodeSpawn(1, {std::string(65, 'x'), 0, 1, 1, "alice"}).ok());
  for (const std::string& account : {std::string("a b"), std::string(".a"), std::string(64, 'x')}) {
    EXPECT_THAT(std::string(EncodeSpawn(1, {"j", 0, 1, 1, account}).status().message()),
                HasSubstr("the name of the account"));
  }
}

TEST(SpawnerWireTest, AnswersAreRead) {
  auto packet = DecodeSpawnerPacket(Raw(AStart()), 2);
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_EQ(packet->tag, 7u);
  const auto& started = std::get<SpawnerStarted>(packet->word);
  EXPECT_EQ(started.key, (JobKey{1001, "job-1", 2}));
  EXPECT_EQ(started.account, "alice");
  EXPECT_EQ(started.link, "/run/x/link.sock");
  EXPECT_EQ(Describe(started.key), "job job-1.2 of uid 1001");

  spawner::Refused refused;
  refused.stage = spawner::Stage::kPolicy;
  spawner::Put("no\x1b[", refused.words);
  packet = DecodeSpawnerPacket(Raw(refused), 0);
  ASSERT_TRUE(packet.ok());
  EXPECT_EQ(std::get<SpawnerRefused>(packet->word).words, "no\\x1b[");

  spawner::Ended ended;
  ended.name = NameOf("j");
  ended.signal = 9;
  packet = DecodeSpawnerPacket(Raw(ended), 0);
  EXPECT_EQ(std::get<SpawnerEnded>(packet->word).signal, 9);

  spawner::Unkillable stuck;
  stuck.name = NameOf("j");
  stuck.count = 3;
  stuck.pids[0] = 5;
  stuck.pids[2] = 6;
  packet = DecodeSpawnerPacket(Raw(stuck), 0);
  EXPECT_EQ(std::get<SpawnerUnkillable>(packet->word).pids, (std::vector<pid_t>{5, 6}));

  packet = DecodeSpawnerPacket(JobsPacket(16, 1), 0);
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_EQ(std::get<SpawnerJobs>(packet->word).jobs.size(), 16u);
  EXPECT_TRUE(std::get<SpawnerJobs>(packet->word).more);
  EXPECT_TRUE(DecodeSpawnerPacket(JobsPacket(0, 0), 0).ok());
  EXPECT_TRUE(
      DecodeSpawnerPacket(Raw(spawner::Header{spawner::kVersion, spawner::Type::kDone, 1}), 0)
          .ok());
}

TEST(SpawnerWireTest, WhatIsNotExactlyRightIsWrong) {
  for (const std::string& bytes : {Raw(AStart()), JobsPacket(2, 0), Raw(spawner::Refused())}) {
    const size_t fds = bytes == Raw(AStart()) ? 2 : 0;
    ASSERT_TRUE(DecodeSpawnerPacket(bytes, fds).ok());
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_NE(WhyWrong(bytes.substr(0, size), fds), "") << size;
    }
    EXPECT_NE(WhyWrong(bytes + '\0', fds), "");
    EXPECT_NE(WhyWrong(bytes, fds + 1), "");
  }
  EXPECT_THAT(WhyWrong(Raw(AStart()), 0), HasSubstr("descriptors"));
  spawner::Spawned start = AStart();
  start.header.version = 2;
  EXPECT_THAT(WhyWrong(Raw(start), 2), HasSubstr("the same release"));
  start = AStart();
  std::memset(start.link, '/', sizeof(start.link));
  EXPECT_NE(WhyWrong(Raw(start), 2), "") << "no end";
  start = AStart();
  spawner::Put("x", start.cgroup);
  EXPECT_NE(WhyWrong(Raw(start), 2), "") << "not a path";
  start = AStart();
  spawner::Put("../x", start.name.job);
  EXPECT_NE(WhyWrong(Raw(start), 2), "") << "not a name";
  spawner::Unkillable stuck;
  stuck.name = NameOf("j");
  stuck.count = spawner::kMostPids + 1;
  EXPECT_NE(WhyWrong(Raw(stuck)), "");
  stuck.count = 1;
  stuck.header.tag = 4;
  EXPECT_THAT(WhyWrong(Raw(stuck)), HasSubstr("an event that answers"));
  EXPECT_THAT(WhyWrong(Raw(spawner::Header{spawner::kVersion, spawner::Type::kSpawn, 1})),
              HasSubstr("unknown type 1"));
}

TEST(SpawnerWireTest, NoBytesAreReadBeyondTheirEnd) {
  std::mt19937 random(1);
  const std::string seeds[] = {Raw(AStart()), JobsPacket(3, 0), Raw(spawner::Ended()),
                               Raw(spawner::Unkillable())};
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = seeds[random() % 4];
    for (int j = 0; j < 4; ++j) bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(random() % (bytes.size() + 1));
    (void)DecodeSpawnerPacket(std::string(bytes), random() % 3);
  }
}

}  // namespace
}  // namespace dtrain::spawn
