// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/elastic_store.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::stores {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// What Python 3.11 makes of ({"lo": [("127.0.0.1", 80)]}, bytes(range(32))).
constexpr char kGoodAddress[] =
    "gAWVQQAAAAAAAAB9lIwCbG+UXZSMCTEyNy4wLjAuMZRLUIaUYXNDIAABAgMEBQYHCAkKCwwNDg8QERIT"
    "FBUWFxgZGhscHR4flIaULg==";

// The door of a host "a" with two slots. What comes of an event is text: replies as "TICKET STATUS
// BODY", what goes up as "ROUND what it says".
class ElasticStoreTest : public testing::Test {
 protected:
  using Texts = std::vector<std::string>;

  Texts Ask(ElasticStore::Ticket ticket, absl::string_view verb, absl::string_view target,
            std::string body = "") {
    return Take(store_.OnRequest(ticket, verb, target, std::move(body)));
  }
  Texts Gone(ElasticStore::Ticket ticket) { return Take(store_.OnGone(ticket)); }
  Texts Tell(uint64_t round, v1::ElasticDown down) {
    down.set_round(round);
    return Take(store_.OnDown(down));
  }
  // Ranks `first` and the next one of `size`.
  Texts Open(uint64_t round, uint32_t first = 0, uint32_t size = 4, int seats = 2) {
    v1::ElasticDown down;
    down.mutable_open();
    for (uint32_t i = 0; i < static_cast<uint32_t>(seats); ++i) {
      v1::Seat& seat = *down.mutable_open()->add_seats();
      seat.set_rank(first + i);
      seat.set_size(size);
      seat.set_local_rank(i);
      seat.set_local_size(2);
      seat.set_cross_rank(7);
      seat.set_cross_size(9);
    }
    return Tell(round, down);
  }
  Texts PutElsewhere(uint64_t round, const std::string& scope, const std::string& key,
                     const std::string& value) {
    v1::ElasticDown down;
    down.mutable_put()->set_scope(scope);
    down.mutable_put()->set_key(key);
    down.mutable_put()->set_value(value);
    return Tell(round, down);
  }
  Texts RemoveElsewhere(uint64_t round, const std::string& scope, const std::string& key,
                        uint64_t id) {
    v1::ElasticDown down;
    down.mutable_removed()->set_scope(scope);
    down.mutable_removed()->set_key(key);
    down.mutable_removed()->set_id(id);
    return Tell(round, down);
  }
  Texts AppliedEverywhere(uint64_t round, uint64_t id) {
    v1::ElasticDown down;
    down.set_applied_everywhere(id);
    return Tell(round, down);
  }
  Texts Notify(uint64_t round, uint32_t local_rank, uint32_t timestamp) {
    v1::ElasticDown down;
    down.mutable_notice()->set_local_rank(local_rank);
    down.mutable_notice()->set_timestamp(timestamp);
    down.mutable_notice()->set_change(2);
    return Tell(round, down);
  }

  static Texts Take(const ElasticStore::Out& out) {
    Texts texts;
    for (const auto& [ticket, reply] : out.replies) {
      texts.push_back(
          absl::StrCat(ticket, " ", reply.status, reply.body.empty() ? "" : " ", reply.body));
    }
    for (const v1::ElasticUp& up : out.up) texts.push_back(TextOf(up));
    for (const v1::ElasticNotice& notice : out.to_worker) {
      texts.push_back(absl::StrCat("notice ", notice.timestamp(), " to ", notice.local_rank()));
    }
    return texts;
  }
  static std::string TextOf(const v1::ElasticUp& up) {
    const std::string round = absl::StrCat("up ", up.round(), " ");
    switch (up.kind_case()) {
      case v1::ElasticUp::kWaiting:
        return absl::StrCat(round, "waiting ", up.waiting());
      case v1::ElasticUp::kAsked:
        return absl::StrCat(round, "asked ", up.asked());
      case v1::ElasticUp::kRegistered:
        return absl::StrCat(round, "registered ", up.registered().local_rank(),
                            up.registered().not_understood().empty() ? "" : ": ",
                            up.registered().not_understood());
      case v1::ElasticUp::kPut:
        return absl::StrCat(round, "put ", up.put().scope(), " ", up.put().key(), " ",
                            up.put().value());
      case v1::ElasticUp::kRemoved:
        return absl::StrCat(round, "removed ", up.removed().scope(), " ", up.removed().key(), " #",
                            up.removed().id());
      case v1::ElasticUp::kApplied:
        return absl::StrCat(round, "applied #", up.applied());
      case v1::ElasticUp::kNoticed:
        return absl::StrCat(round, "noticed ", up.noticed().timestamp(), " by ",
                            up.noticed().local_rank(), ": ", up.noticed().failed());
      case v1::ElasticUp::KIND_NOT_SET:
        break;
    }
    return "nothing";
  }

