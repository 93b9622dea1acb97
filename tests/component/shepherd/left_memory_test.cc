// SPDX-License-Identifier: Apache-2.0
// Shared memory that workers have made and not removed.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "common/os/process_tree.h"
#include "common/os/shared_memory.h"
#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LeftMemoryTest : public ShepherdTest {
 protected:
  LeftMemoryTest() : prefix_(absl::StrCat("test", getpid(), "\n")) {}
  ~LeftMemoryTest() override {
    for (const os::NamedSharedMemory& each : Objects()) {
      (void)unlink(absl::StrCat("/dev/shm/", each.name).c_str());
    }
  }
  // Python with make(name, bytes), which keeps what it makes mapped, and the test's prefix of
  // names.
  std::vector<std::string> Python(const std::string& script) {
    return {"/usr/bin/python3", "-c",
            "import mmap, os, signal, sys, time\n"
            "kept = []\n"
            "def make(name, size=1000000):\n"
            "    fd = os.open('/dev/shm/' + sys.argv[1] + name, os.O_RDWR | os.O_CREAT, 0o600)\n"
            "    os.ftruncate(fd, size)\n"
            "    kept.append(mmap.mmap(fd, size))\n"
            "    kept[-1].write(bytes(size))\n"
            "    os.close(fd)\n"
            "def ready():\n"
            "    print('ready', flush=True)\n"
            "    time.sleep(600)\n" +
                script,
            prefix_};
  }
  std::vector<os::NamedSharedMemory> Objects() const {
    std::vector<os::NamedSharedMemory> all = os::ListSharedMemory(geteuid());
    std::erase_if(all, [&](const auto& each) { return each.name.rfind(prefix_, 0) != 0; });
    return all;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& each : Objects()) names.push_back(each.name.substr(prefix_.size()));
    std::sort(names.begin(), names.end());
    return names;
  }
  bool UntilReady() {
    return Until([this] { return Out().find("ready\n") != std::string::npos; });
  }
  // The shepherd has looked.
  bool UntilRecorded(size_t objects) {
    return Until([&] {
      for (const auto& record : os::ReadSharedMemoryRecords(geteuid())) {
        const bool its =
            record.path.find(absl::StrCat("dtrain-left.", shepherd_pid_, ".")) != std::string::npos;
        if (its && record.objects.size() == objects) return true;
      }
      return false;
    });
  }
  static bool HasRecord(pid_t shepherd) {
    for (const auto& record : os::ReadSharedMemoryRecords(geteuid())) {
      if (record.path.find(absl::StrCat("dtrain-left.", shepherd, ".")) != std::string::npos) {
        return true;
      }
    }
    return false;
  }
  const std::string prefix_;
};

TEST_F(LeftMemoryTest, OfAWorkerThatWeKillItIsRemoved) {
  (void)close(open(absl::StrCat("/dev/shm/", prefix_, "before").c_str(), O_CREAT | O_RDWR, 0600));
  Start(Part(1, Python("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                       "make('before'); make('a\\nb'); make('sem.c')\n"
                       "ready()")));
  ASSERT_TRUE(UntilReady());
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(warnings_,
              Contains("removed from /dev/shm what killed processes of the job had left: "
                       "2 objects, 2 MB"));
  EXPECT_THAT(Names(), ElementsAre("before"));
  EXPECT_FALSE(HasRecord(shepherd_pid_));
}

