// SPDX-License-Identifier: Apache-2.0
// On TCP: who sends the token, and comes by a loopback name.
#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log/log.h"
#include "tests/component/http/harness.h"

namespace dtrain::http {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class TokenTest : public HttpTest {
 protected:
  TokenTest() {
    Limits limits;
    limits.wrong_token = std::chrono::milliseconds(1);
    limits.tell_again = std::chrono::milliseconds(20);
    auto server = Server::ListenTcp(
        loop_, "127.0.0.1", 0, "s3cret", [this](const Target& t) { return Handle(t); }, limits);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::string Ask(const std::string& path, const std::string& headers) {
    const std::string port = server_->address().substr(server_->address().rfind(':') + 1);
    int number = 0;
    EXPECT_TRUE(absl::SimpleAtoi(port, &number));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(number));
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    os::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    Write(fd, absl::StrCat("GET ", path, " HTTP/1.1\r\n", headers, "\r\n"));
    shutdown(fd.get(), SHUT_WR);
    return ReadToEnd(fd);
  }
};

constexpr char kRight[] = "Authorization: Bearer s3cret\r\n";

TEST_F(TokenTest, IsAskedForOnEveryPathButHealthzAndThePage) {
  const std::string host = "Host: localhost\r\n";
  for (const char* path : {"//", "/v1/jobs", "/v1/jobs/x/ranks/0/log", "/metrics", "/healthz/"}) {
    EXPECT_THAT(Ask(path, host), StartsWith("HTTP/1.1 401 ")) << path;
    EXPECT_THAT(Ask(path, host + kRight), StartsWith("HTTP/1.1 200 ")) << path;
  }
  for (const char* path : {"/healthz", "/", "/?a=b"}) {
    EXPECT_THAT(Ask(path, host), StartsWith("HTTP/1.1 200 ")) << path;
  }
}

// What a browser says of who makes a request. Another port of this machine is a "same-site".
TEST_F(TokenTest, PagesOfOtherSitesAreRefused) {
  const std::string good = absl::StrCat("Host: localhost\r\n", kRight);
  for (const char* site : {"cross-site", "same-site", "x", "same-origin, cross-site"}) {
    const std::string header = absl::StrCat(good, "Sec-Fetch-Site: ", site, "\r\n");
    for (const char* path : {"/v1/jobs", "/metrics", "/healthz"}) {
      EXPECT_THAT(Ask(path, header), StartsWith("HTTP/1.1 403 ")) << path << " " << site;
    }
    EXPECT_THAT(Ask("/", header), StartsWith("HTTP/1.1 200 ")) << site;
  }
  for (const char* site : {"same-origin", "none"}) {
    EXPECT_THAT(Ask("/v1/jobs", absl::StrCat(good, "Sec-Fetch-Site: ", site, "\r\n")),
                StartsWith("HTTP/1.1 200 "))
        << site;
  }
}

// Nor is the page a way around it.
TEST_F(TokenTest, ThePageIsGivenToNoOtherHostAndNoOrigin) {
  EXPECT_THAT(Ask("/", "Host: evil.example\r\n"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(Ask("/", "Host: localhost\r\nOrigin: http://evil.example\r\n"),
              StartsWith("HTTP/1.1 403 "));
}

TEST_F(TokenTest, AWrongOneIsRefused) {
  for (const char* wrong : {"Bearer s3cre", "Bearer s3cret!", "Bearer S3CRET", "Bearer ", "s3cret",
                            "Basic s3cret", "Bearer s3cret, Bearer s3cret"}) {
    EXPECT_THAT(Ask("/v1/jobs", absl::StrCat("Host: localhost\r\nAuthorization: ", wrong, "\r\n")),
                StartsWith("HTTP/1.1 401 "))
        << wrong;
  }
}

// I23: each is counted in a line, also when nobody guesses on.
TEST_F(TokenTest, AllWrongOnesAreTold) {
  log::Init("test", log::Level::kWarning);
  testing::internal::CaptureStderr();
  constexpr int kGuesses = 20;
  for (int i = 0; i < kGuesses; ++i) {
    Ask("/v1/jobs", absl::StrCat("Host: localhost\r\nAuthorization: Bearer ", i, "\r\n"));
  }
  int told = 0;
  EXPECT_TRUE(Await([&] {
    const std::string lines = testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
    for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      constexpr absl::string_view kLine = "refused HTTP with a wrong token: ";
      const size_t at = line.find(kLine);
      EXPECT_NE(at, line.npos) << line;
      line.remove_prefix(std::min(line.size(), at + kLine.size()));
      int count = 0;
      EXPECT_TRUE(absl::SimpleAtoi(line.substr(0, line.find(' ')), &count)) << line;
      told += count;
    }
    return told >= kGuesses;
  })) << told;
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(told, kGuesses);
}

// I15
TEST_F(TokenTest, TheHostMustBeALoopbackName) {
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8080", "[::1]:1"}) {
    EXPECT_THAT(Ask("/v1/jobs", absl::StrCat("Host: ", host, "\r\n", kRight)),
                StartsWith("HTTP/1.1 200 "))
        << host;
  }
  for (const char* host :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", ""}) {
    EXPECT_THAT(Ask("/v1/jobs", absl::StrCat("Host: ", host, "\r\n", kRight)),
                StartsWith("HTTP/1.1 403 "))
        << host;
    EXPECT_THAT(Ask("/healthz", absl::StrCat("Host: ", host, "\r\n")), StartsWith("HTTP/1.1 403 "))
        << host;
  }
  EXPECT_THAT(Ask("/v1/jobs", kRight), StartsWith("HTTP/1.1 403 "));
}

TEST_F(TokenTest, OnlyLoopbackAddressesAreBound) {
  for (const char* ip : {"0.0.0.0", "::", "10.0.0.1", "localhost", ""}) {
    auto server = Server::ListenTcp(loop_, ip, 0, "s", [](const Target&) { return Response(); });
    EXPECT_TRUE(absl::IsInvalidArgument(server.status())) << ip << ": " << server.status();
  }
}

}  // namespace
}  // namespace dtrain::http