  ElasticStore store_{"a", 2};
};

TEST_F(ElasticStoreTest, ShutItHoldsEveryRequestAndTellsHowMany) {
  EXPECT_TRUE(store_.is_shut());
  EXPECT_THAT(Ask(1, "PUT", "/global/rank_0", "a"), ElementsAre("up 0 waiting 1"));
  EXPECT_THAT(Ask(2, "GET", "/global/0"), ElementsAre("up 0 waiting 2"));
  EXPECT_THAT(Ask(3, "DELETE", "/global/0"), ElementsAre("up 0 waiting 3"));
  EXPECT_THAT(Ask(4, "GET", "/rank_and_size/a:0"), ElementsAre("up 0 waiting 4"));
  EXPECT_THAT(Gone(2), ElementsAre("up 0 waiting 3"));
  EXPECT_THAT(Gone(2), IsEmpty());
  EXPECT_EQ(store_.waiting(), 3u);
  EXPECT_THAT(Open(1),
              ElementsAre("1 200", "3 200", "4 200 0,4,0,2,7,9", "up 1 put global rank_0 a"));
  EXPECT_FALSE(store_.is_shut());
  EXPECT_EQ(store_.waiting(), 0u);
  EXPECT_THAT(Gone(1), IsEmpty());
  EXPECT_THAT(Ask(5, "GET", "/global/rank_0"), ElementsAre("5 200 a"));
}

TEST_F(ElasticStoreTest, WhatIsNoRequestOfHorovodIsAnsweredAtOnce) {
  for (int open = 0; open < 2; ++open) {
    for (const char* target : {"/", "/global", "global/0", "//0", "/a/b/c"}) {
      EXPECT_THAT(Ask(1, "GET", target), ElementsAre("1 400")) << target;
    }
    EXPECT_THAT(Ask(1, "POST", "/global/0", "x"), ElementsAre("1 501"));
    Open(1);
  }
}

TEST_F(ElasticStoreTest, OpenItAnswersFromWhatWasPutHereOrElsewhere) {
  Open(1);
  EXPECT_THAT(Ask(1, "GET", "/global/1"), ElementsAre("1 404"));
  EXPECT_THAT(Ask(2, "PUT", "/global/0", "x"), ElementsAre("2 200", "up 1 put global 0 x"));
  EXPECT_THAT(PutElsewhere(1, "global", "1", "y"), IsEmpty());
  EXPECT_THAT(Ask(3, "GET", "/global/1"), ElementsAre("3 200 y"));
  EXPECT_THAT(Ask(4, "GET", "/global/0"), ElementsAre("4 200 x"));
}

// Ranks of other hosts never ask for it.
TEST_F(ElasticStoreTest, WhatOnlyRanksOfThisHostAskForStaysHere) {
  Open(1);
  EXPECT_THAT(Ask(1, "PUT", "/local_a/0", "x"), ElementsAre("1 200"));
  EXPECT_THAT(Ask(2, "PUT", "/local_a_process_set_hash_7/0", "x"), ElementsAre("2 200"));
  EXPECT_THAT(Ask(3, "DELETE", "/local_a_process_set_hash_7/0"), ElementsAre("3 200"));
  EXPECT_THAT(Ask(4, "GET", "/local_a_process_set_hash_7/0"), ElementsAre("4 404"));
  EXPECT_THAT(Ask(5, "GET", "/local_a/0"), ElementsAre("5 200 x"));
  EXPECT_THAT(Ask(6, "PUT", "/local_ab/0", "x"), ElementsAre("6 200", "up 1 put local_ab 0 x"));
}

