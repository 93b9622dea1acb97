// SPDX-License-Identifier: Apache-2.0
// Bodies that grow, and the client that reads them.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/http/client.h"
#include "tests/component/http/harness.h"

namespace dtrain::http {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

// What the test says comes next.
struct Script {
  std::string text;
  bool ended = false;
  int feeds = 0;
  absl::AnyInvocable<void()> wake;
};

class ScriptFeed : public Feed {
 public:
  explicit ScriptFeed(Script& script) : script_(script) { ++script_.feeds; }
  ~ScriptFeed() override {
    --script_.feeds;
    script_.wake = nullptr;
  }
  std::string Next(size_t limit) override {
    const std::string out = script_.text.substr(0, limit);
    script_.text.erase(0, out.size());
    return out;
  }
  bool ended() const override { return script_.ended && script_.text.empty(); }
  void Notify(absl::AnyInvocable<void()> task) override { script_.wake = std::move(task); }

 private:
  Script& script_;
};

class FeedTest : public HttpTest {
 protected:
  Response Handle(const Target& target) override {
    if (target.path != "/feed") return HttpTest::Handle(target);
    Response response;
    response.feed = std::make_unique<ScriptFeed>(script_);
    return response;
  }
  void Say(const std::string& text, bool ended = false) {
    script_.text += text;
    script_.ended = ended;
    if (script_.wake != nullptr) std::exchange(script_.wake, nullptr)();
  }
  Script script_;
  bool over_ = false;
};

constexpr char kGet[] = "GET /feed HTTP/1.1\r\nHost: x\r\n\r\n";

TEST_F(FeedTest, ComesInChunksAsItGrowsAndTheConnectionGoesOn) {
  Listen();
  os::UniqueFd fd = Dial();
  std::string text;
  auto has = [&](absl::string_view end) {
    return Await([&] {
      Read(fd, text);
      return absl::EndsWith(text, end);
    });
  };
  Write(fd, kGet);
  ASSERT_TRUE(Await([&] { return script_.wake != nullptr; }));
  Say("one");
  EXPECT_TRUE(has("\r\n3\r\none\r\n")) << text;
  bool idle = false;
  server_->WhenIdle([&] { idle = true; });
  EXPECT_FALSE(idle);
  ASSERT_TRUE(Await([&] { return script_.wake != nullptr; }));
  Say("two", true);
  EXPECT_TRUE(has("3\r\ntwo\r\n0\r\n\r\n")) << text;
  EXPECT_EQ(script_.feeds, 0);
  EXPECT_TRUE(Await([&] { return idle; }));
  Write(fd, "GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(has("you asked for /next")) << text;
}

TEST_F(FeedTest, AnOldClientGetsItWithoutFrames) {
  Listen();
  script_.text = "all of it";
  script_.ended = true;
  os::UniqueFd fd = Dial();
  Write(fd, "GET /feed HTTP/1.0\r\n\r\n");
  EXPECT_THAT(ReadToEnd(fd), EndsWith("\r\n\r\nall of it"));
}

TEST_F(FeedTest, AReaderThatHangsUpIsNoticedWhileThereIsNothingToSay) {
  Listen();
  os::UniqueFd fd = Dial();
  Write(fd, kGet);
  ASSERT_TRUE(Await([&] { return script_.wake != nullptr; }));
  fd.Reset();
  EXPECT_TRUE(Await([&] { return script_.feeds == 0; }));
}

TEST_F(FeedTest, AReaderThatHasAskedForMoreAndHangsUpIsNoticed) {
  Listen();
  os::UniqueFd fd = Dial();
  Write(fd, kGet);
  ASSERT_TRUE(Await([&] { return script_.wake != nullptr; }));
  Write(fd, "GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(Await([&] {
    int unread = 0;
    return ioctl(fd.get(), SIOCOUTQ, &unread) == 0 && unread == 0;
  })) << "it is not read while the feed goes on";
  fd.Reset();
  EXPECT_TRUE(Await([&] { return script_.feeds == 0; }));
}

