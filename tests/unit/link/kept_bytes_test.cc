// SPDX-License-Identifier: Apache-2.0
#include "common/link/kept_bytes.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/link/link_core.h"

namespace dtrain::link {
namespace {

TEST(KeptBytesTest, SharedBytesCountOnceAndEachKeeperALittle) {
  KeptBytes kept(10'000);
  const SharedBytes message(std::string(1000, 'x'));
  EXPECT_TRUE(kept.Add(message));
  EXPECT_EQ(kept.bytes(), 1000 + kKeepingOverhead);
  EXPECT_TRUE(kept.Add(message.Sub(10, 20)));  // which holds the rest, too
  EXPECT_EQ(kept.bytes(), 1000 + 2 * kKeepingOverhead);
  kept.Remove(message);
  EXPECT_EQ(kept.bytes(), 1000 + kKeepingOverhead);
  kept.Remove(message.Sub(10, 20));
  EXPECT_EQ(kept.bytes(), 0u);
}

TEST(KeptBytesTest, NothingChangesWhereThereIsNoRoom) {
  KeptBytes kept(1000 + kKeepingOverhead);
  const SharedBytes message(std::string(1000, 'x'));
  EXPECT_TRUE(kept.Add(message));
  EXPECT_FALSE(kept.Add(message));
  EXPECT_FALSE(kept.Add(SharedBytes("y")));
  EXPECT_EQ(kept.bytes(), kept.most());
  kept.Remove(message);
  EXPECT_EQ(kept.bytes(), 0u);
  EXPECT_FALSE(kept.Add(SharedBytes(std::string(1001, 'z'))));
  EXPECT_EQ(kept.bytes(), 0u);
}

// A launcher's: a fence of 32 MiB for each of 1,000 nodes.
TEST(KeptBytesTest, AMessageToAThousandNodesIsKeptOnce) {
  KeptBytes kept(kKeptPerLaunch);
  std::vector<std::unique_ptr<LinkCore>> links;
  for (uint64_t node = 0; node < 1000; ++node) {
    LinkCore::Options options;
    options.epoch = node + 1;
    options.out = kToShepherd;
    options.in = kToLauncher;
    options.budget = &kept;
    links.push_back(std::make_unique<LinkCore>(options));
  }
  auto bytes = std::make_shared<const std::string>(32 << 20, 'f');
  std::weak_ptr<const std::string> watch = bytes;
  SharedBytes fence(bytes, *bytes, bytes->size());
  bytes.reset();
  for (auto& link : links) {
    ASSERT_TRUE(link->Send(fence).ok());
    ASSERT_TRUE(link->Open({}, {1, 0, 0}).ok());
  }
  const size_t all = kept.bytes();
  EXPECT_EQ(all, fence.size() + 1000 * kKeepingOverhead);
  fence = SharedBytes();
  uint64_t pieces = 0;
  for (auto& link : links) {
    while (link->Next({})) ++pieces;
  }
  EXPECT_EQ(kept.bytes(), all);
  EXPECT_EQ(pieces, 1000u * ((4u << 20) / kPieceBytes));  // a window each
  links.resize(1);
  EXPECT_EQ(kept.bytes(), (32 << 20) + kKeepingOverhead);
  EXPECT_FALSE(watch.expired());
  links.clear();
  EXPECT_EQ(kept.bytes(), 0u);
  EXPECT_TRUE(watch.expired());
}

TEST(KeptBytesTest, ALinkThatIsRefusedByTheBudgetIsAsItWas) {
  KeptBytes kept(5000);
  LinkCore::Options options;
  options.epoch = 1;
  options.out = {4000, 1000, 100'000};
  options.in = options.out;
  options.budget = &kept;
  LinkCore greedy(options), modest(options);
  ASSERT_TRUE(greedy.Send(SharedBytes(std::string(4000, 'x'))).ok());
  EXPECT_EQ(modest.room(), 5000 - 4000 - 2 * kKeepingOverhead);
  const SharedBytes message(std::string(2000, 'y'));
  EXPECT_EQ(modest.Send(message).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(modest.state(), LinkCore::State::kIdle);
  EXPECT_EQ(modest.kept_bytes(), 0u);
  // Whoever has most is given up, and what it kept is free.
  ASSERT_TRUE(greedy.Open({}, {2, 0, 0}).ok());
  EXPECT_FALSE(greedy.Open({}, {2, 0, 0}).ok());
  EXPECT_EQ(kept.bytes(), 0u);
  EXPECT_TRUE(modest.Send(message).ok());
  ASSERT_TRUE(modest.Open({}, {2, 0, 0}).ok());
  EXPECT_EQ(modest.Next({})->header.sequence, 1u);
}

}  // namespace
}  // namespace dtrain::link