TEST_F(ElasticStoreTest, APlaceInTheNextRoundIsAskedForOnceAndGivenToAllWhoAsk) {
  Open(1);
  EXPECT_THAT(Ask(1, "GET", "/rank_and_size/a:1"), ElementsAre("up 1 asked 1"));
  EXPECT_THAT(Ask(2, "GET", "/rank_and_size/a:1"), IsEmpty());  // its second try
  EXPECT_THAT(Gone(1), IsEmpty());
  EXPECT_THAT(Ask(3, "GET", "/rank_and_size/a:1"), IsEmpty());
  EXPECT_THAT(Ask(4, "GET", "/rank_and_size/a:0"), ElementsAre("up 1 asked 0"));
  EXPECT_THAT(Open(2, 2, 6),
              ElementsAre("4 200 2,6,0,2,7,9", "2 200 3,6,1,2,7,9", "3 200 3,6,1,2,7,9"));
  EXPECT_THAT(Ask(5, "GET", "/rank_and_size/a:1"), ElementsAre("up 2 asked 1"));
  // Without a seat it has been removed.
  EXPECT_THAT(Open(3, 0, 1, 1), ElementsAre("5 200 -1,-1,-1,-1,-1,-1"));
}

// 404 would make it rank 0 of no ranks.
TEST_F(ElasticStoreTest, AStrangersPlaceIsNone) {
  EXPECT_THAT(Ask(1, "GET", "/rank_and_size/b:0"), ElementsAre("up 0 waiting 1"));
  EXPECT_THAT(Open(1), ElementsAre("1 200 -1,-1,-1,-1,-1,-1"));
  for (const char* slot : {"b:0", "a:2", "a:-1", "a", "a:", ":0", "a:0x", "a:4294967296"}) {
    EXPECT_THAT(Ask(2, "GET", absl::StrCat("/rank_and_size/", slot)),
                ElementsAre("2 200 -1,-1,-1,-1,-1,-1"))
        << slot;
  }
}

TEST_F(ElasticStoreTest, ARoundForgetsTheOneBefore) {
  Open(1);
  Ask(1, "PUT", "/global/0", "x");
  Ask(2, "PUT", "/local_a/0", "x");
  EXPECT_GT(store_.bytes(), 0u);
  EXPECT_THAT(Open(2), IsEmpty());
  EXPECT_EQ(store_.bytes(), 0u);
  EXPECT_THAT(Ask(3, "GET", "/global/0"), ElementsAre("3 404"));
  EXPECT_THAT(Ask(4, "GET", "/local_a/0"), ElementsAre("4 404"));
}

TEST_F(ElasticStoreTest, WhatIsOfAnotherRoundIsVoid) {
  EXPECT_THAT(PutElsewhere(0, "global", "0", "early"), IsEmpty());
  Open(2);
  EXPECT_THAT(Ask(9, "GET", "/rank_and_size/a:0"), ElementsAre("up 2 asked 0"));
  EXPECT_THAT(Open(1, 5), IsEmpty());
  EXPECT_THAT(Open(2, 5), IsEmpty());
  EXPECT_THAT(Gone(9), IsEmpty());
  EXPECT_EQ(store_.round(), 2u);
  EXPECT_THAT(PutElsewhere(1, "global", "0", "old"), IsEmpty());
  EXPECT_THAT(PutElsewhere(3, "global", "0", "new"), IsEmpty());
  EXPECT_THAT(Ask(1, "GET", "/global/0"), ElementsAre("1 404"));
  EXPECT_THAT(RemoveElsewhere(1, "global", "0", 8), IsEmpty());
  Ask(2, "PUT", "/worker_addresses/a:0", kGoodAddress);
  EXPECT_THAT(Notify(1, 0, 1), IsEmpty());
  Ask(3, "DELETE", "/s/0");
  EXPECT_THAT(AppliedEverywhere(1, 1), IsEmpty());
  EXPECT_EQ(store_.waiting(), 1u);
}

