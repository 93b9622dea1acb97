// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <fstream>

#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

// A memory cgroup with a small limit, v1 or v2, whichever this machine can make.
class MemoryTest : public ShepherdTest {
 protected:
  MemoryTest() {
    for (auto [root, limit] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                               std::pair("/sys/fs/cgroup", "memory.max")}) {
      std::string path = absl::StrCat(root, "/dtrain-memory-", job_id_);
      if (mkdir(path.c_str(), 0755) != 0) continue;
      path_ = path;
      std::ofstream(path + "/" + limit) << (256 << 20) << std::flush;
      std::ofstream(path + "/memory.swap.max") << 0 << std::flush;
      usable_ = access((path + "/" + limit).c_str(), F_OK) == 0;
      if (usable_) break;
      rmdir(path.c_str());
    }
  }
  ~MemoryTest() override {
    for (int i = 0; i < 500 && !path_.empty() && rmdir(path_.c_str()) != 0; ++i) {
      poll(nullptr, 0, 10);
    }
  }
  void Run(v1::JobPart part) {
    if (!usable_) GTEST_SKIP() << "no memory cgroup can be made here";
    std::string procs = path_ + "/cgroup.procs";
    Start(std::move(part), [procs] {
      int fd = open(procs.c_str(), O_WRONLY);
      if (write(fd, "0", 1) != 1) _exit(98);
      close(fd);
    });
  }
  std::string path_;
  bool usable_ = false;
};

// D15
TEST_F(MemoryTest, AKillByTheKernelForMemoryIsToldFromAnyOther) {
  v1::JobPart part = Shell(2,
                           "if [ $RANK = 0 ]; then exec tail /dev/zero; fi\n"
                           "read -r x; kill -KILL $$");
  part.mutable_workers(1)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  Run(part);
  if (IsSkipped()) return;
  ASSERT_TRUE(Until([&] { return exits_.count(0) > 0 || closed_; }));
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
  EXPECT_TRUE(exits_[0].out_of_memory());
  Stdin(1, "", true);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[1].signal(), SIGKILL);
  EXPECT_FALSE(exits_[1].out_of_memory());
}

}  // namespace
}  // namespace dtrain::shepherd
