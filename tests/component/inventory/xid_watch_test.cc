// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/xid_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/component/inventory/tree.h"

namespace dtrain::inventory {
namespace {

using Xid = std::pair<std::string, uint32_t>;

TEST(ParseXid, KnowsTheDriversLine) {
  EXPECT_EQ(ParseXid("4,1234,5678,-;NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', "
                     "name=<unknown>, GPU has fallen off the bus."),
            Xid("0000:3b:00", 79));
  EXPECT_EQ(ParseXid("6,1,2,c;NVRM: Xid (PCI:00000000:01:00): 13"), Xid("00000000:01:00", 13));
}

TEST(ParseXid, TakesNothingElseForOne) {
  for (const char* record :
       {"", ";", "4,1,2,-;", "4,1,2,-;NVRM: loading", "4,1,2,-;NVRM: Xid (PCI:0000:3b:00",
        "4,1,2,-;NVRM: Xid (PCI:0000:3b:00): x, ", "4,1,2,-;NVRM: Xid (PCI:../../etc): 79, ",
        "4,1,2,-;NVRM: Xid (PCI:): 79, ", "4,1,2,-; NVRM: Xid (PCI:0000:3b:00): 79, ",
        "4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 99999999999, ",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1"}) {
    EXPECT_EQ(ParseXid(record), std::nullopt) << record;
  }
}

// Anybody who may write to /dev/kmsg can write that, but not as the kernel.
TEST(ParseXid, DoesNotBelievePrograms) {
  EXPECT_EQ(ParseXid("12,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1"), std::nullopt);
}

class XidWatchTest : public ::testing::Test {
 protected:
  XidWatchTest() {
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    // A fifo that somebody holds open for writing is empty, not at its end.
    fd_.Reset(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    inventory_.add_gpus()->set_pci_address("0000:3b:00.0");
    inventory_.add_gpus()->set_pci_address("0000:4b:00.0");
  }
  void Log(const std::string& text) {
    ASSERT_EQ(write(fd_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  Tree tree_;
  const std::string path_ = tree_.path("kmsg");
  os::UniqueFd fd_;
  v1::Inventory inventory_;
};

TEST_F(XidWatchTest, TellsTheLastOfEachGpu) {
  XidWatch watch(path_);
  watch.Note(inventory_);
  EXPECT_FALSE(inventory_.gpus(0).has_last_xid());
  Log("4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=1\n SUBSYSTEM=pci\n6,2,3,-;other\n");
  Log("4,3,4,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n4,4,5,-;NVRM: Xid (PCI:0000:4b");
  watch.Note(inventory_);
  EXPECT_EQ(inventory_.gpus(0).last_xid(), 79u);
  EXPECT_FALSE(inventory_.gpus(1).has_last_xid());
  Log(":00): 31, pid=1\n");
  watch.Note(inventory_);
  EXPECT_EQ(inventory_.gpus(0).last_xid(), 79u);
  EXPECT_EQ(inventory_.gpus(1).last_xid(), 31u);
}

TEST_F(XidWatchTest, ALogThatMayNotBeReadTellsNothing) {
  XidWatch watch(tree_.path("missing"));
  watch.Note(inventory_);
  EXPECT_FALSE(inventory_.gpus(0).has_last_xid());
}

TEST_F(XidWatchTest, ALineWithoutEndIsNotKept) {
  XidWatch watch(path_);
  Log(std::string(30'000, 'x'));
  watch.Note(inventory_);
  Log("\n4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=1\n");
  watch.Note(inventory_);
  EXPECT_EQ(inventory_.gpus(0).last_xid(), 13u);
}

}  // namespace
}  // namespace dtrain::inventory