// "I am done": other ranks may be slower.
TEST_F(ElasticStoreTest, ADeleteWhereRanksMeetHasNoEffect) {
  Open(1);
  for (const char* scope : {"global", "local_a", "cross_0"}) {
    Ask(1, "PUT", absl::StrCat("/", scope, "/0"), "x");
    EXPECT_THAT(Ask(2, "DELETE", absl::StrCat("/", scope, "/0")), ElementsAre("2 200"));
    EXPECT_THAT(Ask(3, "GET", absl::StrCat("/", scope, "/0")), ElementsAre("3 200 x"));
  }
}

TEST_F(ElasticStoreTest, ADeleteInAProcessSetWaitsUntilItIsGoneEverywhere) {
  Open(1);
  Ask(1, "PUT", "/global_process_set_hash_7/0", "x");
  Ask(2, "PUT", "/cross_0_process_set_hash_7/1", "x");
  EXPECT_THAT(Ask(3, "DELETE", "/global_process_set_hash_7/0"),
              ElementsAre("up 1 removed global_process_set_hash_7 0 #1"));
  EXPECT_THAT(Ask(4, "DELETE", "/cross_0_process_set_hash_7/1"),
              ElementsAre("up 1 removed cross_0_process_set_hash_7 1 #2"));
  EXPECT_THAT(Ask(5, "GET", "/global_process_set_hash_7/0"), ElementsAre("5 404"));
  EXPECT_THAT(AppliedEverywhere(1, 3), IsEmpty());
  EXPECT_THAT(AppliedEverywhere(1, 2), ElementsAre("4 200"));
  EXPECT_THAT(AppliedEverywhere(1, 2), IsEmpty());
  EXPECT_EQ(store_.waiting(), 1u);
  EXPECT_THAT(Gone(3), IsEmpty());
  EXPECT_THAT(AppliedEverywhere(1, 1), IsEmpty());
  EXPECT_EQ(store_.waiting(), 0u);
}

TEST_F(ElasticStoreTest, ADeleteThatANewRoundOvertakesIsDone) {
  Open(1);
  Ask(1, "DELETE", "/s/0");
  EXPECT_THAT(Open(2), ElementsAre("1 200"));
  EXPECT_THAT(AppliedEverywhere(2, 1), IsEmpty());
  EXPECT_THAT(Ask(2, "DELETE", "/s/0"), ElementsAre("up 2 removed s 0 #2"));  // no id comes twice
}

TEST_F(ElasticStoreTest, WhatWasRemovedElsewhereIsRemovedHereAndConfirmed) {
  Open(1);
  Ask(1, "PUT", "/s/0", "x");
  EXPECT_THAT(RemoveElsewhere(1, "s", "0", 17), ElementsAre("up 1 applied #17"));
  EXPECT_THAT(Ask(2, "GET", "/s/0"), ElementsAre("2 404"));
  EXPECT_THAT(RemoveElsewhere(1, "never", "0", 18), ElementsAre("up 1 applied #18"));
}

// It comes by Python's urllib, which gives up after a minute; and outlives rounds.
TEST_F(ElasticStoreTest, AWorkerMayRegisterAtAnyTimeAndStays) {
  EXPECT_EQ(store_.AddressOf(1), nullptr);
  EXPECT_THAT(Ask(1, "PUT", "/worker_addresses/a:1", kGoodAddress),
              ElementsAre("1 200", "up 0 registered 1"));
  ASSERT_NE(store_.AddressOf(1), nullptr);
  EXPECT_EQ(store_.AddressOf(1)->places[0].port, 80);
  Open(1);
  Open(2);
  EXPECT_NE(store_.AddressOf(1), nullptr);
  EXPECT_EQ(store_.AddressOf(0), nullptr);
  EXPECT_THAT(Ask(2, "GET", "/worker_addresses/a:1"), ElementsAre("2 404"));
  EXPECT_THAT(Ask(3, "PUT", "/worker_addresses/a:2", kGoodAddress), ElementsAre("3 200"));
}

