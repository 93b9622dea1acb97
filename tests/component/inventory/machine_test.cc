// SPDX-License-Identifier: Apache-2.0
// Cpus, NUMA nodes, interfaces and the rest of what a node says about itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/inventory/amd_gpus.h"
#include "agent/inventory/cpu.h"
#include "agent/inventory/inventory.h"
#include "agent/inventory/network.h"
#include "common/base/cpulist.h"
#include "common/os/scheduling.h"
#include "tests/component/inventory/network_namespace.h"
#include "tests/component/inventory/tree.h"

namespace dtrain::inventory {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CpuTest, AllowedCpusAreThoseOfTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  std::vector<int> all = os::AllowedCpus();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.size(), static_cast<size_t>(CPU_COUNT(&before)));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(all.back(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  std::vector<int> narrowed = os::AllowedCpus();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_THAT(narrowed, ElementsAre(all.back()));
}

TEST(CpuTest, NumaNodesComeFromSysfsInNumericOrder) {
  Tree tree;
  tree.Write("sys/devices/system/node/online", "0-1,10\n");
  tree.Write("sys/devices/system/node/node10/cpulist", "16-23\n");
  tree.Write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
  tree.Write("sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
  std::vector<v1::NumaNode> nodes = ReadNumaNodes(tree.roots(), {0, 1});
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].id(), 0u);
  EXPECT_EQ(nodes[0].cpulist(), "0-3,8-11");
  EXPECT_EQ(nodes[1].cpulist(), "4-7,12-15");
  EXPECT_EQ(nodes[2].id(), 10u);
  EXPECT_EQ(nodes[2].cpulist(), "16-23");
}

TEST(CpuTest, NodesWithoutCpusAndUnreadableOnesAreLeftOut) {
  Tree tree;
  tree.Write("sys/devices/system/node/node0/cpulist", "0-3\n");
  tree.Write("sys/devices/system/node/node1/cpulist", "\n");  // GPU memory
  tree.Write("sys/devices/system/node/node2/cpulist", "what?\n");
  tree.Write("sys/devices/system/node/node3/meminfo", "");
  tree.Write("sys/devices/system/node/nodeX/cpulist", "4\n");
  std::vector<v1::NumaNode> nodes = ReadNumaNodes(tree.roots(), {0});
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].cpulist(), "0-3");
}

TEST(CpuTest, TheThreadsOfACoreAreKnownByTheFirst) {
  Tree tree;
  const std::string cpus = "sys/devices/system/cpu/";
  tree.Write(cpus + "online", "0-3,5\n");  // 4 is offline
  for (int cpu : {0, 2})
    tree.Write(absl::StrCat(cpus, "cpu", cpu, "/topology/thread_siblings_list"), "0,2\n");
  for (int cpu : {1, 5})
    tree.Write(absl::StrCat(cpus, "cpu", cpu, "/topology/thread_siblings_list"), "1,5\n");
  tree.Write(cpus + "cpu3/topology/thread_siblings_list", "3\n");
  EXPECT_THAT(ReadFirstSiblings(tree.roots()), ElementsAre(0, 1, 0, 3, 4, 1));
  tree.Write(cpus + "smt/active", "1\n");
  EXPECT_THAT(ReadFirstSiblings(tree.roots()), ElementsAre(0, 1, 0, 3, 4, 1));
  tree.Write(cpus + "smt/active", "0\n");
  EXPECT_THAT(ReadFirstSiblings(tree.roots()), ElementsAre());
}

TEST(CpuTest, WithoutThreadsOrWordsOfThemACoreIsACpu) {
  Tree tree;
  EXPECT_THAT(ReadFirstSiblings(tree.roots()), ElementsAre());
  tree.Write("sys/devices/system/cpu/online", "0-1\n");
  EXPECT_THAT(ReadFirstSiblings(tree.roots()), ElementsAre());
  tree.Write("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0\n");
  EXPECT_THAT(ReadFirstSiblings(tree.roots()), ElementsAre());
}

TEST(CpuTest, AContainerWithoutNodesIsOneNode) {
  Tree tree;
  std::vector<v1::NumaNode> nodes = ReadNumaNodes(tree.roots(), {0, 1, 2, 5});
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].id(), 0u);
  EXPECT_EQ(nodes[0].cpulist(), "0-2,5");
}

const v1::Interface* Find(const std::vector<v1::Interface>& all, const std::string& name) {
  auto it = std::find_if(all.begin(), all.end(),
                         [&](const v1::Interface& i) { return i.name() == name; });
  return it == all.end() ? nullptr : &*it;
}

