// SPDX-License-Identifier: Apache-2.0
#include "common/http/server.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/component/http/harness.h"

namespace dtrain::http {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using ServerTest = HttpTest;

TEST_F(ServerTest, AnswersOneRequestAfterTheOther) {
  Listen();
  const std::string get = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string answer = Talk(get + "GET /b?c=d HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, AllOf(HasSubstr("you asked for /a"), HasSubstr("you asked for /b")));
  EXPECT_THAT(answer, AllOf(HasSubstr("X-Content-Type-Options: nosniff"),
                            HasSubstr("X-Frame-Options: DENY"), HasSubstr("no-store")));
  EXPECT_THAT(answer,
              AllOf(HasSubstr("Content-Security-Policy: default-src 'none'; frame-ancestors "
                              "'none'\r\n"),
                    HasSubstr("Referrer-Policy: no-referrer\r\n"),
                    HasSubstr("Cross-Origin-Opener-Policy: same-origin\r\n"),
                    HasSubstr("Cross-Origin-Resource-Policy: same-origin\r\n")));
  EXPECT_THAT(asked_, ElementsAre("/a", "/b"));
}

TEST_F(ServerTest, HeadHasNoBody) {
  Listen();
  const std::string answer = Talk("HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, AllOf(HasSubstr("200 OK"), HasSubstr("Content-Length: 16")));
  EXPECT_THAT(answer, Not(HasSubstr("you asked")));
}

// I11, I14, I16: each is refused and the handler never sees it.
TEST_F(ServerTest, RefusesWhatIsNoPlainGet) {
  Listen();
  struct Case {
    std::string request;
    int status;
  };
  const std::string host = "Host: x\r\n";
  const std::vector<Case> cases = {
      {"GET /a HTTP/1.1\nHost: x\n\n", 400},
      {"GET /a\r\n\r\n", 400},
      {std::string("GET /a HTTP/1.1\r\nX: a\0b\r\n\r\n", 27), 400},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n", 400},
      {"GET /a HTTP/9.9\r\n" + host + "\r\n", 400},
      {"GET /a HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n", 400},
      {"GET /a HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {"GET /../etc/shadow HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /%2e%2e/etc/shadow HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /a HTTP/1.1\r\n" + host + "Content-Length: 5\r\n\r\nhello", 413},
      {"GET /a HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413},
      {"GET /a HTTP/1.1\r\n" + host + "X: " + std::string(9000, 'x') + "\r\n\r\n", 431},
      {"POST /a HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n", 405},
      {"DELETE /a HTTP/1.1\r\n" + host + "\r\n", 405},
      {"BREW /a HTTP/1.1\r\n" + host + "\r\n", 405},
      {"GET /a HTTP/1.1\r\n" + host + "Origin: http://evil.example\r\n\r\n", 403},
      {"POST /a HTTP/1.1\r\n" + host + "Origin: null\r\nContent-Length: 3\r\n\r\na=b", 403},
      {"GET /a HTTP/1.1\r\n" + host + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 403},
  };
  for (const Case& one : cases) {
    EXPECT_THAT(Talk(one.request), StartsWith(absl::StrCat("HTTP/1.1 ", one.status, " ")))
        << one.request;
  }
  EXPECT_THAT(asked_, IsEmpty());
}

// Only where the handler wants it, and never with a body.
TEST_F(ServerTest, PostsReachAHandlerThatWantsThem) {
  Listen();
  server_.reset();
  std::vector<bool> posts;
  auto server = Server::ListenUnixForPosts(loop_, path_, [&](const Target& target, Reply reply) {
    posts.push_back(target.is_post);
    Response response;
    response.body = "did " + target.path;
    reply(std::move(response));
  });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Talk("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("did /a")));
  EXPECT_THAT(Talk("GET /a HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(posts, ElementsAre(true, false));
  EXPECT_THAT(Talk("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na=b"),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(Talk("POST /a HTTP/1.1\r\nHost: x\r\nOrigin: null\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(Talk("PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 405 "));
  EXPECT_EQ(posts.size(), 2u);
}

TEST_F(ServerTest, SaysNothingToWhoSaysNothing) {
  Listen();
  EXPECT_EQ(Talk(""), "");
  EXPECT_EQ(Talk("GET /a HTT"), "");
  EXPECT_THAT(asked_, IsEmpty());
}

// I9
TEST_F(ServerTest, ARequestThatTakesTooLongIsCutOff) {
  Limits limits;
  limits.request = std::chrono::milliseconds(50);
  Listen(limits);
  os::UniqueFd slow = Dial();
  Write(slow, "GET /a HTTP/1.1\r\nX: ");
  EXPECT_EQ(ReadToEnd(slow), "");
  EXPECT_EQ(ReadToEnd(Dial()), "");
}

// I13
TEST_F(ServerTest, HasRoomForSoManyConnectionsAndForOthersLater) {
  Limits limits;
  limits.connections = 4;
  Listen(limits);
  std::vector<os::UniqueFd> held;
  for (int i = 0; i < 4; ++i) held.push_back(Dial());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ReadToEnd(Dial()), "");
  held.clear();
  const std::string get = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_TRUE(Await([&] { return absl::StrContains(Talk(get), "you asked for /a"); }));
}

// I18: by the kernel's word, where the file's mode would let them in.
TEST_F(ServerTest, ProcessesOfOthersAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  Listen();
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, path_.c_str(), sizeof(name.sun_path) - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0) _exit(3);
    constexpr char kRequest[] = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
    (void)!send(fd, kRequest, sizeof(kRequest) - 1, MSG_NOSIGNAL);
    char byte;
    _exit(recv(fd, &byte, 1, 0) > 0 ? 4 : 0);
  }
  int status = -1;
  ASSERT_TRUE(Await([&] { return waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(ServerTest, TheSocketIsPrivateAndGoesAwayWithTheServer) {
  Listen();
  struct stat status;
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// H11
TEST_F(ServerTest, APathThatIsTooLongIsToldWithTheLimit) {
  auto server = Server::ListenUnix(loop_, dir_ + "/" + std::string(200, 'x'),
                                   [](const Target&) { return Response(); });
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("there is room for 103"));
}

TEST_F(ServerTest, AnOldSocketIsNotTakenOver) {
  Listen();
  auto second = Server::ListenUnix(loop_, path_, [](const Target&) { return Response(); });
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("File exists"));
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(ServerTest, TellsWhenNoAnswerIsOnItsWay) {
  Listen();
  bool idle = false;
  server_->WhenIdle([&] { idle = true; });
  EXPECT_TRUE(idle);
}

}  // namespace
}  // namespace dtrain::http
