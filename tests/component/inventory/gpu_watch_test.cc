// SPDX-License-Identifier: Apache-2.0
// Watches of GPUs by a child, whose driver may hang.
#include "agent/inventory/gpu_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/pidfd.h"
#include "tests/component/inventory/tree.h"
#include "tests/support/paths.h"

namespace dtrain::inventory {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGpus[] =
    "gpu uuid=GPU-a pci=00000000:3B:00.0 memory=1000 used=10 utilisation=97 temperature=61 "
    "power=350000 ecc=4\n"
    "gpu uuid=GPU-b pci=00000000:3C:00.0\n"
    "gpu uuid=GPU-c pci=00000000:3D:00.0\n";

class GpuWatchTest : public ::testing::Test {
 protected:
  GpuWatchTest() {
    tree_.Write("gpus", absl::StrCat(kGpus, "events ", tree_.path("events"), "\nregistered ",
                                     tree_.path("registered"), "\n"));
    setenv("FAKE_NVML", tree_.path("gpus").c_str(), 1);
    setenv("DTRAIN_NVML_LIBRARY", LibraryPath("fake_nvml/libnvidia-ml.so.1").c_str(), 1);
  }
  ~GpuWatchTest() override {
    watch_.reset();
    Await([] { return !os::HasChildren(); });  // none is left for the next test to count
    unsetenv("FAKE_NVML");
    unsetenv("DTRAIN_NVML_LIBRARY");
  }
  void Begin() {
    watch_ = watches_.Begin({"GPU-b", "GPU-a"},
                            [this](v1::GpuStates states) { said_.push_back(std::move(states)); });
  }
  void Happens(const std::string& line) {
    std::ofstream file(tree_.path("events"), std::ios::app);
    file << line << "\n";
  }
  // Runs until it is so, or 40 s have passed.
  void Await(const std::function<bool()>& so) {
    const TimePoint deadline = loop_.Now() + seconds(40);
    while (!so()) {
      ASSERT_LT(loop_.Now(), deadline) << "it is not so after 40 s";
      loop_.context().run_one_for(milliseconds(20));
    }
  }
  void AwaitWords(size_t count) {
    Await([this, count] { return said_.size() >= count; });
    said_.resize(std::max(said_.size(), count));  // what follows may look
  }

  Tree tree_;
  loop::Loop loop_;
  GpuWatches watches_{loop_, ProgramPath("dtrain-agent")};
  std::vector<v1::GpuStates> said_;
  std::unique_ptr<GpuWatches::Watch> watch_;
};

TEST_F(GpuWatchTest, SaysHowTheGpusAreAtOnce) {
  Begin();
  AwaitWords(1);
  const v1::GpuStates& states = said_[0];
  ASSERT_EQ(states.gpus_size(), 2);
  EXPECT_GT(states.unix_nanos(), 0);
  const v1::GpuState& gpu = states.gpus(0);
  EXPECT_EQ(gpu.uuid(), "GPU-a");
  EXPECT_EQ(gpu.index(), 0U);
  EXPECT_EQ(gpu.utilisation_percent(), 97U);
  EXPECT_EQ(gpu.memory_used_bytes(), 10U);
  EXPECT_EQ(gpu.memory_total_bytes(), 1000U);
  EXPECT_EQ(gpu.power_milliwatts(), 350000U);
  EXPECT_EQ(gpu.temperature_celsius(), 61U);
  EXPECT_EQ(gpu.uncorrected_ecc_errors(), 4U);
  EXPECT_THAT(gpu.xids(), IsEmpty());
  EXPECT_EQ(states.gpus(1).uuid(), "GPU-b");
  EXPECT_FALSE(states.gpus(1).has_power_milliwatts());
}

TEST_F(GpuWatchTest, AnErrorIsHeardAtOnce) {
  Begin();
  AwaitWords(1);
  const TimePoint begin = loop_.Now();
  Happens("GPU-c xid 79");  // not watched
  Happens("GPU-b xid 79");
  AwaitWords(2);
  EXPECT_THAT(said_[1].gpus(1).xids(), ElementsAre(79));
  EXPECT_THAT(said_[1].gpus(0).xids(), IsEmpty());
  Happens("GPU-b xid 45");
  AwaitWords(3);
  EXPECT_THAT(said_[2].gpus(1).xids(), ElementsAre(79, 45));
  Happens("GPU-a ecc 6");
  AwaitWords(4);
  EXPECT_EQ(said_[3].gpus(0).uncorrected_ecc_errors(), 6U);
  Happens("GPU-a lost");
  AwaitWords(5);
  EXPECT_THAT(said_[4].gpus(0).fault(), HasSubstr("fell off the bus"));
  EXPECT_LT(loop_.Now() - begin, seconds(10)) << "that was no news";
}

TEST_F(GpuWatchTest, EndsWithTheWatch) {
  Begin();
  AwaitWords(1);
  watch_.reset();
  Await([] { return !os::HasChildren(); });
}

TEST_F(GpuWatchTest, MayBeEndedByWhatItSays) {
  watch_ = watches_.Begin({"GPU-a"}, [this](const v1::GpuStates&) { watch_.reset(); });
  Await([this] { return watch_ == nullptr && !os::HasChildren(); });
}

TEST_F(GpuWatchTest, AChildThatEndsIsReapedAndSaysNothing) {
  setenv("DTRAIN_NVML_LIBRARY", "/nowhere", 1);
  Begin();
  ASSERT_NE(watch_, nullptr);
  Await([] { return !os::HasChildren(); });
  EXPECT_FALSE(watch_->hangs());
  EXPECT_THAT(said_, IsEmpty());
  watch_.reset();
}

// 14
TEST_F(GpuWatchTest, ADriverThatHangsIsKnownAndKeepsNobody) {
  GpuWatches often(loop_, ProgramPath("dtrain-agent"), milliseconds(100));
  watch_ =
      often.Begin({"GPU-a"}, [this](v1::GpuStates states) { said_.push_back(std::move(states)); });
  AwaitWords(4);
  EXPECT_FALSE(watch_->hangs());
  Happens("hang");
  Await([this] { return watch_->hangs(); });
  watch_.reset();
  Await([] { return !os::HasChildren(); });
}

TEST_F(GpuWatchTest, AChildThatCannotBeStarted) {
  GpuWatches nowhere(loop_, "/nowhere/agent");
  EXPECT_EQ(nowhere.Begin({"GPU-a"}, [](const v1::GpuStates&) {}), nullptr);
}

}  // namespace
}  // namespace dtrain::inventory
