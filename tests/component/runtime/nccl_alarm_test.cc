// SPDX-License-Identifier: Apache-2.0
// The connections over which the ranks of an NCCL job tell each other of failures.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/nccl/alarm.h"

namespace dtrain::runtime {
namespace {

Deadline In(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

// The alarms of `n` ranks of this process, listening.
struct Ring {
  explicit Ring(int n) : failures(static_cast<size_t>(n)) {
    for (int r = 0; r < n; ++r) {
      auto alarm = Alarm::Listen("127.0.0.1");
      EXPECT_TRUE(alarm.ok()) << alarm.error().message;
      Member member;
      member.host = "h" + std::to_string(r);
      member.ip = "127.0.0.1";
      member.port = (*alarm)->port();
      member.token = (*alarm)->token();
      alarms.push_back(std::move(*alarm));
      members.push_back(member);
    }
  }
  void Connect(Deadline deadline = In(20)) {
    std::vector<std::thread> threads;
    for (size_t r = 0; r < alarms.size(); ++r) {
      threads.emplace_back([this, r, deadline] {
        failures[r] = alarms[r]->Connect(static_cast<int>(r), members, deadline);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // What rank `r` hears, within a deadline.
  MaybeError News(size_t r) {
    const Deadline end = In(20);
    while (std::chrono::steady_clock::now() < end) {
      if (MaybeError news = alarms[r]->Check()) return news;
      std::vector<pollfd> entries;
      alarms[r]->AddTo(entries);
      poll(entries.data(), entries.size(), 1000);
    }
    return std::nullopt;
  }

  std::vector<std::unique_ptr<Alarm>> alarms;
  std::vector<Member> members;
  std::vector<MaybeError> failures;
};

TEST(NcclAlarm, NewsOfALeafReachEveryRankWhenEachPassesThemOn) {
  Ring ring(20);
  ring.Connect();
  for (const MaybeError& failure : ring.failures) EXPECT_FALSE(failure) << failure->message;
  ring.alarms[19]->Raise({DTRAIN_ERROR_DEVICE, "rank 19 (host h19): its GPU is lost\n"});
  // From the leaf to its parent, to the root, and down again.
  std::vector<size_t> order = {2, 0};
  for (size_t r = 1; r < 19; ++r) {
    if (r != 2) order.push_back(r);
  }
  for (const size_t r : order) {
    const MaybeError news = ring.News(r);
    ASSERT_TRUE(news) << r;
    EXPECT_EQ(news->code, DTRAIN_ERROR_DEVICE);
    EXPECT_EQ(news->message, "rank 19 (host h19): its GPU is lost?");
    ring.alarms[r]->Raise(*news);
  }
}

TEST(NcclAlarm, AnEndWithoutGoodbyeIsNewsAndOneWithItIsNot) {
  Ring ring(3);
  ring.Connect();
  ring.alarms[1]->SayGoodbye();
  ring.alarms[1].reset();
  ring.alarms[2].reset();
  const MaybeError news = ring.News(0);
  ASSERT_TRUE(news);
  EXPECT_EQ(news->code, DTRAIN_ERROR_NETWORK);
  EXPECT_EQ(news->message.rfind("lost the connection to rank 2 (host h2)", 0), 0u) << news->message;
  EXPECT_FALSE(ring.alarms[0]->Check());
}

TEST(NcclAlarm, StrangersAreNotLetIn) {
  Ring ring(2);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(ring.members[0].port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<int> strangers;
  for (const std::string& hello :
       {std::string("GET / HTTP/1.0\r\n\r\n  "), std::string(20, '\0'), std::string("x")}) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(send(fd, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
    // The last one says too little and then nothing.
    if (hello == "x") shutdown(fd, SHUT_WR);
    strangers.push_back(fd);
  }
  ring.Connect();
  for (const MaybeError& failure : ring.failures) EXPECT_FALSE(failure) << failure->message;
  ring.alarms[1]->Raise({DTRAIN_ERROR_TIMEOUT, "late"});
  EXPECT_EQ(ring.News(0)->message, "late");
  for (const int fd : strangers) close(fd);
}

TEST(NcclAlarm, AnotherProgramAtTheParentsAddressIsNotTrusted) {
  Ring ring(2), other(2);
  // Rank 1 is sent to a listener that does not know it.
  ring.members[0].port = other.members[0].port;
  std::thread wrong([&] { other.alarms[0]->Connect(0, other.members, In(1)); });
  const MaybeError failure = ring.alarms[1]->Connect(1, ring.members, In(5));
  wrong.join();
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->message.find("connecting to rank 0 (host h0) at 127.0.0.1:"),
            std::string::npos)
      << failure->message;
}

// M7
TEST(NcclAlarm, ARefusedConnectionNamesBothSidesAndTheAddress) {
  Ring ring(2);
  ring.alarms[0].reset();
  const MaybeError failure = ring.alarms[1]->Connect(1, ring.members, In(5));
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->message.find("from rank 1 (host h1): Connection refused"), std::string::npos)
      << failure->message;
}

TEST(NcclAlarm, AnAddressThatIsNotOursIsRefused) {
  EXPECT_FALSE(Alarm::Listen("not an address").ok());
  const auto elsewhere = Alarm::Listen("192.0.2.77");
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_NE(elsewhere.error().message.find("listening on 192.0.2.77"), std::string::npos);
}

}  // namespace
}  // namespace dtrain::runtime
