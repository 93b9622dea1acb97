// SPDX-License-Identifier: Apache-2.0
// Questions passed on to a server on a unix socket.
#include "common/http/passage.h"

#include <sys/un.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/component/http/harness.h"

namespace dtrain::http {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct Written {
  std::string text;
  bool ended = false;
  int feeds = 0;
  absl::AnyInvocable<void()> wake;
};

class WrittenFeed : public Feed {
 public:
  explicit WrittenFeed(Written& written) : written_(written) { ++written_.feeds; }
  ~WrittenFeed() override {
    --written_.feeds;
    written_.wake = nullptr;
  }
  std::string Next(size_t limit) override {
    const std::string out = written_.text.substr(0, limit);
    written_.text.erase(0, out.size());
    return out;
  }
  bool ended() const override { return written_.ended && written_.text.empty(); }
  void Notify(absl::AnyInvocable<void()> task) override { written_.wake = std::move(task); }

 private:
  Written& written_;
};

// `server_` on `path_` passes everything on to `behind_` on `path_`.b, which is the harness's
// Handle.
class PassageTest : public HttpTest {
 protected:
  PassageTest() {
    auto behind = Server::ListenUnix(loop_, path_ + ".b",
                                     [this](const Target& target) { return Handle(target); });
    EXPECT_TRUE(behind.ok()) << behind.status();
    behind_ = *std::move(behind);
    front_ = Server::MakeWithoutDoor(loop_);
  }
  ~PassageTest() override { front_.reset(); }

  Response Handle(const Target& target) override {
    if (target.path == "/feed") {
      Response response;
      response.content_type = "text/x-feed";
      response.feed = std::make_unique<WrittenFeed>(written_);
      return response;
    }
    if (target.path == "/large") {
      Response response;
      response.body = std::string(3 << 20, 'x');
      return response;
    }
    if (target.path == "/none") return ErrorResponse(404, "none such");
    HttpTest::Handle(target);
    Response response;
    response.body = "you asked for " + target.text;
    return response;
  }

  os::UniqueFd Come() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    EXPECT_TRUE(front_->Admit(loop::StrangersSocket(os::UniqueFd(ends[0])), "test", {},
                              [this](const Target& target, Reply reply) {
                                PassOn(loop_, path_ + ".b", target, patience_, std::move(reply));
                              }));
    return os::UniqueFd(ends[1]);
  }
  std::string Ask(const std::string& request) {
    const os::UniqueFd fd = Come();
    Write(fd, request);
    shutdown(fd.get(), SHUT_WR);
    return ReadToEnd(fd);
  }
  static std::string Get(const std::string& target) {
    return absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  void Say(const std::string& text, bool ended = false) {
    written_.text += text;
    written_.ended = ended;
    if (written_.wake != nullptr) std::exchange(written_.wake, nullptr)();
  }

  Duration patience_ = kDeadline;
  Written written_;
  std::unique_ptr<Server> behind_;
  std::unique_ptr<Server> front_;
};

TEST_F(PassageTest, PassesTheQuestionAsItCameAndTheAnswerBack) {
  const std::string answer = Ask(Get("/a%20b?c=%26d"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("you asked for /a%20b?c=%26d"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
  const std::string none = Ask(Get("/none"));
  EXPECT_THAT(none, StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(none, HasSubstr("none such"));
}

TEST_F(PassageTest, AnswersOneAfterTheOther) {
  const std::string answer = Ask(Get("/a") + Get("/b"));
  EXPECT_THAT(answer, HasSubstr("you asked for /a"));
  EXPECT_THAT(answer, HasSubstr("you asked for /b"));
}

TEST_F(PassageTest, ALargeAnswerComesWhole) {
  const std::string answer = Ask(Get("/large"));
  EXPECT_GE(std::count(answer.begin(), answer.end(), 'x'), 3 << 20);
  EXPECT_THAT(answer, HasSubstr("Content-Length: 3145728\r\n"));
}

TEST_F(PassageTest, WhatGrowsIsPassedOnAsItGrows) {
  const os::UniqueFd fd = Come();
  Write(fd, Get("/feed"));
  std::string text;
  Say("first\n");
  ASSERT_TRUE(Await([&] { return Read(fd, text) && absl::StrContains(text, "first\n"); }));
  EXPECT_THAT(text, HasSubstr("Content-Type: text/x-feed\r\n"));
  Say("second\n");
  ASSERT_TRUE(Await([&] { return Read(fd, text) && absl::StrContains(text, "second\n"); }));
  Say("last\n", true);
  ASSERT_TRUE(Await([&] { return Read(fd, text) && absl::EndsWith(text, "0\r\n\r\n"); }));
}

TEST_F(PassageTest, WhenTheClientGoesTheQuestionIsWithdrawn) {
  os::UniqueFd fd = Come();
  Write(fd, Get("/feed"));
  Say("x");
  ASSERT_TRUE(Await([&] { return written_.feeds == 1; }));
  std::string text;
  ASSERT_TRUE(Await([&] { return Read(fd, text) && !text.empty(); }));
  fd.Reset();
  EXPECT_TRUE(Await([&] { return written_.feeds == 0; }));
}

// An answer that is cut short must not look whole.
TEST_F(PassageTest, WhenTheServerDiesTheAnswerIsCutOff) {
  const os::UniqueFd fd = Come();
  Write(fd, Get("/feed"));
  Say("half");
  std::string text;
  ASSERT_TRUE(Await([&] { return Read(fd, text) && absl::StrContains(text, "half"); }));
  behind_.reset();
  text += ReadToEnd(fd);
  EXPECT_THAT(text, Not(HasSubstr("0\r\n\r\n")));
}

TEST_F(PassageTest, WithoutAServerItIsABadGateway) {
  behind_.reset();
  EXPECT_THAT(Ask(Get("/a")), StartsWith("HTTP/1.1 502 "));
  path_ += std::string(200, 'x');
  EXPECT_THAT(Ask(Get("/a")), HasSubstr("its path is too long"));
}

TEST_F(PassageTest, AServerThatDoesNotAnswerIsNotWaitedForLong) {
  patience_ = std::chrono::milliseconds(20);
  path_ += "2";
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, (path_ + ".b").c_str(), sizeof(name.sun_path) - 1);
  const os::UniqueFd silent(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(silent.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(silent.get(), 5), 0);
  EXPECT_THAT(Ask(Get("/a")), StartsWith("HTTP/1.1 504 "));
}

TEST_F(PassageTest, HeadGetsTheLength) {
  const std::string answer = Ask("HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 16\r\n"));
  EXPECT_THAT(answer, Not(HasSubstr("you asked")));
}

// Bytes that are no HTTP, from whatever listens there.
TEST_F(PassageTest, ABadAnswerIsABadGateway) {
  path_ += "3";
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, (path_ + ".b").c_str(), sizeof(name.sun_path) - 1);
  const os::UniqueFd odd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ASSERT_EQ(bind(odd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(odd.get(), 5), 0);
  const os::UniqueFd fd = Come();
  Write(fd, Get("/a"));
  std::optional<os::UniqueFd> taken;
  ASSERT_TRUE(Await([&] {
    const int got = accept4(odd.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (got >= 0) taken.emplace(got);
    return taken.has_value();
  }));
  Write(*taken, "what is this?\r\n\r\n");
  std::string text;
  EXPECT_TRUE(
      Await([&] { return Read(fd, text) && absl::StrContains(text, "cannot be reached"); }));
  EXPECT_THAT(text, StartsWith("HTTP/1.1 502 "));
}

}  // namespace
}  // namespace dtrain::http
