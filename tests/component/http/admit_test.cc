// SPDX-License-Identifier: Apache-2.0
// Connections that somebody else has accepted, and answers that take their time.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/os/fd.h"
#include "tests/component/http/harness.h"

namespace dtrain::http {
namespace {

using testing::HasSubstr;

class AdmitTest : public HttpTest {
 protected:
  AdmitTest() { server_ = Server::MakeWithoutDoor(loop_, limits_); }
  ~AdmitTest() override { server_.reset(); }  // it counts here whom it closes

  // The client's end; none when it was not let in.
  os::UniqueFd Admit(const std::string& origin, AsyncHandler handler,
                     std::vector<std::string> hosts = {}, bool is_kept = false) {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    if (!server_->Admit(loop::StrangersSocket(std::move(pair->first)), origin, std::move(hosts),
                        std::move(handler), is_kept, [this] { ++over_; })) {
      return {};
    }
    return std::move(pair->second);
  }
  static AsyncHandler Saying(const std::string& text) {
    return [text](const Target&, Reply reply) {
      Response response;
      response.body = text;
      reply(std::move(response));
    };
  }
  std::string Ask(const os::UniqueFd& fd) {
    Write(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    return Hear(fd);
  }
  std::string Hear(const os::UniqueFd& fd) {
    std::string got;
    EXPECT_TRUE(Await([&] {
      char buffer[4096];
      const ssize_t n = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n > 0) got.append(buffer, static_cast<size_t>(n));
      return !got.empty();
    }));
    return got;
  }

  Limits limits_{.of_one = 2};
  int over_ = 0;
};

TEST_F(AdmitTest, EachHasItsOwnHandler) {
  const os::UniqueFd alice = Admit("alice", Saying("for alice"));
  const os::UniqueFd bob = Admit("bob", Saying("for bob"));
  EXPECT_THAT(Ask(bob), HasSubstr("for bob"));
  EXPECT_THAT(Ask(alice), HasSubstr("for alice"));
}

TEST_F(AdmitTest, OneOriginDoesNotTakeAllTheRoom) {
  os::UniqueFd first = Admit("alice", Saying("a"));
  const os::UniqueFd second = Admit("alice", Saying("a"));
  EXPECT_FALSE(Admit("alice", Saying("a")));
  const os::UniqueFd bob = Admit("bob", Saying("b"));
  EXPECT_TRUE(bob);
  first.Reset();
  EXPECT_TRUE(Await([&] { return over_ == 1; }));
  EXPECT_TRUE(Admit("alice", Saying("a")));
}

class AdmitFewTest : public AdmitTest {
 protected:
  AdmitFewTest() {
    server_ = Server::MakeWithoutDoor(loop_, {.connections = 4, .kept = 2, .of_one = 2});
  }
};

TEST_F(AdmitFewTest, SomePlacesAreKept) {
  std::vector<os::UniqueFd> held;
  for (const char* of : {"alice", "bob"}) {
    held.push_back(Admit(of, Saying("x")));
    EXPECT_TRUE(held.back());
  }
  EXPECT_FALSE(Admit("carol", Saying("x")));
  for (int i = 0; i < 2; ++i) {
    held.push_back(Admit("root", Saying("for root"), {}, /*is_kept=*/true));
    ASSERT_TRUE(held.back());
  }
  EXPECT_THAT(Ask(held.back()), HasSubstr("for root"));
  EXPECT_FALSE(Admit("ops", Saying("x"), {}, /*is_kept=*/true));
}

TEST_F(AdmitTest, AnAnswerMayTakeItsTime) {
  Reply held;
  const os::UniqueFd fd = Admit("a", [&](const Target&, Reply reply) { held = std::move(reply); });
  Write(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(Await([&] { return held != nullptr; }));
  Response response;
  response.body = "at last";
  held(std::move(response));
  EXPECT_THAT(Hear(fd), HasSubstr("at last"));
}

TEST_F(AdmitTest, AnAnswerForWhoIsGoneIsDropped) {
  Reply held;
  os::UniqueFd fd = Admit("a", [&](const Target&, Reply reply) { held = std::move(reply); });
  Write(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(Await([&] { return held != nullptr; }));
  fd.Reset();
  held(Response());
  EXPECT_TRUE(Await([&] { return over_ == 1; }));
}

TEST_F(AdmitTest, AServerThatGoesClosesWhoIsHere) {
  Reply held;
  const os::UniqueFd fd = Admit("a", [&](const Target&, Reply reply) { held = std::move(reply); });
  Write(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(Await([&] { return held != nullptr; }));
  server_.reset();
  held(Response());
  char byte;
  EXPECT_TRUE(Await([&] { return recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0; }));
}

// I15: over TLS too, where a browser may hold a certificate.
TEST_F(AdmitTest, TheHostMustBeOneOfOurs) {
  const std::vector<std::string> ours = {"localhost", "gpu01", "gpu01.lab", "10.0.0.1", "fe80::1"};
  int asked = 0;
  const auto status = [&](const std::string& host) {
    const os::UniqueFd fd = Admit(absl::StrCat(++asked), Saying("x"), ours);
    Write(fd, "GET / HTTP/1.1\r\n" + host + "\r\n");
    return Hear(fd).substr(9, 3);
  };
  for (const std::string host : {"gpu01", "GPU01.lab:9797", "10.0.0.1", "10.0.0.1:1", "[fe80::1]",
                                 "[FE80:0::0:1]:9797", "localhost:80"}) {
    EXPECT_EQ(status("Host: " + host + "\r\n"), "200") << host;
  }
  for (const std::string host :
       {"evil.example", "gpu01.evil.example", "gpu02", "10.0.0.2", "10.0.0.10", "[fe80::2]",
        "fe80::1", "[fe80::1", "[gpu01]", ":9797", "", "gpu01:9797:1", "gpu01 evil.example"}) {
    EXPECT_EQ(status("Host: " + host + "\r\n"), "403") << host;
  }
  EXPECT_EQ(status(""), "403");
}

TEST(ParseListening, TakesAPortOrAnAddressWithOne) {
  EXPECT_EQ(ParseListening("8080")->ip, "127.0.0.1");
  EXPECT_EQ(ParseListening("8080")->port, 8080);
  EXPECT_EQ(ParseListening("[::1]:0")->ip, "::1");
  for (const char* bad : {"", "x", "1.2.3.4", "1.2.3.4:", ":", "70000", "-1"}) {
    EXPECT_FALSE(ParseListening(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace dtrain::http
