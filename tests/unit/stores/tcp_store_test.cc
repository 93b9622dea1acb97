// SPDX-License-Identifier: Apache-2.0
// What PyTorch's store answers, byte for byte, in the two numberings of its operations.
#include "agent/stores/tcp_store.h"

#include "tests/unit/stores/tcp_clients.h"

namespace dtrain::stores {
namespace {

using testing::HasSubstr;

class TcpStoreTest : public TcpClients {};
INSTANTIATE_TEST_SUITE_P(Dialects, TcpStoreTest,
                         testing::Values(TcpDialect::kClassic, TcpDialect::kValidated),
                         DialectName);

TEST_P(TcpStoreTest, SetSaysNothingAndGetAnswersWhatIsThere) {
  const std::string value("a\0b", 3);
  EXPECT_EQ(Ask(1, Number(kSet) + Str("/k") + Str(value)), "");
  EXPECT_EQ(Ask(2, Number(kGet) + Str("/k")), Str(value));
  EXPECT_EQ(Ask(2, Number(kSet) + Str("/k") + Str("")), "");
  EXPECT_EQ(Ask(1, Number(kGet) + Str("/k")), Str(""));
  EXPECT_EQ(Ask(1, Number(kGet) + Str("/missing")), Str(""));
}

TEST_P(TcpStoreTest, AddCountsInDecimalText) {
  EXPECT_EQ(Ask(1, Number(kAdd) + Str("init/") + B64(1)), B64(1));
  EXPECT_EQ(Ask(2, Number(kAdd) + Str("init/") + B64(41)), B64(42));
  EXPECT_EQ(Ask(2, Number(kGet) + Str("init/")), Str("42"));
  EXPECT_EQ(Ask(2, Number(kAdd) + Str("init/") + Bytes<int64_t>(-50)), Bytes<int64_t>(-8));
  EXPECT_EQ(Ask(2, Number(kGet) + Str("init/")), Str("-8"));
  Ask(1, Number(kSet) + Str("/text") + Str(" 7 apples"));
  EXPECT_EQ(Ask(1, Number(kAdd) + Str("/text") + B64(1)), B64(8));
}

TEST_P(TcpStoreTest, AddToWhatIsNoNumberClosesTheConnectionAndChangesNothing) {
  for (const std::string value : {"apples", "", "9223372036854775807", "99999999999999999999"}) {
    Ask(1, Number(kSet) + Str("/k") + Str(value));
    const size_t before = store_.bytes();
    EXPECT_THAT(Say(1, Number(kAdd) + Str("/k") + B64(1)).message(), HasSubstr("ADD of 1"))
        << value;
    EXPECT_EQ(Ask(1, Number(kGet) + Str("/k")), Str(value));
    EXPECT_EQ(store_.bytes(), before);
  }
}

TEST_P(TcpStoreTest, CompareSetAnswersWhatIsThereThenAndLiesAboutAKeyThatIsMissing) {
  const auto compare = [this](const std::string& expected, const std::string& desired) {
    return Ask(1, Number(kCompareSet) + Str("/k") + Str(expected) + Str(desired));
  };
  EXPECT_EQ(compare("old", "new"), Str("old"));  // PyTorch's own oddity
  EXPECT_EQ(Ask(1, Number(kCheck) + Keys({"/k"})), Byte(1));
  EXPECT_EQ(compare("", "first"), Str("first"));
  EXPECT_EQ(compare("other", "second"), Str("first"));
  EXPECT_EQ(compare("first", "second"), Str("second"));
  EXPECT_EQ(Ask(1, Number(kGet) + Str("/k")), Str("second"));
}

TEST_P(TcpStoreTest, CheckIsReadyWhenAllKeysAreThere) {
  Ask(1, Number(kSet) + Str("/a") + Str("1"));
  EXPECT_EQ(Ask(1, Number(kCheck) + Keys({"/a", "/b"})), Byte(1));
  EXPECT_EQ(Ask(1, Number(kCheck) + Keys({"/a", "/a"})), Byte(0));
  EXPECT_EQ(Ask(1, Number(kCheck) + Keys({})), Byte(0));
}

TEST_P(TcpStoreTest, WaitIsAnsweredOnceAllKeysAreThere) {
  EXPECT_EQ(Ask(1, Number(kWait) + Keys({"/a", "/b", "/c", "/d", "/a"})), "");
  EXPECT_EQ(Ask(2, Number(kSet) + Str("/a") + Str("1")), "");
  EXPECT_EQ(Ask(2, Number(kAdd) + Str("/b") + B64(1)), B64(1));
  Ask(2, Number(kCompareSet) + Str("/c") + Str("") + Str("x"));
  EXPECT_EQ(Heard(1), "");
  EXPECT_EQ(Ask(2, Number(kAppend) + Str("/d") + Str("x")), "");
  EXPECT_EQ(Heard(1), Byte(0));
  EXPECT_EQ(Ask(1, Number(kWait) + Keys({"/a", "/b"})), Byte(0));
  Ask(2, Number(kSet) + Str("/d") + Str("again"));
  EXPECT_EQ(Heard(1), "");
  EXPECT_EQ(store_.waiting(), 0u);
}

TEST_P(TcpStoreTest, AllWhoWaitForAKeyAreWoken) {
  for (const uint64_t client : {1, 2, 3}) Ask(client, Number(kWait) + Keys({"/k"}));
  EXPECT_EQ(store_.waiting(), 3u);
  Ask(9, Number(kSet) + Str("/k") + Str(""));
  for (const uint64_t client : {1, 2, 3}) EXPECT_EQ(Heard(client), Byte(0));
}

TEST_P(TcpStoreTest, AConnectionWaitsForOneThingAtATime) {
  Ask(1, Number(kWait) + Keys({"/a"}));
  Ask(1, Number(kWait) + Keys({"/b"}));
  Ask(2, Number(kSet) + Str("/a") + Str(""));
  EXPECT_EQ(Heard(1), "");
  Ask(2, Number(kSet) + Str("/b") + Str(""));
  EXPECT_EQ(Heard(1), Byte(0));
}

TEST_P(TcpStoreTest, WhoLeavesOrCancelsWaitsNoMore) {
  const size_t empty = store_.bytes();
  Ask(1, Number(kWait) + Keys({"/a", "/b"}));
  Ask(2, Number(kWait) + Keys({"/a"}));
  EXPECT_GT(store_.bytes(), empty);
  Leave(1);
  EXPECT_EQ(Ask(2, Number(kCancelWait)), Byte(1));
  EXPECT_EQ(store_.bytes(), empty);
  EXPECT_EQ(Ask(2, Number(kCancelWait)), Byte(1));  // nothing to cancel
  Ask(3, Number(kSet) + Str("/a") + Str(""));
  EXPECT_EQ(Heard(1) + Heard(2), "");
}

TEST_P(TcpStoreTest, KeysAreCountedAndDeleted) {
  EXPECT_EQ(Ask(1, Number(kNumKeys)), B64(0));
  Ask(1, Number(kSet) + Str("/a") + Str("1"));
  Ask(1, Number(kAdd) + Str("init/") + B64(1));
  EXPECT_EQ(Ask(1, Number(kNumKeys)), B64(2));
  EXPECT_EQ(Ask(1, Number(kDelete) + Str("/a")), B64(1));
  EXPECT_EQ(Ask(1, Number(kDelete) + Str("/a")), B64(0));
  EXPECT_EQ(Ask(1, Number(kNumKeys)), B64(1));
  EXPECT_EQ(Ask(1, Number(kDelete) + Str("init/")), B64(1));
  EXPECT_EQ(store_.bytes(), 0u);
}

TEST_P(TcpStoreTest, ValuesAreAppendedTo) {
  Ask(1, Number(kAppend) + Str("/k") + Str("ab"));
  Ask(2, Number(kAppend) + Str("/k") + Str("cd"));
  EXPECT_EQ(Ask(2, Number(kGet) + Str("/k")), Str("abcd"));
}

TEST_P(TcpStoreTest, SeveralKeysAtOnce) {
  Ask(2, Number(kWait) + Keys({"/a", "/b"}));
  EXPECT_EQ(Ask(1, Number(kMultiSet) + B64(2) + Str("/a") + Str("1") + Str("/b") + Str("22")), "");
  EXPECT_EQ(Heard(2), Byte(0));
  EXPECT_EQ(Ask(1, Number(kMultiGet) + Keys({"/b", "/a", "/none"})),
            Str("22") + Str("1") + Str(""));
  EXPECT_EQ(Ask(1, Number(kMultiGet) + Keys({})), "");
  EXPECT_EQ(Ask(1, Number(kMultiSet) + B64(0)), "");
}

TEST_P(TcpStoreTest, WhatAllRanksMayPutHasAnEnd) {
  store_ = TcpStore({.bytes = 10'000, .reply = 5'000});
  const std::string large(2'000, 'x');
  absl::Status put;
  int puts = 0;
  for (; puts < 10 && put.ok(); ++puts) {
    put = Say(1, Number(kSet) + Str("/" + std::to_string(puts)) + Str(large));
  }
  EXPECT_EQ(put.message(), "it wants to put more than the 10000 bytes that all ranks may");
  EXPECT_EQ(puts, 5);
  EXPECT_EQ(store_.keys(), 4u);
  EXPECT_LE(store_.bytes(), 10'000u);
  EXPECT_EQ(Ask(2, Number(kMultiGet) + Keys({"/1", "/2"})), Str(large) + Str(large));
  EXPECT_EQ(Say(2, Number(kMultiGet) + Keys({"/1", "/2", "/3"})).message(),
            "it sent MULTI_GET of values of 6024 bytes; the limit is 5000");
  EXPECT_FALSE(Say(3, Number(kAppend) + Str("/1") + Str(large)).ok());
  EXPECT_FALSE(Say(3, Number(kCompareSet) + Str("/new") + Str("") + Str(large)).ok());
  EXPECT_EQ(Ask(4, Number(kSet) + Str("/1") + Str("small again")), "");
  EXPECT_EQ(Ask(4, Number(kGet) + Str("/1")), Str("small again"));
}

TEST(TcpLimitsTest, SeveralGroupsOfAllRanksFitIfTheNodeHasTheMemory) {
  constexpr size_t kRanks = 1024, kGiB = size_t{1} << 30;
  constexpr size_t kGroup = kRanks * (kRanks - 1) * 136;  // addresses that Gloo puts
  EXPECT_GT(LimitsFor(kRanks, 64 * kGiB).bytes, 8 * kGroup);
  EXPECT_EQ(LimitsFor(kRanks, 4 * kGiB).bytes, kGiB);
  EXPECT_EQ(LimitsFor(kRanks, kGiB).bytes, TcpLimits().bytes);
  EXPECT_LT(LimitsFor(8, 64 * kGiB).bytes, TcpLimits().bytes + (1 << 20));
}

// Those who wait for the first hear of it even where the second does not fit.
TEST_P(TcpStoreTest, AValueThatDoesNotFitDoesNotTakeBackTheOnesBefore) {
  store_ = TcpStore({.bytes = 1'000});
  Ask(2, Number(kWait) + Keys({"/a"}));
  EXPECT_FALSE(Say(1, Number(kMultiSet) + B64(2) + Str("/a") + Str("") + Str("/b") +
                          Str(std::string(1'000, 'x')))
                   .ok());
  EXPECT_EQ(Heard(2), Byte(0));
}

TEST_P(TcpStoreTest, AppendedValuesHaveTheLimitOfOthers) {
  Ask(1, Number(kSet) + Str("/k") + Str(std::string(kMostTcpValue - 1, 'x')));
  EXPECT_EQ(Ask(1, Number(kAppend) + Str("/k") + Str("y")), "");
  EXPECT_THAT(Say(1, Number(kAppend) + Str("/k") + Str("z")).message(),
              HasSubstr("more than the 33554432 bytes allowed"));
}

TEST_P(TcpStoreTest, KeysHaveANumberThatTheyMayReach) {
  store_ = TcpStore({.keys = 2});
  Ask(1, Number(kSet) + Str("/a") + Str(""));
  Ask(1, Number(kAdd) + Str("/b") + B64(1));
  EXPECT_EQ(Say(1, Number(kSet) + Str("/c") + Str("")).message(),
            "it wants to put one key more than the 2 that may be there");
  EXPECT_EQ(Ask(2, Number(kSet) + Str("/a") + Str("again")), "");
}

TEST_P(TcpStoreTest, WhoWaitsTakesRoomToo) {
  store_ = TcpStore({.bytes = 10'000});
  std::vector<std::string> keys;
  for (int i = 0; i < 10; ++i) keys.push_back("/" + std::to_string(i));
  absl::Status said;
  for (uint64_t client = 1; said.ok() && client < 20; ++client) {
    said = Say(client, Number(kWait) + Keys(keys));
  }
  EXPECT_FALSE(said.ok());
  EXPECT_LE(store_.bytes(), 10'000u);
  for (uint64_t client = 1; client < 20; ++client) Leave(client);
  EXPECT_EQ(store_.bytes(), 0u);
}

class TcpStoreClassicTest : public TcpClients {};
INSTANTIATE_TEST_SUITE_P(Dialects, TcpStoreClassicTest, testing::Values(TcpDialect::kClassic),
                         DialectName);

TEST_P(TcpStoreClassicTest, WhoWatchesAKeyHearsOfEachChange) {
  EXPECT_EQ(Ask(1, Number(kWatch) + Str("/k")), Byte(3));
  EXPECT_EQ(Ask(1, Number(kWatch) + Str("/k")), Byte(3));
  Ask(2, Number(kSet) + Str("/k") + Str("1"));
  EXPECT_EQ(Heard(1), Byte(1) + Str("/k") + Str("") + Str("1"));
  Ask(2, Number(kAdd) + Str("/k") + B64(1));
  EXPECT_EQ(Heard(1), Byte(0) + Str("/k") + Str("1") + Str("2"));
  Ask(2, Number(kAppend) + Str("/k") + Str("0"));
  EXPECT_EQ(Heard(1), Byte(4) + Str("/k") + Str("") + Str("0"));
  Ask(2, Number(kDelete) + Str("/k"));
  EXPECT_EQ(Heard(1), Byte(2) + Str("/k") + Str("20") + Str(""));
  Leave(1);
  EXPECT_EQ(store_.bytes(), 0u);
  Ask(2, Number(kSet) + Str("/k") + Str("1"));
  EXPECT_EQ(Heard(1), "");
}

class TcpStoreValidatedTest : public TcpClients {};
INSTANTIATE_TEST_SUITE_P(Dialects, TcpStoreValidatedTest, testing::Values(TcpDialect::kValidated),
                         DialectName);

TEST_P(TcpStoreValidatedTest, PingAnswersItsNumber) {
  EXPECT_EQ(Ask(1, Number(kPing) + Bytes<uint32_t>(0xFEDCBA98)), Bytes<uint32_t>(0xFEDCBA98));
}

TEST_P(TcpStoreValidatedTest, QueuesGiveTheirFirstAndSayHowManyThereWere) {
  EXPECT_EQ(Ask(1, Number(kQueueLen) + Str("/q")), B64(0));
  EXPECT_EQ(Ask(1, Number(kQueuePop) + Str("/q")), B64(0));
  EXPECT_EQ(Ask(1, Number(kQueuePush) + Str("/q") + Str("one")), "");
  EXPECT_EQ(Ask(1, Number(kQueuePush) + Str("/q") + Str("two")), "");
  EXPECT_EQ(Ask(1, Number(kQueueLen) + Str("/q")), B64(2));
  EXPECT_EQ(Ask(1, Number(kCheck) + Keys({"/q"})), Byte(0));
  EXPECT_EQ(Ask(2, Number(kQueuePop) + Str("/q")), B64(2) + Str("one"));
  EXPECT_EQ(Ask(2, Number(kQueuePop) + Str("/q")), B64(1) + Str("two"));
  EXPECT_EQ(Ask(2, Number(kCheck) + Keys({"/q"})), Byte(1));
  EXPECT_EQ(store_.bytes(), 0u);
}

TEST_P(TcpStoreValidatedTest, EachPushWakesOneWhoWaitsInTheOrderInWhichTheyCame) {
  for (const uint64_t client : {3, 2, 1}) Ask(client, Number(kWait) + Keys({"/q"}));
  Ask(9, Number(kQueuePush) + Str("/q") + Str("one"));
  EXPECT_EQ(Heard(3), Byte(0));
  EXPECT_EQ(Heard(2) + Heard(1), "");
  Ask(9, Number(kQueuePush) + Str("/q") + Str("two"));
  EXPECT_EQ(Heard(2), Byte(0));
  EXPECT_EQ(Ask(3, Number(kQueuePop) + Str("/q")), B64(2) + Str("one"));
  EXPECT_EQ(Ask(2, Number(kQueuePop) + Str("/q")), B64(1) + Str("two"));
  Leave(1);
  EXPECT_EQ(store_.bytes(), 0u);
}

TEST_P(TcpStoreValidatedTest, KeysAreListed) {
  EXPECT_EQ(Ask(1, Number(kListKeys)), B64(0));
  Ask(1, Number(kSet) + Str("/b") + Str(""));
  Ask(1, Number(kSet) + Str("/a") + Str(""));
  EXPECT_EQ(Ask(1, Number(kListKeys)), B64(2) + Str("/a") + Str("/b"));
}

TEST_P(TcpStoreValidatedTest, ABarrierLetsAllGoWhenTheLastHasCome) {
  EXPECT_EQ(Ask(1, Number(kBarrier) + Str("/b") + B64(3)), "");
  EXPECT_EQ(Ask(2, Number(kBarrier) + Str("/b") + B64(3)), "");
  EXPECT_EQ(Ask(4, Number(kGet) + Str("/b")), Str("2"));
  EXPECT_EQ(Heard(1), "");
  EXPECT_EQ(Ask(3, Number(kBarrier) + Str("/b") + B64(3)), Byte(0));
  EXPECT_EQ(Heard(1), Byte(0));
  EXPECT_EQ(Heard(2), Byte(0));
  EXPECT_EQ(Ask(3, Number(kBarrier) + Str("/b") + B64(3)), Byte(0));  // it is over
  Ask(1, Number(kSet) + Str("/b") + Str("x"));
  EXPECT_THAT(Say(1, Number(kBarrier) + Str("/b") + B64(3)).message(),
              HasSubstr("BARRIER on a value that is not a number"));
}

TEST_P(TcpStoreValidatedTest, WhatIsListedOrQueuedHasAnEnd) {
  store_ = TcpStore({.bytes = 2'000, .reply = 30});
  for (const char* key : {"/a", "/b", "/c"}) Ask(1, Number(kSet) + Str(key) + Str(""));
  EXPECT_EQ(Say(1, Number(kListKeys)).message(),
            "it sent LIST_KEYS for keys of 38 bytes; the limit is 30");
  absl::Status pushed;
  for (int i = 0; pushed.ok() && i < 20; ++i)
    pushed = Say(2, Number(kQueuePush) + Str("/q") + Str(""));
  EXPECT_FALSE(pushed.ok());
  EXPECT_LE(store_.bytes(), 2'000u);
}

}  // namespace
}  // namespace dtrain::stores
