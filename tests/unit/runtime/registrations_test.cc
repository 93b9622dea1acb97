// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/registrations.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;

// Of one rank: two registered blocks of 4096 bytes.
struct Sides {
  alignas(64) char a[4096], b[4096], plain[4096];
  Registrations registrations;

  explicit Sides(uint64_t first = 1) {
    registrations.Add({a, sizeof(a), first, nullptr});
    registrations.Add({b, sizeof(b), first + 1, nullptr});
  }
  Registrations::Use UseOf(Kind kind, const void* input, void* output, size_t count, int rank = 0,
                           int root = 0) const {
    Collective what;
    what.kind = kind;
    what.type = DTRAIN_FLOAT32;
    what.input = input;
    what.output = output;
    what.count = count;
    what.root = root;
    return registrations.UseOf(what, rank, 2);
  }
};

TEST(Registrations, AreUsedAlikeWithTheSameBlocksAtTheSameOffsets) {
  Sides one, two, later(7);
  const auto key = one.UseOf(Kind::kAllreduce, one.a, one.b, 100).key;
  EXPECT_NE(key, 0u);
  EXPECT_EQ(two.UseOf(Kind::kAllreduce, two.a, two.b, 100, 1).key, key);
  EXPECT_NE(two.UseOf(Kind::kAllreduce, two.b, two.a, 100).key, key);
  EXPECT_NE(two.UseOf(Kind::kAllreduce, two.a + 4, two.b, 100).key, key);
  EXPECT_NE(two.UseOf(Kind::kAllreduce, two.a, two.b + 4, 100).key, key);
  EXPECT_NE(two.UseOf(Kind::kAllreduce, two.a, two.a, 100).key, key);
  EXPECT_NE(two.UseOf(Kind::kAllreduce, two.a, two.plain, 100).key, key);
  EXPECT_NE(later.UseOf(Kind::kAllreduce, later.a, later.b, 100).key, key);
}

TEST(Registrations, AreNotUsedByPlainBuffersNorByNoElements) {
  Sides one;
  EXPECT_FALSE(one.UseOf(Kind::kAllreduce, one.plain, one.plain, 100).any);
  EXPECT_EQ(one.UseOf(Kind::kAllreduce, one.plain, one.plain, 100).key, 0u);
  EXPECT_FALSE(one.UseOf(Kind::kAllreduce, one.a, one.a, 0).any);
  EXPECT_FALSE(one.UseOf(Kind::kBarrier, one.a, one.a, 1).any);
  EXPECT_TRUE(one.registrations.Take(one.a));
  EXPECT_FALSE(one.registrations.Take(one.a));
  EXPECT_FALSE(one.UseOf(Kind::kAllreduce, one.a, one.a, 100).any);
}

// A rank's own block lies at its number.
TEST(Registrations, AreUsedAlikeInPlaceByEveryRank) {
  Sides one, two;
  const size_t n = 100, block = n * 4;
  const auto gathered = one.UseOf(Kind::kAllgather, one.a, one.a, n, 0).key;
  EXPECT_EQ(two.UseOf(Kind::kAllgather, two.a + block, two.a, n, 1).key, gathered);
  EXPECT_NE(two.UseOf(Kind::kAllgather, two.a, two.a + block, n, 1).key, gathered);
  EXPECT_NE(two.UseOf(Kind::kAllgather, two.a + 3000, two.a, n, 1).key, gathered);
  const auto scattered = one.UseOf(Kind::kReduceScatter, one.a, one.a, n, 0).key;
  EXPECT_EQ(two.UseOf(Kind::kReduceScatter, two.a, two.a + block, n, 1).key, scattered);
  // The input does not count where NCCL has another one in all ranks' stead.
  EXPECT_EQ(one.UseOf(Kind::kAllgather, one.b, one.a, n, 0).key,
            two.UseOf(Kind::kAllgather, two.b + 64, two.a, n, 1).key);
}

TEST(Registrations, OfABroadcastAreTheOutputs) {
  Sides one, two;
  EXPECT_EQ(one.UseOf(Kind::kBroadcast, nullptr, one.a, 100, 0, 1).key,
            two.UseOf(Kind::kBroadcast, nullptr, two.a, 100, 1, 1).key);
  EXPECT_TRUE(one.UseOf(Kind::kBroadcast, nullptr, one.a, 100).any);
}

// The others have no output that could be like the root's.
TEST(Registrations, MayNotBeUsedToReduceForOneRankNorInPart) {
  Sides one;
  EXPECT_FALSE(one.UseOf(Kind::kReduce, one.a, one.plain, 100, 1, 0).allowed);
  EXPECT_FALSE(one.UseOf(Kind::kReduce, one.plain, one.a, 100, 0, 0).allowed);
  EXPECT_TRUE(one.UseOf(Kind::kReduce, one.plain, one.a, 100, 1, 0).allowed) << "no output there";
  EXPECT_FALSE(one.UseOf(Kind::kAllreduce, one.a + 4000, one.plain, 100).allowed);
  EXPECT_TRUE(one.UseOf(Kind::kAllreduce, one.a + 4000, one.plain, 24).allowed);
}

TEST(Registrations, AreUsedAlikeByARankThatHasNothingForTheOthers) {
  Sides one, two;
  const uint64_t counts[4] = {0, 0, 5, 5};
  Collective what;
  what.kind = Kind::kAlltoall;
  what.type = DTRAIN_FLOAT32;
  what.count = 5;
  what.counts = counts;
  what.input = one.a;
  what.output = one.b;
  const auto key = one.registrations.UseOf(what, 0, 2).key;
  EXPECT_NE(key, 0u);
  what.input = two.a + 256;
  what.output = two.b + 64;
  EXPECT_EQ(two.registrations.UseOf(what, 1, 2).key, key);
}

}  // namespace
}  // namespace dtrain::runtime
