// SPDX-License-Identifier: Apache-2.0
// Ranks that write the same file and never talk to each other.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

class LonersTest : public ShepherdTest {
 protected:
  LonersTest() {
    char name[] = "/tmp/dtrain-loners-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~LonersTest() override { std::filesystem::remove_all(folder_); }
  // Two ranks, in a folder of their own.
  void Run(const std::string& script) {
    v1::JobPart part = Part(2, {"/usr/bin/python3", "-c",
                                "import os, socket, sys, time\n"
                                "rank = os.environ['RANK']\n" +
                                    script});
    part.mutable_programs(0)->set_working_directory(folder_);
    Start(std::move(part));
    ASSERT_TRUE(UntilFinished());
  }
  // Before Linux 5.6 nobody can see whether they have sockets.
  static bool IsTold() {
    constexpr long kPidfdGetfd = 438;
    return syscall(kPidfdGetfd, -1, -1, 0) >= 0 || errno != ENOSYS;
  }
  bool IsToldOf(const std::string& text) const {
    return std::any_of(warnings_.begin(), warnings_.end(),
                       [&](const std::string& each) { return absl::StrContains(each, text); });
  }
  // For a failure: the warnings, and how the ranks ended, as only successes are warned of.
  std::string Seen() const {
    std::string out = absl::StrCat("warnings: ", absl::StrJoin(warnings_, "; "));
    for (const auto& [rank, end] : exits_) {
      absl::StrAppend(&out, "\nrank ", rank, ": ", end.ShortDebugString());
    }
    return out;
  }
  std::string folder_;
};

TEST_F(LonersTest, OneFileOfTwoRanksIsTold) {
  Run("f = open('checkpoint', 'wb')\n"
      "f.write(bytes(10)); f.flush()\n"
      "time.sleep(2)\n");
  EXPECT_EQ(IsToldOf(absl::StrCat("ranks 0 and 1 both wrote ", folder_,
                                  "/checkpoint, and no rank here was seen to talk")),
            IsTold());
}

TEST_F(LonersTest, AlsoIfAHelperLivesLonger) {
  Run("import subprocess\n"
      "f = open('checkpoint', 'wb')\n"
      "f.write(bytes(10)); f.flush()\n"
      "time.sleep(1)\n"
      "subprocess.Popen(['sleep', '2'])\n");
  EXPECT_EQ(IsToldOf("both wrote"), IsTold());
}

// As a checkpoint of each epoch: open for a moment, many times. The log is each rank's own, and
// leads to the folder: 'begun' is made in the one that is watched from the start.
TEST_F(LonersTest, WhatIsOpenForAMomentOnlyIsSeenToo) {
  Run("os.makedirs('out', exist_ok=True)\n"
      "log = open('out/log' + rank, 'wb'); log.write(b'x'); log.flush()\n"
      "open('begun' + rank, 'wb').close()\n"
      "for epoch in range(300):\n"
      "    with open('out/model', 'wb') as f:\n"
      "        f.write(bytes(1000000)); f.flush(); time.sleep(0.005); f.write(b'end')\n"
      "    time.sleep(0.005)\n");
  EXPECT_EQ(IsToldOf("both wrote"), IsTold()) << Seen();
}

TEST_F(LonersTest, RanksThatTalkMayWriteWhatTheyLike) {
  Run("s = socket.socket()\n"
      "f = open('checkpoint', 'wb')\n"
      "f.write(bytes(10)); f.flush()\n"
      "time.sleep(1.5)\n");
  EXPECT_FALSE(IsToldOf("both wrote"));
}

}  // namespace
}  // namespace dtrain::shepherd