TEST_F(FeedTest, WhatIsAskedForMeanwhileIsAnsweredAfterIt) {
  Listen();
  os::UniqueFd fd = Dial();
  Write(fd, kGet);
  ASSERT_TRUE(Await([&] { return script_.wake != nullptr; }));
  Write(fd, "GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
  Say("one", true);
  std::string text;
  EXPECT_TRUE(Await([&] {
    Read(fd, text);
    return absl::EndsWith(text, "you asked for /next");
  })) << text;
  EXPECT_THAT(text, HasSubstr("3\r\none\r\n0\r\n\r\n"));
}

TEST_F(FeedTest, AReaderThatTalksWithoutEndIsCutOff) {
  Listen();
  os::UniqueFd fd = Dial();
  Write(fd, kGet);
  ASSERT_TRUE(Await([&] { return script_.wake != nullptr; }));
  Write(fd, std::string(32 << 10, 'x'));
  EXPECT_TRUE(Await([&] { return script_.feeds == 0; }));
}

// I10
TEST_F(FeedTest, AReaderThatTakesNothingIsCutOff) {
  Limits limits;
  limits.response = std::chrono::milliseconds(50);
  Listen(limits);
  os::UniqueFd fd = Dial();
  script_.text = std::string(16 << 20, 'x');
  Write(fd, kGet);
  ASSERT_TRUE(Await([&] { return script_.feeds == 1; }));
  EXPECT_TRUE(Await([&] { return script_.feeds == 0; }));
}

TEST_F(FeedTest, TheServerMayGoAwayWhileItIsSent) {
  Listen();
  os::UniqueFd fd = Dial();
  Write(fd, kGet);
  ASSERT_TRUE(Await([&] { return script_.wake != nullptr; }));
  server_.reset();
  EXPECT_EQ(script_.feeds, 0);
  ReadToEnd(fd);
}

TEST_F(FeedTest, TheClientGivesItAwayAsItComes) {
  Listen();
  script_.text = "first ";
  std::string got;
  absl::StatusOr<Answer> answer;
  std::thread client([&] {
    answer = Stream(
        path_, "/feed",
        [&](absl::string_view piece) {
          absl::StrAppend(&got, piece);
          return true;
        },
        std::chrono::seconds(1), [] {});
    loop_.Post([this] { over_ = true; });
  });
  EXPECT_TRUE(Await([&] { return script_.wake != nullptr; }));
  Say(std::string(1 << 20, 'x'), true);
  EXPECT_TRUE(Await([&] { return over_; }));
  client.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(got, "first " + std::string(1 << 20, 'x'));
}

TEST_F(FeedTest, TheClientIsCalledWhileNothingComes) {
  Listen();
  script_.text = "first ";
  int idle = 0;
  std::string got;
  absl::StatusOr<Answer> answer;
  std::thread client([&] {
    answer = Stream(
        path_, "/feed",
        [&](absl::string_view piece) {
          absl::StrAppend(&got, piece);
          return true;
        },
        std::chrono::milliseconds(1),
        [&] {
          if (++idle == 3) loop_.Post([this] { Say("last", true); });
        });
    loop_.Post([this] { over_ = true; });
  });
  EXPECT_TRUE(Await([&] { return over_; }));
  client.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_GE(idle, 3);
  EXPECT_EQ(got, "first last");
}

TEST_F(FeedTest, TheClientTellsWhomItCouldNotReachAndWhoSaysNothing) {
  EXPECT_THAT(Get(path_, "/a").status().message(),
              HasSubstr(absl::StrCat("connect to ", path_, ": No such file or directory")));
  EXPECT_THAT(Get("/" + std::string(200, 'x'), "/a").status().message(),
              HasSubstr("File name too long"));
  Listen();  // and never runs the loop
  EXPECT_THAT(Get(path_, "/a", std::chrono::milliseconds(20)).status().message(),
              HasSubstr("timed out"));
}

}  // namespace
}  // namespace dtrain::http
