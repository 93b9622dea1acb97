// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/horovod_store.h"

#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace dtrain::stores {
namespace {

// Ranks 0 and 1 on a, 2 on b: the cross contexts have two ranks and one.
v1::Meeting ThreeRanks() {
  v1::Meeting meeting;
  for (const auto& [host, ranks] : {std::pair("a", 2u), std::pair("b", 1u)}) {
    v1::MeetingNode& node = *meeting.add_nodes();
    node.set_host(host);
    node.set_ranks(ranks);
  }
  return meeting;
}

class HorovodStoreTest : public testing::Test {
 protected:
  int Put(const std::string& target, std::string value) {
    return store_.Handle("PUT", target, std::move(value)).status;
  }
  // "404", or "200 value".
  std::string Get(const std::string& target) {
    const HorovodStore::Reply reply = store_.Handle("GET", target, "");
    return reply.status == 200 ? "200 " + reply.body : std::to_string(reply.status);
  }
  int Delete(const std::string& target) { return store_.Handle("DELETE", target, "").status; }
  HorovodStore store_{ThreeRanks()};
};

TEST_F(HorovodStoreTest, WhatWasPutIsThereAndWhatWasNotIsMissing) {
  EXPECT_EQ(Get("/global/0"), "404");
  EXPECT_EQ(Put("/global/0", std::string("a\0b", 3)), 200);
  EXPECT_EQ(Get("/global/0"), std::string("200 a\0b", 7));
  EXPECT_EQ(Get("/global/1"), "404");
  EXPECT_EQ(Get("/local_a/0"), "404");
  EXPECT_EQ(Put("/global/0", "anew"), 200);
  EXPECT_EQ(Get("/global/0"), "200 anew");
  EXPECT_EQ(Put("/global/empty", ""), 200);
  EXPECT_EQ(Get("/global/empty"), "200 ");
}

TEST_F(HorovodStoreTest, APathHasAScopeAndAKey) {
  for (const char* target : {"/", "/global", "/global/", "//0", "global/0", "/global/0/1", ""}) {
    EXPECT_EQ(Get(target), "400") << target;
    EXPECT_EQ(Put(target, "x"), 400) << target;
    EXPECT_EQ(Delete(target), 400) << target;
  }
  EXPECT_EQ(Get("/global/" + std::string(5000, 'k')), "400");
  EXPECT_EQ(store_.Handle("POST", "/global/0", "").status, 501);
  EXPECT_EQ(store_.bytes(), 0u);
}

TEST_F(HorovodStoreTest, AScopeOfThePlanGoesWithTheLastOfItsRanks) {
  for (const char* target : {"/global/0", "/global/1", "/global/2"}) Put(target, "x");
  EXPECT_EQ(Delete("/global/0"), 200);
  EXPECT_EQ(Delete("/global/0"), 200);  // the same rank again
  EXPECT_EQ(Delete("/global/2"), 200);
  EXPECT_EQ(Get("/global/0"), "200 x");  // the slow one may still want it
  EXPECT_EQ(Delete("/global/1"), 200);
  EXPECT_EQ(Get("/global/0"), "404");
  EXPECT_EQ(store_.bytes(), 0u);
  // They meet there again.
  Put("/global/0", "y");
  EXPECT_EQ(Delete("/global/1"), 200);
  EXPECT_EQ(Get("/global/0"), "200 y");
}

TEST_F(HorovodStoreTest, EachContextHasItsOwnSize) {
  for (const char* target : {"/local_a/0", "/local_b/0", "/cross_0/0", "/cross_1/0"})
    Put(target, "x");
  Delete("/local_b/0");
  EXPECT_EQ(Get("/local_b/0"), "404");
  Delete("/cross_1/0");
  EXPECT_EQ(Get("/cross_1/0"), "404");
  Delete("/local_a/0");
  EXPECT_EQ(Get("/local_a/0"), "200 x");
  Delete("/local_a/1");
  EXPECT_EQ(Get("/local_a/0"), "404");
  Delete("/cross_0/1");
  EXPECT_EQ(Get("/cross_0/0"), "200 x");
  Delete("/cross_0/0");
  EXPECT_EQ(Get("/cross_0/0"), "404");
}

// One context's end must not end another's, as it does upstream.
TEST_F(HorovodStoreTest, TheEndOfOneScopeIsNotTheEndOfAnother) {
  Put("/global/0", "x");
  Put("/cross_1/0", "x");
  Delete("/global/0");
  Delete("/global/1");
  Delete("/cross_1/0");
  EXPECT_EQ(Get("/global/0"), "200 x");
  Delete("/global/2");
  EXPECT_EQ(Get("/global/0"), "404");
}

TEST_F(HorovodStoreTest, InOtherScopesADeleteRemovesItsKey) {
  Put("/global_process_set_hash_1f/0", "x");
  Put("/global_process_set_hash_1f/1", "y");
  EXPECT_EQ(Delete("/global_process_set_hash_1f/0"), 200);
  EXPECT_EQ(Get("/global_process_set_hash_1f/0"), "404");
  EXPECT_EQ(Get("/global_process_set_hash_1f/1"), "200 y");
  EXPECT_EQ(Delete("/global_process_set_hash_1f/1"), 200);
  EXPECT_EQ(Delete("/global_process_set_hash_1f/1"), 200);
  EXPECT_EQ(Delete("/never/1"), 200);
  EXPECT_EQ(store_.bytes(), 0u);
}

TEST_F(HorovodStoreTest, ItsMemoryIsBounded) {
  const std::string value(1 << 20, 'v');
  int status = 200;
  int put = 0;
  while (status == 200 && put < 1000) status = Put("/s/" + std::to_string(put++), value);
  EXPECT_EQ(status, 507);
  EXPECT_LT(put, 300);
  EXPECT_LE(store_.bytes(), store_.most_bytes());
  EXPECT_EQ(Get("/s/0"), "200 " + value);
  Delete("/s/1");
  EXPECT_EQ(Put("/s/0", "less"), 200);
}

TEST_F(HorovodStoreTest, ManySmallValuesAreBoundedToo) {
  int status = 200;
  size_t put = 0;
  while (status == 200 && put < 3'000'000) status = Put("/s/" + std::to_string(put++), "");
  EXPECT_EQ(status, 507);
}

// Each of Gloo's ranks puts an address of 136 bytes for each of the others; all stay until the last
// rank has met them.
TEST(HorovodStoreLimitsTest, TheyGrowWithTheJob) {
  constexpr uint32_t kRanks = 4096;
  constexpr size_t kValue = size_t{136} * (kRanks - 1);
  v1::Meeting meeting;
  for (const char* host : {"a", "b"}) {
    v1::MeetingNode& node = *meeting.add_nodes();
    node.set_host(host);
    node.set_ranks(kRanks / 2);
  }
  const HorovodStore large(meeting);
  EXPECT_GE(large.most_value(), kValue);
  EXPECT_GE(large.most_bytes(), kRanks * (kValue + 256));
  const HorovodStore small(ThreeRanks());
  EXPECT_LT(small.most_value(), size_t{260} << 10);
  EXPECT_LT(small.most_bytes(), size_t{257} << 20);
}

}  // namespace
}  // namespace dtrain::stores
