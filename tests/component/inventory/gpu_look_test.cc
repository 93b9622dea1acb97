// SPDX-License-Identifier: Apache-2.0
// Looks at the GPUs by a child, which may hang or crash.
#include "agent/inventory/gpu_look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <optional>
#include <string>

#include "common/os/pidfd.h"
#include "tests/component/inventory/tree.h"
#include "tests/support/paths.h"

namespace dtrain::inventory {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class GpuLookTest : public ::testing::Test {
 protected:
  std::string Script(const std::string& text) {
    tree_.Write("look", "#!/bin/sh\n" + text);
    chmod(tree_.path("look").c_str(), 0700);
    return tree_.path("look");
  }
  GpuReport Look(const std::string& program, Duration patience) {
    look_.emplace(loop_, program, patience, [this](GpuReport report) {
      report_ = std::move(report);
      loop_.Stop();
    });
    guard_.After(seconds(60), [this] { loop_.Stop(); });
    loop_.Run();
    EXPECT_TRUE(report_.has_value()) << "no report within 60 s";
    return report_.value_or(GpuReport());
  }

  Tree tree_;
  loop::Loop loop_;
  loop::Timer guard_{loop_};
  std::optional<GpuReport> report_;
  std::optional<GpuLook> look_;
};

TEST_F(GpuLookTest, TellsWhatTheChildSees) {
  tree_.Write("gpus", "driver 550.54.14\ngpu uuid=GPU-1 pci=00000000:3B:00.0 used=4711\n");
  setenv("FAKE_NVML", tree_.path("gpus").c_str(), 1);
  setenv("DTRAIN_NVML_LIBRARY", LibraryPath("fake_nvml/libnvidia-ml.so.1").c_str(), 1);
  const GpuReport report = Look(ProgramPath("dtrain-agent"), seconds(30));
  unsetenv("FAKE_NVML");
  unsetenv("DTRAIN_NVML_LIBRARY");
  EXPECT_EQ(report.error, "");
  EXPECT_EQ(report.driver, "550.54.14");
  ASSERT_THAT(report.gpus, SizeIs(1));
  EXPECT_EQ(report.gpus[0].uuid(), "GPU-1");
  EXPECT_EQ(report.gpus[0].memory_used_bytes(), 4711u);
}

// 14
TEST_F(GpuLookTest, OneThatHangsIsGivenUpAndSaysSo) {
  const GpuReport report = Look(Script("exec sleep 600\n"), seconds(1));
  EXPECT_THAT(report.gpus, SizeIs(0));
  EXPECT_THAT(report.error, HasSubstr("NVIDIA's driver (NVML) did not answer within 1 s"));
  EXPECT_THAT(report.error, HasSubstr("nvidia-smi"));
}

TEST_F(GpuLookTest, WhoIsGivenUpBeforeItsChildEndsKillsIt) {
  look_.emplace(loop_, Script("exec sleep 600\n"), seconds(60), [](const GpuReport&) {});
  EXPECT_TRUE(os::HasChildren());
  look_.reset();
  while (os::HasChildren()) {
    if (const pid_t pid = os::EndedChild(); pid != 0) os::ReapQuietly(pid);
  }
}

TEST_F(GpuLookTest, ACrashIsTold) {
  EXPECT_THAT(Look(Script("kill -SEGV $$\n"), seconds(30)).error,
              HasSubstr("NVML may have crashed"));
}

TEST_F(GpuLookTest, AChildThatCannotBeStartedIsTold) {
  EXPECT_THAT(Look("/nowhere/look", seconds(30)).error, HasSubstr("/nowhere/look"));
}

}  // namespace
}  // namespace dtrain::inventory
