// SPDX-License-Identifier: Apache-2.0
// What a node's agent reads for its sessions, with the agent's own program and a fake NVML.
#include "agent/session/node_readers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/component/inventory/tree.h"
#include "tests/support/no_threads.h"
#include "tests/support/paths.h"

namespace dtrain::session {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class NodeReadersTest : public ::testing::Test {
 protected:
  NodeReadersTest() {
    setenv("DTRAIN_NVML_LIBRARY", LibraryPath("fake_nvml/libnvidia-ml.so.1").c_str(), 1);
    setenv("FAKE_NVML", tree_.path("gpus").c_str(), 1);
    tree_.Write("gpus", "gpu uuid=GPU-1 pci=00000000:3B:00.0\n");
  }
  ~NodeReadersTest() override {
    unsetenv("FAKE_NVML");
    unsetenv("DTRAIN_NVML_LIBRARY");
  }
  // Until `count` answers came.
  void RunUntil(size_t count) {
    loop::Timer look(loop_);
    const TimePoint deadline = loop_.Now() + seconds(60);
    absl::AnyInvocable<void()> check = [&] {
      if (inventories_.size() + reports_.size() >= count || loop_.Now() > deadline) {
        loop_.Stop();
      } else {
        look.After(std::chrono::milliseconds(10), [&] { check(); });
      }
    };
    check();
    loop_.context().restart();
    loop_.Run();
    ASSERT_EQ(inventories_.size() + reports_.size(), count) << "not all were answered within 60 s";
  }

  inventory::Tree tree_;
  loop::Loop loop_;
  std::vector<v1::Inventory> inventories_;
  std::vector<inventory::GpuReport> reports_;
};

// 14: of eight GPUs without persistence mode, or on a busy machine.
TEST_F(NodeReadersTest, ManyThatAskAtOnceAllSeeTheGpusOfASlowDriver) {
  tree_.Write("gpus", "slow nvmlInit_v2 2000\ngpu uuid=GPU-1 pci=00000000:3B:00.0\n");
  NodeReaders readers(loop_, ProgramPath("dtrain-agent"));
  Readers read = readers.readers();
  for (int i = 0; i < 8; ++i) {
    read.gpus([this](inventory::GpuReport report) { reports_.push_back(std::move(report)); });
    read.inventory(
        [this](v1::Inventory inventory) { inventories_.push_back(std::move(inventory)); });
  }
  RunUntil(16);
  for (const inventory::GpuReport& report : reports_) {
    EXPECT_EQ(report.error, "");
    EXPECT_EQ(report.gpus.size(), 1u);
  }
  for (const v1::Inventory& inventory : inventories_) {
    EXPECT_EQ(inventory.gpu_error(), "");
    EXPECT_EQ(inventory.gpus_size(), 1);
  }
}

// H10
TEST_F(NodeReadersTest, AFirstLookThatGetsNoThreadHoldsNobodyUp) {
  std::optional<NodeReaders> readers;
  {
    const NoThreads none;
    readers.emplace(loop_, ProgramPath("dtrain-agent"));
    readers->readers().inventory(
        [this](v1::Inventory inventory) { inventories_.push_back(std::move(inventory)); });
    readers->readers().status(
        [this](v1::Inventory inventory) { inventories_.push_back(std::move(inventory)); });
    RunUntil(2);
  }
  for (const v1::Inventory& inventory : inventories_) {
    EXPECT_THAT(inventory.gpu_error(), HasSubstr("no thread is left"));
  }
  readers->readers().gpus(
      [this](inventory::GpuReport report) { reports_.push_back(std::move(report)); });
  RunUntil(3);
  EXPECT_EQ(reports_[0].error, "");
  EXPECT_EQ(reports_[0].gpus.size(), 1u);
}

}  // namespace
}  // namespace dtrain::session
