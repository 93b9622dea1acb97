// SPDX-License-Identifier: Apache-2.0
#include "agent/auth/places.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::auth {
namespace {

using Pool = Places::Pool;
using Rank = Places::Rank;

constexpr Places::Limits kSmall = {
    .handshake = {4, 2}, .tls = {4, 2}, .unix_socket = {4, 2}, .lookup = {4, 2}, .kept = {4, 2}};

class PlacesTest : public ::testing::Test {
 protected:
  bool Take(Pool pool, const std::string& of, Rank rank = Rank::kOrdinary) {
    auto ticket = places_.Take(pool, of, rank);
    if (!ticket.ok()) {
      EXPECT_EQ(ticket.status().code(), absl::StatusCode::kResourceExhausted);
      return false;
    }
    tickets_.push_back(*std::move(ticket));
    return true;
  }
  void Fill(Pool pool) {
    for (const char* of : {"a", "a", "b", "b"}) EXPECT_TRUE(Take(pool, of));
  }
  Places places_{kSmall};
  std::vector<Places::Ticket> tickets_;
};

TEST_F(PlacesTest, OneHasItsShareAndAllHaveTheirs) {
  EXPECT_TRUE(Take(Pool::kUnix, "a"));
  EXPECT_TRUE(Take(Pool::kUnix, "a"));
  EXPECT_FALSE(Take(Pool::kUnix, "a"));
  EXPECT_TRUE(Take(Pool::kUnix, "b"));
  EXPECT_TRUE(Take(Pool::kUnix, "b"));
  EXPECT_FALSE(Take(Pool::kUnix, "c"));
  EXPECT_EQ(places_.Take(Pool::kUnix, "a").status().message(),
            "it has 2 connections of 4 here; the limits are 2 and 4");
}

TEST_F(PlacesTest, StrangersTakeNoPlaceOfAnybodyElse) {
  Fill(Pool::kHandshake);
  EXPECT_TRUE(Take(Pool::kTls, "a"));
  EXPECT_TRUE(Take(Pool::kUnix, "a"));
}

TEST_F(PlacesTest, APlaceThatIsLeftIsFree) {
  Fill(Pool::kTls);
  EXPECT_FALSE(Take(Pool::kTls, "c"));
  tickets_.erase(tickets_.begin());
  EXPECT_TRUE(Take(Pool::kTls, "c"));
  tickets_.clear();
  Fill(Pool::kTls);
}

TEST_F(PlacesTest, ATicketMayMove) {
  Places::Ticket ticket = *places_.Take(Pool::kTls, "a");
  ticket = *places_.Take(Pool::kTls, "a");  // and leaves the first
  EXPECT_TRUE(Take(Pool::kTls, "a"));
  EXPECT_FALSE(Take(Pool::kTls, "a"));
  Places::Ticket other = std::move(ticket);
  EXPECT_EQ(other.of(), "a");
  EXPECT_FALSE(Take(Pool::kTls, "a"));
}

TEST_F(PlacesTest, SomeAreKeptForResumesAndMoreForAdmins) {
  for (Pool pool : {Pool::kTls, Pool::kUnix}) Fill(pool);
  EXPECT_FALSE(Take(Pool::kTls, "c"));
  EXPECT_TRUE(Take(Pool::kTls, "a", Rank::kResumes));
  EXPECT_TRUE(Take(Pool::kUnix, "c", Rank::kResumes));
  EXPECT_FALSE(Take(Pool::kTls, "d", Rank::kResumes));  // half of them
  EXPECT_TRUE(Take(Pool::kTls, "root", Rank::kAdmin));
  EXPECT_TRUE(Take(Pool::kUnix, "root", Rank::kAdmin));
  EXPECT_FALSE(Take(Pool::kUnix, "ops", Rank::kAdmin));
}

TEST_F(PlacesTest, WhoHasMostYieldsToWhoHasFewer) {
  EXPECT_TRUE(Take(Pool::kHandshake, "a"));
  EXPECT_TRUE(Take(Pool::kHandshake, "b"));
  EXPECT_TRUE(Take(Pool::kHandshake, "b"));
  EXPECT_EQ(places_.WhoIsToYield(Pool::kHandshake, "c"), "");  // there is room
  EXPECT_TRUE(Take(Pool::kHandshake, "d"));
  EXPECT_EQ(places_.WhoIsToYield(Pool::kHandshake, "c"), "b");
  EXPECT_EQ(places_.WhoIsToYield(Pool::kHandshake, "a"), "b");
  EXPECT_EQ(places_.WhoIsToYield(Pool::kHandshake, "b"), "b");
}

// Its connections may be of many users.
TEST_F(PlacesTest, WhoHasItsShareYieldsToItself) {
  EXPECT_TRUE(Take(Pool::kHandshake, "a"));
  EXPECT_EQ(places_.WhoIsToYield(Pool::kHandshake, "a"), "");
  EXPECT_TRUE(Take(Pool::kHandshake, "a"));
  EXPECT_EQ(places_.WhoIsToYield(Pool::kHandshake, "a"), "a");
  EXPECT_EQ(places_.WhoIsToYield(Pool::kHandshake, "b"), "");
}

TEST_F(PlacesTest, WhereAllHaveOneTheNextOfTheirsTakesItsOwn) {
  for (const char* of : {"a", "b", "c", "d"}) EXPECT_TRUE(Take(Pool::kHandshake, of));
  EXPECT_EQ(places_.WhoIsToYield(Pool::kHandshake, "a"), "a");
}

}  // namespace
}  // namespace dtrain::auth