// C14: several networks, bridges of container engines, and what has no use elsewhere.
TEST(NetworkTest, InterfacesOfAMultiHomedHost) {
  std::vector<v1::Interface> all;
  bool made = false;
  bool ran = InNetworkNamespace([&] {
    made = Shell(
        "ip link set lo up && "
        "ip link add eth0 type veth peer name peer0 && ip link add eth1 type veth peer name peer1 "
        "&& "
        "ip addr add 10.1.0.5/24 dev eth0 && ip addr add 10.1.0.6/24 dev eth0 label eth0:1 && "
        "ip -6 addr add fd00:1::5/64 dev eth0 nodad && ip link set eth0 up && "
        "ip link set peer0 up && "
        "ip addr add 192.168.7.9/16 dev eth1 && ip link set eth1 up && "  // its peer stays down
        "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && "
        "ip link set docker0 up && "
        "ip tuntap add tun3 mode tun && ip addr add 10.8.0.1/24 dev tun3");
    // The kernel notices a veth's carrier a little after both of its ends are up.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const v1::Interface* eth0 = nullptr;
    while ((eth0 == nullptr || !eth0->up()) && std::chrono::steady_clock::now() < deadline) {
      absl::StatusOr<std::vector<v1::Interface>> read = ReadInterfaces();
      if (read.ok()) all = *std::move(read);
      eth0 = Find(all, "eth0");
    }
  });
  if (!ran) GTEST_SKIP() << "needs root: makes a network namespace";
  ASSERT_TRUE(made);

  const v1::Interface* lo = Find(all, "lo");
  ASSERT_NE(lo, nullptr);
  EXPECT_TRUE(lo->loopback() && lo->up());
  EXPECT_FALSE(lo->physical());
  EXPECT_EQ(lo->addresses(0).ip(), "127.0.0.1");

  const v1::Interface* eth0 = Find(all, "eth0");
  ASSERT_NE(eth0, nullptr);
  EXPECT_TRUE(eth0->up() && eth0->physical());
  EXPECT_FALSE(eth0->loopback());
  EXPECT_EQ(eth0->speed_mbps(), 10000u);  // what every veth says
  ASSERT_EQ(eth0->addresses_size(), 3) << "link-local addresses are left out";
  EXPECT_EQ(eth0->addresses(0).ip(), "10.1.0.5");
  EXPECT_EQ(eth0->addresses(0).prefix_length(), 24u);
  EXPECT_EQ(eth0->addresses(1).ip(), "10.1.0.6");
  EXPECT_EQ(eth0->addresses(2).ip(), "fd00:1::5");
  EXPECT_EQ(eth0->addresses(2).prefix_length(), 64u);
  EXPECT_EQ(Find(all, "eth0:1"), nullptr);

  const v1::Interface* eth1 = Find(all, "eth1");
  ASSERT_NE(eth1, nullptr);
  EXPECT_FALSE(eth1->up()) << "no carrier";
  EXPECT_EQ(eth1->addresses(0).prefix_length(), 16u);

  const v1::Interface* docker0 = Find(all, "docker0");
  ASSERT_NE(docker0, nullptr);
  EXPECT_FALSE(docker0->physical());
  const v1::Interface* tun3 = Find(all, "tun3");
  ASSERT_NE(tun3, nullptr);
  EXPECT_FALSE(tun3->physical());

  EXPECT_EQ(Find(all, "peer0"), nullptr) << "a container's host end has no address to offer";
}

TEST(CpuTest, TheLeastQuotaOfACgroupAndItsParentsCounts) {
  Tree tree;
  const std::string cgroups = "sys/fs/cgroup";
  tree.Write("proc/self/cgroup", "0::/pods/pod1/main\n");
  EXPECT_EQ(ReadCpuQuota(tree.roots()), 0u);
  tree.Write(cgroups + "/pods/pod1/main/cpu.max", "max 100000\n");
  EXPECT_EQ(ReadCpuQuota(tree.roots()), 0u);
  tree.Write(cgroups + "/pods/cpu.max", "1600000 100000\n");
  EXPECT_EQ(ReadCpuQuota(tree.roots()), 16u);
  tree.Write(cgroups + "/pods/pod1/cpu.max", "350000 100000\n");
  EXPECT_EQ(ReadCpuQuota(tree.roots()), 4u) << "a part of a core counts as a core";
  tree.Write(cgroups + "/pods/pod1/main/cpu.max", "50000 100000\n");
  EXPECT_EQ(ReadCpuQuota(tree.roots()), 1u);
  tree.Write(cgroups + "/pods/pod1/main/cpu.max", "what? 0\n");
  EXPECT_EQ(ReadCpuQuota(tree.roots()), 4u);
  EXPECT_EQ(ReadInventory(tree.roots()).cpu_quota(), 4u);
}

