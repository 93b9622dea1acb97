// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/push_order.h"

#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <thread>

#include "tests/component/transport/harness.h"

namespace dtrain::transport {
namespace {

using Ticket = PushOrder::Ticket;

bool IsSentIt(const Ticket& ticket) { return ticket.wait_fd() < 0; }

bool MayLook(const Ticket& ticket) {
  pollfd p{ticket.wait_fd(), POLLIN, 0};
  return !IsSentIt(ticket) && poll(&p, 1, 0) == 1 && p.revents == POLLIN;
}

// Releases a ticket, as of a node whose agent answers.
void Arrive(Ticket& ticket) {
  ticket.SetArrived();
  ticket = Ticket();
}

std::vector<Ticket> AskFor(PushOrder& order, size_t count) {
  std::vector<Ticket> tickets;
  for (size_t i = 0; i < count; ++i) tickets.push_back(order.Ask("home", "agent"));
  return tickets;
}

std::ptrdiff_t CountLooking(const std::vector<Ticket>& tickets) {
  return std::count_if(tickets.begin(), tickets.end(), MayLook);
}

TEST(PushOrder, TheFirstIsSentItAndTheOthersLookWhenItIsDone) {
  PushOrder order;
  auto first = std::make_unique<Ticket>(order.Ask("home", "agent"));
  Ticket second = order.Ask("home", "agent"), third = order.Ask("home", "agent");
  EXPECT_TRUE(IsSentIt(*first));
  EXPECT_FALSE(IsSentIt(second));
  EXPECT_FALSE(IsSentIt(third));
  EXPECT_FALSE(MayLook(second));
  first->SetArrived();
  first.reset();
  EXPECT_TRUE(MayLook(second));
  EXPECT_TRUE(MayLook(third));
  EXPECT_TRUE(MayLook(second));  // it was not the third's alone
}

TEST(PushOrder, ThoseWhoAskAfterItHasArrivedLookAtOnce) {
  PushOrder order;
  {
    Ticket first = order.Ask("home", "agent"), moved;
    first.SetArrived();
    moved = std::move(first);
    EXPECT_FALSE(MayLook(order.Ask("home", "agent")));
  }
  EXPECT_TRUE(MayLook(order.Ask("home", "agent")));
  EXPECT_TRUE(MayLook(order.Ask("home", "agent")));
  EXPECT_TRUE(IsSentIt(order.Ask("home", "other")));
  { order.Ask("away", "agent").SetArrived(); }  // nobody had waited
  EXPECT_TRUE(MayLook(order.Ask("away", "agent")));
}

TEST(PushOrder, AfterFailuresTwoAreSentItThenFourThenEight) {
  PushOrder order;
  std::vector<Ticket> tickets = AskFor(order, 20);
  tickets.erase(tickets.begin());
  for (const std::ptrdiff_t group : {2, 4, 8}) {
    ASSERT_EQ(CountLooking(tickets), group);
    for (std::ptrdiff_t i = 0; i < group; ++i)
      ASSERT_TRUE(MayLook(tickets[static_cast<size_t>(i)]));
    // All but the last of them fail: it may yet succeed.
    tickets.erase(tickets.begin(), tickets.begin() + group - 1);
    ASSERT_EQ(CountLooking(tickets), 1);
    tickets.erase(tickets.begin());
  }
  ASSERT_EQ(tickets.size(), 5U);
  EXPECT_EQ(CountLooking(tickets), 5);
  tickets.clear();
  EXPECT_TRUE(IsSentIt(order.Ask("home", "agent")));  // from the beginning
}

TEST(PushOrder, TheFirstToArriveOfAGroupIsEnough) {
  PushOrder order;
  std::vector<Ticket> tickets = AskFor(order, 10);
  tickets[0] = Ticket();
  ASSERT_EQ(CountLooking(tickets), 2);
  Arrive(tickets[2]);
  EXPECT_EQ(CountLooking(tickets), 8);  // all but the first and this one
  tickets[1] = Ticket();
  EXPECT_TRUE(MayLook(order.Ask("home", "agent")));
}

TEST(PushOrder, ThoseThatHaveWaitedLongAreSentItInGroups) {
  PushOrder order(std::chrono::seconds(15));
  ASSERT_EQ(order.next_wait(), std::chrono::seconds(5));
  std::vector<Ticket> tickets = AskFor(order, 30);
  std::vector<Ticket> waiting(std::make_move_iterator(tickets.begin() + 1),
                              std::make_move_iterator(tickets.end()));
  const auto sent_at = [&](int seconds) {
    size_t count = 0;
    for (auto it = waiting.begin(); it != waiting.end();) {
      if (!it->TakeTurn(TimePoint() + std::chrono::seconds(seconds))) {
        ++it;
        continue;
      }
      EXPECT_FALSE(MayLook(*it));
      tickets.push_back(std::move(*it));
      it = waiting.erase(it);
      ++count;
    }
    return count;
  };
  EXPECT_EQ(sent_at(15), 2U);
  EXPECT_EQ(sent_at(19), 0U);
  EXPECT_EQ(sent_at(20), 4U);
  EXPECT_EQ(sent_at(25), 8U);
  ASSERT_EQ(waiting.size(), 15U);
  Arrive(tickets[32]);  // of the last group
  EXPECT_EQ(CountLooking(waiting), 15);
  EXPECT_EQ(sent_at(100), 0U);
}

TEST(PushOrder, AGroupAfterAFailureHasItsTime) {
  PushOrder order(std::chrono::seconds(15));
  std::vector<Ticket> tickets = AskFor(order, 8);
  tickets[0] = Ticket();
  ASSERT_EQ(CountLooking(tickets), 2);
  const TimePoint late = TimePoint() + std::chrono::seconds(60);
  EXPECT_TRUE(tickets[1].TakeTurn(late));  // it was woken
  EXPECT_FALSE(tickets[3].TakeTurn(late));
  EXPECT_FALSE(tickets[3].TakeTurn(late + std::chrono::milliseconds(4999)));
  EXPECT_TRUE(tickets[3].TakeTurn(late + std::chrono::seconds(5)));
}

TEST(PushOrder, OtherHomesAndOtherAgentsAreNotWaitedFor) {
  PushOrder order;
  Ticket first = order.Ask("home", "agent");
  Ticket other_home = order.Ask("away", "agent"), other_agent = order.Ask("home", "other");
  EXPECT_TRUE(IsSentIt(other_home));
  EXPECT_TRUE(IsSentIt(other_agent));
  Ticket waiting = order.Ask("home", "other");
  first = Ticket();
  EXPECT_FALSE(MayLook(waiting));
  other_agent = Ticket();
  EXPECT_TRUE(MayLook(waiting));
}

TEST(PushOrder, NodesThatDoNotNameTheirHomeNeverWait) {
  PushOrder order;
  Ticket one = order.Ask("", "agent"), two = order.Ask("", "agent");
  EXPECT_TRUE(IsSentIt(one));
  EXPECT_TRUE(IsSentIt(two));
}

TEST(PushOrder, ATicketThatWasMovedHoldsItsPlace) {
  PushOrder order;
  Ticket place;
  {
    Ticket first = order.Ask("home", "agent");
    Ticket moved = std::move(first);
    place = std::move(moved);
  }
  Ticket waiting = order.Ask("home", "agent");
  EXPECT_FALSE(MayLook(waiting));
  Ticket moved = std::move(waiting);
  place = order.Ask("away", "agent");  // lets go of the first
  EXPECT_TRUE(MayLook(moved));
}

TEST(PushOrder, ANodeThatGaveUpWaitingIsForgotten) {
  PushOrder order;
  auto first = std::make_unique<Ticket>(order.Ask("home", "agent"));
  (void)order.Ask("home", "agent");
  Ticket waiting = order.Ask("home", "agent");
  first.reset();
  EXPECT_TRUE(MayLook(waiting));
}

TEST(PushOrder, TicketsMayOutliveIt) {
  auto order = std::make_unique<PushOrder>();
  auto first = std::make_unique<Ticket>(order->Ask("home", "agent"));
  Ticket waiting = order->Ask("home", "agent");
  order.reset();
  first.reset();
  EXPECT_TRUE(MayLook(waiting));
}

TEST(PushOrder, WithoutDescriptorsNobodyWaits) {
  PushOrder order;
  Ticket first = order.Ask("home", "agent");
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Ticket second = order.Ask("home", "agent");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(IsSentIt(second));
  EXPECT_FALSE(IsSentIt(order.Ask("home", "agent")));
}

TEST(PushOrder, OfManyThreadsOneIsSentIt) {
  PushOrder order;
  constexpr int kThreads = 16;
  for (int round = 0; round < 50; ++round) {
    const std::string agent = std::to_string(round);
    std::vector<Ticket> tickets(kThreads);
    std::vector<std::thread> threads;
    for (Ticket& ticket : tickets) {
      threads.emplace_back([&] { ticket = order.Ask("home", agent); });
    }
    for (std::thread& thread : threads) thread.join();
    const auto first = std::find_if(tickets.begin(), tickets.end(), IsSentIt);
    ASSERT_NE(first, tickets.end());
    ASSERT_EQ(std::count_if(tickets.begin(), tickets.end(), IsSentIt), 1);
    ASSERT_EQ(std::count_if(tickets.begin(), tickets.end(), MayLook), 0);
    std::thread([&] { Arrive(*first); }).join();
    ASSERT_EQ(std::count_if(tickets.begin(), tickets.end(), MayLook), kThreads - 1);
  }
}

}  // namespace
}  // namespace dtrain::transport
