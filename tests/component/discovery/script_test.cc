// SPDX-License-Identifier: Apache-2.0
// The user's --discover: real commands, run by a real shell.
#include "launcher/discovery/script.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/unique_fd.h"

namespace dtrain::discovery {
namespace {

using ::testing::HasSubstr;

class ScriptTest : public ::testing::Test {
 protected:
  // What a run of it finds.
  absl::StatusOr<hosts::HostList> Found(Script& script) {
    std::optional<absl::StatusOr<hosts::HostList>> found;
    script.Run([&](absl::StatusOr<hosts::HostList> list) { found = std::move(list); });
    const TimePoint end = Clock::now() + std::chrono::seconds(20);
    while (!found.has_value()) {
      if (loop_.context().run_one_until(end) == 0) return absl::DeadlineExceededError("the test");
    }
    return *std::move(found);
  }
  absl::StatusOr<hosts::HostList> Found(const std::string& command) {
    Script script(loop_, command, std::nullopt);
    return Found(script);
  }
  std::string WhyNot(const std::string& command) {
    const auto found = Found(command);
    EXPECT_FALSE(found.ok());
    return found.ok() ? "" : found.status().ToString();
  }

  loop::Loop loop_;
};

// Tells when whoever holds it open for writing is gone.
class Fifo {
 public:
  Fifo() {
    char folder[] = "/tmp/dtrain-test-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    EXPECT_EQ(mkfifo(path().c_str(), 0600), 0);
    end_.Reset(open(path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    EXPECT_GE(end_.get(), 0);
  }
  ~Fifo() {
    unlink(path().c_str());
    rmdir(folder_.c_str());
  }
  std::string path() const { return absl::StrCat(folder_, "/fifo"); }
  // The next byte; absent: all writers are gone.
  std::optional<char> Next() {
    pollfd ready{end_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&ready, 1, 20000), 1);
    char byte;
    return read(end_.get(), &byte, 1) == 1 ? std::optional<char>(byte) : std::nullopt;
  }

 private:
  std::string folder_;
  os::UniqueFd end_;
};

TEST_F(ScriptTest, WhatItPrintsAreTheHosts) {
  Script script(loop_, "printf 'gpu01:2\\n\\ngpu02\\n'", 3);
  const auto found = Found(script);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->entries.size(), 2u);
  EXPECT_EQ(found->entries[0].host, "gpu01");
  EXPECT_EQ(found->entries[0].slots, 2u);
  EXPECT_EQ(found->entries[1].host, "gpu02");
  EXPECT_EQ(found->entries[1].slots, 3u);
}

TEST_F(ScriptTest, NothingPrintedIsNoHostAndNoError) {
  const auto found = Found("true");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->entries.empty());
}

TEST_F(ScriptTest, EachRunIsAnew) {
  Fifo count;
  // As many hosts as the file has lines.
  const std::string file = count.path() + ".runs";
  Script script(
      loop_,
      absl::StrCat("echo >>", file, "; i=0; while read x; do echo h$i; i=$((i+1)); done <", file),
      std::nullopt);
  for (size_t runs = 1; runs <= 3; ++runs) {
    const auto found = Found(script);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->entries.size(), runs);
  }
  unlink(file.c_str());
}

TEST_F(ScriptTest, AFailureIsToldWithItsLastWords) {
  const std::string why =
      WhyNot("echo gpu01; echo first >&2; echo 'no answer from the cloud' >&2; exit 3");
  EXPECT_THAT(why, HasSubstr("exited with code 3: no answer from the cloud"));
  EXPECT_THAT(WhyNot("kill -9 $$"), HasSubstr("was killed by signal 9"));
  EXPECT_THAT(WhyNot("/no/such/program"), HasSubstr("exited with code 127"));
}

TEST_F(ScriptTest, ALineThatIsNoHostIsNamed) {
  EXPECT_THAT(WhyNot("echo gpu01; echo gpu02:many"),
              HasSubstr("printed a line that is not a host"));
  EXPECT_THAT(WhyNot("echo gpu01; echo gpu02:many"), HasSubstr("gpu02:many"));
}

TEST_F(ScriptTest, OneThatPrintsWithoutEndIsKilled) {
  Fifo held;
  EXPECT_THAT(WhyNot(absl::StrCat("exec 3>", held.path(), "; yes")),
              HasSubstr("printed more than 4 MiB"));
  EXPECT_EQ(held.Next(), std::nullopt);
}

// It has ended: what it started would print into nothing for ever.
TEST_F(ScriptTest, WhatItLeavesBehindIsKilled) {
  Fifo held;
  const auto found = Found(absl::StrCat("exec 3>", held.path(), "; sleep 600 & echo gpu01"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(held.Next(), std::nullopt);
}

TEST_F(ScriptTest, ItsEndIsTheCommands) {
  Fifo held;
  {
    Script script(loop_, absl::StrCat("exec 3>", held.path(), "; echo >&3; sleep 600"),
                  std::nullopt);
    script.Run([](const absl::StatusOr<hosts::HostList>&) { FAIL(); });
    EXPECT_EQ(held.Next(), '\n');
  }
  EXPECT_EQ(held.Next(), std::nullopt);
}

TEST(AwaitHostsTest, ItsFirstHostsEndTheWait) {
  Fifo folder;
  const std::string file = folder.path() + ".ran";
  // None the first time.
  const auto hosts =
      AwaitHosts(absl::StrCat("if [ -e ", file, " ]; then echo gpu01:4; else touch ", file, "; fi"),
                 std::nullopt, std::chrono::seconds(60));
  unlink(file.c_str());
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  ASSERT_EQ(hosts->entries.size(), 1u);
  EXPECT_EQ(hosts->entries[0].slots, 4u);
}

TEST(AwaitHostsTest, NoHostInTimeIsToldWithTheCommand) {
  const auto hosts = AwaitHosts("true # nothing", std::nullopt, Duration::zero());
  EXPECT_TRUE(absl::IsDeadlineExceeded(hosts.status())) << hosts.status();
  EXPECT_THAT(hosts.status().ToString(), HasSubstr("\"true # nothing\" has printed no host"));
}

}  // namespace
}  // namespace dtrain::discovery