TEST(CpuTest, AContainersQuotaIsAtTheTopOfWhatItSees) {
  Tree tree;
  tree.Write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  for (const char* path : {"/", "/kubepods/pod1/main", "/../../main"}) {
    tree.Write("proc/self/cgroup", absl::StrCat("0::", path, "\n"));
    EXPECT_EQ(ReadCpuQuota(tree.roots()), 4u) << path;
  }
}

TEST(CpuTest, QuotasOfCgroupV1Count) {
  Tree tree;
  const std::string folder = "sys/fs/cgroup/cpu/docker/1f/";
  tree.Write("proc/self/cgroup", "5:cpuset:/docker/1f\n4:cpu,cpuacct:/docker/1f\n0::/docker/1f\n");
  tree.Write(folder + "cpu.cfs_quota_us", "-1\n");
  tree.Write(folder + "cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(ReadCpuQuota(tree.roots()), 0u);
  tree.Write(folder + "cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(ReadCpuQuota(tree.roots()), 4u);
}

TEST(AmdGpusTest, CountsThoseOfDataCentresThatMayBeUsed) {
  Tree tree;
  tree.Write("dev/kfd", "");
  EXPECT_EQ(CountAmdGpus(tree.roots()), 0u);
  const auto write = [&](int node, int version) {
    tree.Write(
        absl::StrCat("sys/class/kfd/kfd/topology/nodes/", node, "/properties"),
        absl::StrCat("simd_count 416\ngfx_target_version ", version, "\nmem_banks_count 1\n"));
  };
  write(0, 0);       // a CPU
  write(1, 90012);   // built into it
  write(2, 110000);  // Radeon RX 7900
  EXPECT_EQ(CountAmdGpus(tree.roots()), 0u);
  write(3, 90402);
  write(4, 90010);
  write(6, 90402);  // not counted, as node 5 is missing
  EXPECT_EQ(CountAmdGpus(tree.roots()), 2u);
  EXPECT_EQ(ReadInventory(tree.roots()).amd_gpus(), 2u);
  std::filesystem::remove(tree.path("dev/kfd"));
  EXPECT_EQ(CountAmdGpus(tree.roots()), 0u) << "a container without the device";
}

TEST(InventoryTest, ItTellsWhatTheMachineIs) {
  v1::Inventory inventory = ReadInventory();
  char name[256] = "";
  gethostname(name, sizeof(name));
  EXPECT_EQ(inventory.hostname(), name);
  EXPECT_EQ(inventory.boot_id().size(), 36u);
  struct stat netns = {};
  ASSERT_EQ(stat("/proc/self/ns/net", &netns), 0);
  EXPECT_EQ(inventory.network_namespace(), netns.st_ino);
  EXPECT_FALSE(inventory.machine().empty());
  EXPECT_FALSE(inventory.kernel().empty());
  EXPECT_EQ(inventory.uid(), getuid());
  EXPECT_EQ(inventory.user() == "root", getuid() == 0);
  EXPECT_EQ(inventory.allowed_cpus(), FormatCpuList(os::AllowedCpus()));
  EXPECT_GE(inventory.numa_nodes_size(), 1);
  EXPECT_GT(inventory.memory_bytes(), uint64_t{16} << 20);
  EXPECT_GE(inventory.interfaces_size(), 1);
  EXPECT_GT(inventory.open_files_limit(), 0u);
  EXPECT_GT(inventory.processes_limit(), 0u);
  EXPECT_NEAR(static_cast<double>(inventory.clock_unix_nanos()),
              static_cast<double>(time(nullptr)) * 1e9, 60e9);
  EXPECT_EQ(inventory.probe_port(), 0u);
  EXPECT_EQ(inventory.gpus_size(), 0);
  EXPECT_THAT(inventory.warnings(), ElementsAre());
}

TEST(InventoryTest, AMachineWithoutFileTreesIsToldAsFarAsItCan) {
  Tree empty;
  v1::Inventory inventory = ReadInventory(empty.roots());
  EXPECT_FALSE(inventory.hostname().empty());
  EXPECT_EQ(inventory.boot_id(), "");
  EXPECT_EQ(inventory.numa_nodes_size(), 1);
  ASSERT_EQ(inventory.warnings_size(), 1);
  EXPECT_THAT(inventory.warnings(0), HasSubstr("boot id is unknown"));
}

}  // namespace
}  // namespace dtrain::inventory