TEST_F(LeftMemoryTest, OfAWorkerThatSomebodyKillsLikewise) {
  Start(Part(1, Python("make('a'); ready()")));
  ASSERT_TRUE(UntilReady());
  ASSERT_TRUE(UntilRecorded(1));
  ASSERT_EQ(kill(static_cast<pid_t>(started_->workers(0).pid()), SIGKILL), 0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_FALSE(HasRecord(shepherd_pid_));
}

// A checkpoint. The shepherd has seen it while it was open.
TEST_F(LeftMemoryTest, AFileThatAWorkerHasWrittenStays) {
  v1::JobPart part = Part(1, Python("path = '/dev/shm/' + sys.argv[1]\n"
                                    "file = open(path + 'tmp', 'wb')\n"
                                    "file.write(bytes(1000000)); file.flush()\n"
                                    "make('a')\n"
                                    "sys.stdin.readline()\n"
                                    "file.close(); os.rename(path + 'tmp', path + 'checkpoint')\n"
                                    "ready()"));
  part.mutable_workers(0)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  Start(part);
  ASSERT_TRUE(Until([this] { return HasRecord(shepherd_pid_); }));
  Stdin(0, "\n", false);
  ASSERT_TRUE(UntilReady());
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(Names(), ElementsAre("checkpoint"));
  EXPECT_THAT(warnings_,
              Contains("removed from /dev/shm what killed processes of the job had left: "
                       "1 object, 1 MB"));
  EXPECT_THAT(warnings_, Contains(HasSubstr("left in /dev/shm: 1 object, 1 MB, which ranks had ")));
  EXPECT_FALSE(HasRecord(shepherd_pid_)) << "reap would remove it";
}

TEST_F(LeftMemoryTest, OfAWorkerThatEndsItIsOnlyTold) {
  Start(Part(1, Python("make('a'); print('ready', flush=True); sys.stdin.read(); os._exit(0)")));
  ASSERT_TRUE(UntilFinished());
  // It was open for long enough, or not.
  if (Out() == "ready\n" && !warnings_.empty()) {
    EXPECT_THAT(warnings_, ElementsAre("left in /dev/shm: 1 object, 1 MB, nobody uses them; "
                                       "dtrain-agent reap removes them"));
  }
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(LeftMemoryTest, WhatSomebodyElseUsesOrHasMadeStays) {
  const std::string used = absl::StrCat("/dev/shm/", prefix_, "used");
  Start(Part(1, Python("make('used'); make('swapped'); make('read')\n"
                       "os.rename('/dev/shm/' + sys.argv[1] + 'swapped',"
                       " '/dev/shm/' + sys.argv[1] + 'gone')\n"
                       "ready()")));
  ASSERT_TRUE(UntilReady());
  ASSERT_TRUE(UntilRecorded(3));
  const os::UniqueFd fd(open(used.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd);
  // Not the worker's, though it has a name of one of its objects, and though it reads it.
  const std::string swapped = absl::StrCat("/dev/shm/", prefix_, "swapped");
  (void)close(open(swapped.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(Names(), ElementsAre("swapped", "used"));
  EXPECT_TRUE(HasRecord(shepherd_pid_)) << "somebody must look at it later";
  for (const auto& record : os::ReadSharedMemoryRecords(geteuid())) {
    if (record.path.find(absl::StrCat(".", shepherd_pid_, ".")) != std::string::npos) {
      EXPECT_EQ(record.objects.size(), 1u);
      (void)unlink(record.path.c_str());
    }
  }
}

// Another job of the same user has made it, and has just now closed it.
TEST_F(LeftMemoryTest, WhatAnotherJobHasAClaimToStays) {
  Start(Part(1, Python("make('a'); ready()")));
  ASSERT_TRUE(UntilReady());
  ASSERT_TRUE(UntilRecorded(1));
  const os::SharedMemoryRecord other(os::ProcessMark(getpid()));
  other.Write({Objects()[0].object});
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  other.Write({});
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(LeftMemoryTest, TheRecordOutlivesAShepherdThatIsKilled) {
  Start(Part(1, Python("make('a'); ready()")));
  ASSERT_TRUE(UntilReady());
  ASSERT_TRUE(UntilRecorded(1));
  const pid_t shepherd = shepherd_pid_;
  ASSERT_TRUE(os::SendSignal(shepherd_.get(), SIGKILL).ok());
  (void)os::WaitAndReap(shepherd_.get());
  shepherd_.Reset();
  bool seen = false;
  for (const auto& record : os::ReadSharedMemoryRecords(geteuid())) {
    if (record.path.find(absl::StrCat("dtrain-left.", shepherd, ".")) == std::string::npos)
      continue;
    seen = true;
    EXPECT_FALSE(record.lives);
    EXPECT_EQ(record.objects, std::set<os::SharedMemory>{Objects()[0].object});
    (void)unlink(record.path.c_str());
  }
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace dtrain::shepherd