TEST_F(ElasticStoreTest, WhatIsNotUnderstoodIsSaidAndReplacesWhatWas) {
  Ask(1, "PUT", "/worker_addresses/a:0", kGoodAddress);
  EXPECT_THAT(Ask(2, "PUT", "/worker_addresses/a:0", "!"),
              ElementsAre("2 200", "up 0 registered 0: it is not base64"));
  EXPECT_EQ(store_.AddressOf(0), nullptr);
}

TEST_F(ElasticStoreTest, ANoticeGoesToAWorkerThatHasRegistered) {
  Ask(1, "PUT", "/worker_addresses/a:1", kGoodAddress);
  Open(1);
  EXPECT_THAT(Notify(1, 1, 5), ElementsAre("notice 5 to 1"));
  EXPECT_THAT(Notify(1, 0, 6),
              ElementsAre("up 1 noticed 6 by 0: it has not said where it hears of changes"));
  v1::ElasticNoticed noticed;
  noticed.set_local_rank(1);
  noticed.set_timestamp(5);
  EXPECT_THAT(Take(store_.OnNoticed(noticed)), ElementsAre("up 1 noticed 5 by 1: "));
}

TEST_F(ElasticStoreTest, WhatTheShutDoorHoldsIsBounded) {
  const std::string value(1 << 20, 'v');
  uint64_t ticket = 0;
  Texts last;
  do {
    last = Ask(++ticket, "PUT", "/global/0", value);
  } while (last[0].find("waiting") != std::string::npos && ticket < 100);
  EXPECT_THAT(last, ElementsAre(absl::StrCat(ticket, " 503")));
  EXPECT_LT(ticket, 40u);
  EXPECT_LE(store_.bytes(), size_t{32} << 20);
  EXPECT_THAT(Gone(1), SizeIs(1));
  EXPECT_THAT(Ask(++ticket, "PUT", "/global/0", value), ElementsAre(HasSubstr("waiting")));
  for (uint64_t i = 1; i <= ticket; ++i) Gone(i);
  EXPECT_EQ(store_.bytes(), 0u);
}

// But what a job would hang without goes up in any case.
TEST_F(ElasticStoreTest, WhatGoesUpInARoundIsBounded) {
  Open(1);
  const std::string value(1 << 20, 'v');
  uint64_t ticket = 0;
  Texts last;
  do {
    last = Ask(++ticket, "PUT", "/s/same", value);
  } while (last[0] == absl::StrCat(ticket, " 200") && ticket < 100);
  EXPECT_THAT(last, ElementsAre(absl::StrCat(ticket, " 507")));
  EXPECT_LT(ticket, 40u);
  EXPECT_THAT(Ask(101, "PUT", "/s/small", ""), ElementsAre("101 200", "up 1 put s small "));
  for (int i = 0; i < 1'000'000 && last[0] != "102 507"; ++i)
    last = Ask(102, "PUT", "/s/small", "");
  EXPECT_THAT(last, ElementsAre("102 507"));
  EXPECT_THAT(Ask(103, "DELETE", "/s/small"), ElementsAre("103 507"));
  EXPECT_THAT(Ask(104, "PUT", "/worker_addresses/a:0", kGoodAddress), ElementsAre("104 507"));
  EXPECT_THAT(Ask(105, "GET", "/rank_and_size/a:0"), ElementsAre("up 1 asked 0"));
  EXPECT_THAT(RemoveElsewhere(1, "s", "0", 9), ElementsAre("up 1 applied #9"));
  EXPECT_THAT(Notify(1, 1, 1), SizeIs(1));
  Open(2);
  EXPECT_THAT(Ask(106, "PUT", "/s/small", "x"), ElementsAre("106 200", "up 2 put s small x"));
}

TEST_F(ElasticStoreTest, ComingsAndGoingsAtTheShutDoorAreBoundedToo) {
  size_t ups = 0;
  for (int i = 0; i < 400'000; ++i) {
    ups += store_.OnRequest(1, "GET", "/s/0", "").up.size();
    ups += store_.OnGone(1).up.size();
  }
  EXPECT_LT(ups, 300'000u);
  EXPECT_EQ(store_.waiting(), 0u);
}

}  // namespace
}  // namespace dtrain::stores
