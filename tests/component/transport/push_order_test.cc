// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/push_order.h"

#include <sys/resource.h>

#include <algorithm>
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

TEST(PushOrder, TheFirstIsSentItAndTheOthersLookWhenItIsDone) {
  PushOrder order;
  auto first = std::make_unique<Ticket>(order.Ask("home", "agent"));
  Ticket second = order.Ask("home", "agent"), third = order.Ask("home", "agent");
  EXPECT_TRUE(IsSentIt(*first));
  EXPECT_FALSE(IsSentIt(second));
  EXPECT_FALSE(IsSentIt(third));
  EXPECT_FALSE(MayLook(second));
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

TEST(PushOrder, AfterAFailureTheNextIsSentIt) {
  PushOrder order;
  auto first = std::make_unique<Ticket>(order.Ask("home", "agent"));
  Ticket waiting = order.Ask("home", "agent");
  first.reset();
  EXPECT_TRUE(MayLook(waiting));
  waiting.SetArrived();  // it was sent it all the same
  waiting = Ticket();
  Ticket next = order.Ask("home", "agent");
  EXPECT_TRUE(IsSentIt(next));
  EXPECT_FALSE(IsSentIt(order.Ask("home", "agent")));
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
    std::vector<Ticket> tickets(kThreads);
    std::vector<std::thread> threads;
    for (Ticket& ticket : tickets) {
      threads.emplace_back([&] { ticket = order.Ask("home", "agent"); });
    }
    for (std::thread& thread : threads) thread.join();
    const auto first = std::find_if(tickets.begin(), tickets.end(), IsSentIt);
    ASSERT_NE(first, tickets.end());
    ASSERT_EQ(std::count_if(tickets.begin(), tickets.end(), IsSentIt), 1);
    ASSERT_EQ(std::count_if(tickets.begin(), tickets.end(), MayLook), 0);
    std::thread([&] { *first = Ticket(); }).join();
    ASSERT_EQ(std::count_if(tickets.begin(), tickets.end(), MayLook), kThreads - 1);
  }
}

}  // namespace
}  // namespace dtrain::transport
