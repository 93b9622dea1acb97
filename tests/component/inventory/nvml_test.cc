// SPDX-License-Identifier: Apache-2.0
// The real loading code against the fake library.
#include "agent/inventory/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/component/inventory/tree.h"
#include "tests/support/paths.h"

namespace dtrain::inventory {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class NvmlTest : public ::testing::Test {
 protected:
  NvmlTest() {
    options_.library = LibraryPath("fake_nvml/libnvidia-ml.so.1");
    options_.roots = tree_.roots();
    setenv("FAKE_NVML", tree_.path("gpus").c_str(), 1);
  }
  ~NvmlTest() override { unsetenv("FAKE_NVML"); }

  GpuReport Read(const std::string& description) {
    tree_.Write("gpus", description);
    return ReadGpus(options_);
  }

  void WriteLocality(const std::string& pci, const std::string& node, const std::string& cpus) {
    tree_.Write("sys/bus/pci/devices/" + pci + "/numa_node", node + "\n");
    tree_.Write("sys/bus/pci/devices/" + pci + "/local_cpulist", cpus + "\n");
  }

  // Eight GPUs on two sockets, in the upper-case form that NVML prints.
  std::string EightGpus() {
    std::string text = "driver 550.54.14\n";
    for (int i = 0; i < 8; ++i) {
      absl::StrAppendFormat(&text, "gpu uuid=GPU-%d000 pci=00000000:%02X:00.0 name=NVIDIA_H100\n",
                            i, 0x1b + 0x10 * i);
      WriteLocality(absl::StrFormat("0000:%02x:00.0", 0x1b + 0x10 * i), i < 4 ? "0" : "1",
                    i < 4 ? "0-15,32-47" : "16-31,48-63");
    }
    return text;
  }

  static std::vector<std::string> Uuids(const GpuReport& report) {
    std::vector<std::string> uuids;
    for (const v1::Gpu& gpu : report.gpus) uuids.push_back(gpu.uuid());
    return uuids;
  }

  Tree tree_;
  GpuOptions options_;
};

TEST_F(NvmlTest, EightGpusWithTheirPlaces) {
  GpuReport report = Read(EightGpus());
  EXPECT_EQ(report.driver, "550.54.14");
  EXPECT_EQ(report.error, "");
  EXPECT_THAT(report.warnings, IsEmpty());
  ASSERT_EQ(report.gpus.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    const v1::Gpu& gpu = report.gpus[static_cast<size_t>(i)];
    EXPECT_EQ(gpu.index(), static_cast<uint32_t>(i));
    EXPECT_EQ(gpu.uuid(), absl::StrCat("GPU-", i, "000"));
    EXPECT_EQ(gpu.pci_address(), absl::StrFormat("0000:%02x:00.0", 0x1b + 0x10 * i));
    EXPECT_EQ(gpu.name(), "NVIDIA H100");
    EXPECT_EQ(gpu.numa_node(), i < 4 ? 0 : 1);
    EXPECT_EQ(gpu.local_cpulist(), i < 4 ? "0-15,32-47" : "16-31,48-63");
    EXPECT_EQ(gpu.memory_total_bytes(), uint64_t{80} << 30);
    EXPECT_EQ(gpu.memory_used_bytes(), 0u);
    EXPECT_EQ(gpu.fault(), "");
  }
}

TEST_F(NvmlTest, GpusAreInPciOrderWhateverNvmlsIndexIs) {
  GpuReport report = Read(
      "gpu uuid=GPU-c pci=00010000:01:00.0\ngpu uuid=GPU-b pci=00000000:AF:00.0\n"
      "gpu uuid=GPU-a pci=00000000:3B:1F.0\n");
  EXPECT_THAT(Uuids(report), ElementsAre("GPU-a", "GPU-b", "GPU-c"));
  EXPECT_EQ(report.gpus[0].index(), 2u);
  EXPECT_EQ(report.gpus[0].pci_address(), "0000:3b:1f.0");
  EXPECT_EQ(report.gpus[2].pci_address(), "10000:01:00.0");
}

TEST_F(NvmlTest, UnknownLocalityIsSaidToBeUnknown) {
  WriteLocality("0000:3b:00.0", "-1", "");
  GpuReport report =
      Read("gpu uuid=GPU-a pci=00000000:3B:00.0\ngpu uuid=GPU-b pci=00000000:AF:00.0\n");
  ASSERT_EQ(report.gpus.size(), 2u);
  for (const v1::Gpu& gpu : report.gpus) {
    EXPECT_EQ(gpu.numa_node(), -1);
    EXPECT_EQ(gpu.local_cpulist(), "");
  }
}

// D13: busy, with the process named.
TEST_F(NvmlTest, ProcessesOnAGpuAreNamed) {
  tree_.Write("proc/4711/comm", "python3\n");
  tree_.Write("proc/4712/comm", "a\x1b[31m\n");
  std::string text = "gpu uuid=GPU-a pci=00000000:3B:00.0 used=3145728\n";
  absl::StrAppend(&text, "process 4711 2097152\nprocess 4712 18446744073709551615\n");
  absl::StrAppend(&text, "process 4713 1\ngpu uuid=GPU-b pci=00000000:AF:00.0\n");
  GpuReport report = Read(text);
  ASSERT_EQ(report.gpus.size(), 2u);
  EXPECT_EQ(report.gpus[0].memory_used_bytes(), 3145728u);
  ASSERT_EQ(report.gpus[0].processes_size(), 3);
  EXPECT_EQ(report.gpus[0].processes(0).pid(), 4711u);
  EXPECT_EQ(report.gpus[0].processes(0).name(), "python3");
  EXPECT_EQ(report.gpus[0].processes(0).memory_bytes(), 2097152u);
  EXPECT_EQ(report.gpus[0].processes(1).name(), "a\\x1b[31m");
  EXPECT_EQ(report.gpus[0].processes(1).memory_bytes(), 0u) << "not available";
  EXPECT_EQ(report.gpus[0].processes(2).name(), "") << "a process of another pid namespace";
  EXPECT_EQ(report.gpus[1].processes_size(), 0);
}

TEST_F(NvmlTest, ProcessesThatOnlyDrawAreToldFromThoseThatCompute) {
  GpuReport report = Read(
      "gpu uuid=GPU-1 pci=00000000:3B:00.0\n"
      "process 11 100\ngraphics 11 100\ngraphics 12 200\n");
  ASSERT_EQ(report.gpus.size(), 1u);
  const auto& processes = report.gpus[0].processes();
  ASSERT_EQ(processes.size(), 2) << "one that does both is one";
  EXPECT_EQ(processes[0].pid(), 11u);
  EXPECT_FALSE(processes[0].graphics());
  EXPECT_EQ(processes[1].pid(), 12u);
  EXPECT_TRUE(processes[1].graphics());
  EXPECT_EQ(processes[1].memory_bytes(), 200u);
}

TEST_F(NvmlTest, MoreProcessesThanTheFirstGuess) {
  std::string text = "gpu uuid=GPU-a pci=00000000:3B:00.0\n";
  for (int i = 1; i <= 500; ++i) absl::StrAppend(&text, "process ", i, " 1000\n");
  EXPECT_EQ(Read(text).gpus[0].processes_size(), 500);
}

// D13
TEST_F(NvmlTest, MigModeIsAFault) {
  GpuReport report = Read(
      "gpu uuid=GPU-a pci=00000000:3B:00.0 mig=1\ngpu uuid=GPU-b pci=00000000:AF:00.0 mig=0\n");
  ASSERT_EQ(report.gpus.size(), 2u);
  EXPECT_THAT(report.gpus[0].fault(), StartsWith("MIG mode is on"));
  EXPECT_EQ(report.gpus[0].uuid(), "GPU-a");
  EXPECT_EQ(report.gpus[1].fault(), "");
}

TEST_F(NvmlTest, ComputeModesThatKeepProcessesOutAreTold) {
  GpuReport report = Read(
      "gpu uuid=GPU-a pci=00000000:3B:00.0\ngpu uuid=GPU-b pci=00000000:5B:00.0 mode=3\n"
      "gpu uuid=GPU-c pci=00000000:AF:00.0 mode=2\n");
  ASSERT_EQ(report.gpus.size(), 3u);
  EXPECT_FALSE(report.gpus[0].exclusive_process());
  EXPECT_TRUE(report.gpus[1].exclusive_process());
  EXPECT_EQ(report.gpus[1].fault(), "");
  EXPECT_THAT(report.gpus[2].fault(), HasSubstr("PROHIBITED"));
}

TEST_F(NvmlTest, ALostGpuIsListedWithItsFault) {
  GpuReport report = Read(
      "gpu uuid=GPU-a pci=00000000:3B:00.0\ngpu_error nvmlDeviceGetHandleByIndex_v2 15\n"
      "gpu uuid=GPU-b pci=00000000:5B:00.0\ngpu_error nvmlDeviceGetMemoryInfo_v2 15\n"
      "gpu uuid=GPU-c pci=00000000:AF:00.0\ngpu_error nvmlDeviceGetComputeRunningProcesses_v3 16\n"
      "gpu uuid=GPU-d pci=00000000:BF:00.0\n");
  EXPECT_EQ(report.error, "");
  ASSERT_THAT(Uuids(report), ElementsAre("GPU-b", "GPU-c", "GPU-d", ""));
  EXPECT_THAT(report.gpus[0].fault(), StartsWith("lost"));
  EXPECT_THAT(report.gpus[1].fault(), HasSubstr("needs a reset"));
  EXPECT_EQ(report.gpus[2].fault(), "");
  EXPECT_THAT(report.gpus[3].fault(), StartsWith("lost"));
  EXPECT_EQ(report.gpus[3].index(), 0u);
}

TEST_F(NvmlTest, AGpuWithoutUuidIsAFault) {
  GpuReport report = Read("gpu pci=00000000:3B:00.0\ngpu_error nvmlDeviceGetUUID 999\n");
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_THAT(report.gpus[0].fault(), HasSubstr("nvmlDeviceGetUUID failed with code 999"));
}

TEST_F(NvmlTest, GpusThatAContainerMayNotUseAreLeftOut) {
  GpuReport report = Read(
      "gpu uuid=GPU-a pci=00000000:3B:00.0\ngpu_error nvmlDeviceGetHandleByIndex_v2 4\n"
      "gpu uuid=GPU-b pci=00000000:AF:00.0\n");
  EXPECT_THAT(Uuids(report), ElementsAre("GPU-b"));
}

TEST_F(NvmlTest, CallsThatAGpuDoesNotSupportAreNoFaults) {
  GpuReport report = Read(
      "error nvmlDeviceGetMemoryInfo_v2 3\nerror nvmlDeviceGetMigMode 13\n"
      "error nvmlDeviceGetComputeRunningProcesses_v3 3\nerror nvmlSystemGetDriverVersion 999\n"
      "gpu uuid=GPU-a pci=00000000:3B:00.0 used=1000\n");
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_EQ(report.gpus[0].fault(), "");
  EXPECT_EQ(report.gpus[0].memory_used_bytes(), 1000u) << "by the older call";
  EXPECT_EQ(report.driver, "unknown");
}

TEST_F(NvmlTest, ALibraryWithoutVersionedNamesServesToo) {
  options_.library = LibraryPath("fake_nvml_old/libnvidia-ml.so.1");
  tree_.Write("proc/7/comm", "old\n");
  GpuReport report =
      Read("driver 367.27\ngpu uuid=GPU-a pci=00000000:3B:00.0 used=5\nprocess 7 5\nprocess 8 6\n");
  EXPECT_EQ(report.driver, "367.27");
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_EQ(report.gpus[0].pci_address(), "0000:3b:00.0");
  EXPECT_EQ(report.gpus[0].memory_used_bytes(), 5u);
  ASSERT_EQ(report.gpus[0].processes_size(), 2);
  EXPECT_EQ(report.gpus[0].processes(0).name(), "old");
  EXPECT_EQ(report.gpus[0].processes(1).pid(), 8u);
  EXPECT_EQ(report.gpus[0].processes(1).memory_bytes(), 6u);
}

TEST_F(NvmlTest, ADriverThatWasUpdatedUnderneathNeedsAReboot) {
  tree_.Write("sys/module/nvidia/version", "535.54.03\n");
  GpuReport report = Read("error nvmlInit_v2 18\ngpu uuid=GPU-a pci=00000000:3B:00.0\n");
  EXPECT_THAT(report.gpus, IsEmpty());
  EXPECT_EQ(report.driver, "535.54.03");
  EXPECT_THAT(report.error, HasSubstr("the old one (535.54.03) still runs"));
  EXPECT_THAT(report.error, HasSubstr("reboot the node"));
}

TEST_F(NvmlTest, OtherFailuresToStartAreErrorsThatSayWhatToDo) {
  EXPECT_THAT(Read("error nvmlInit_v2 999\n").error,
              HasSubstr("nvmlInit failed with code 999 (Unknown Error); see the kernel log"));
  EXPECT_THAT(Read("error nvmlInit_v2 4\n").error, HasSubstr("no permission"));
  EXPECT_THAT(Read("error nvmlInit_v2 15\n").error, HasSubstr("fell off the bus"));
  EXPECT_THAT(Read("error nvmlDeviceGetCount_v2 999\n").error, HasSubstr("nvmlDeviceGetCount"));
}

TEST_F(NvmlTest, WithoutADriverThereAreNoGpusAndNoError) {
  for (int code : {9, 12, 13}) {
    GpuReport report = Read(absl::StrCat("error nvmlInit_v2 ", code, "\n"));
    EXPECT_THAT(report.gpus, IsEmpty());
    EXPECT_EQ(report.error, "");
    EXPECT_EQ(report.driver, "");
    EXPECT_THAT(report.warnings, IsEmpty());
  }
}

TEST_F(NvmlTest, WithoutTheLibraryThereAreNoGpusAndNoError) {
  options_.library = tree_.path("libnvidia-ml.so.1");
  GpuReport report = ReadGpus(options_);
  EXPECT_THAT(report.gpus, IsEmpty());
  EXPECT_EQ(report.error, "");
  EXPECT_THAT(report.warnings, IsEmpty());
  // A container on a GPU machine.
  tree_.Write("sys/module/nvidia/version", "535.54.03\n");
  report = ReadGpus(options_);
  EXPECT_EQ(report.error, "");
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_THAT(report.warnings[0], HasSubstr("the kernel has NVIDIA's driver 535.54.03"));
}

TEST_F(NvmlTest, ALibraryThatIsNoneIsAnError) {
  tree_.Write("libnvidia-ml.so.1", "not an ELF file");
  options_.library = tree_.path("libnvidia-ml.so.1");
  EXPECT_THAT(ReadGpus(options_).error, HasSubstr("GPUs cannot be used: open "));
}

TEST_F(NvmlTest, EachReadingStartsAnew) {
  EXPECT_EQ(Read("gpu uuid=GPU-a pci=00000000:3B:00.0\n").gpus.size(), 1u);
  EXPECT_EQ(Read(EightGpus()).gpus.size(), 8u);
  EXPECT_EQ(Read("").gpus.size(), 0u);
}

TEST_F(NvmlTest, AnInheritedDeviceListNarrowsTheGpus) {
  const std::string eight = EightGpus();
  auto visible = [&](const std::string& value) {
    options_.visible_devices = value;
    return Read(eight);
  };
  EXPECT_THAT(Uuids(visible("2,0")), ElementsAre("GPU-2000", "GPU-0000"));
  EXPECT_THAT(Uuids(visible(" 7 , 7")), ElementsAre("GPU-7000"));
  EXPECT_THAT(Uuids(visible("GPU-3,GPU-5000")), ElementsAre("GPU-3000", "GPU-5000"));
  for (const char* none : {"", "-1", "NoDevFiles", ",1"}) {
    GpuReport report = visible(none);
    EXPECT_THAT(report.gpus, IsEmpty()) << none;
    EXPECT_THAT(report.warnings, IsEmpty()) << none;
    EXPECT_EQ(report.error, "") << none;
  }
  EXPECT_THAT(Uuids(visible("1,-1,2")), ElementsAre("GPU-1000"));

  GpuReport beyond = visible("0,8,1");
  EXPECT_THAT(Uuids(beyond), ElementsAre("GPU-0000"));
  ASSERT_EQ(beyond.warnings.size(), 1u);
  EXPECT_THAT(beyond.warnings[0], HasSubstr("its entry '8' names no GPU here"));
  EXPECT_EQ(beyond.error, "");
  // Not a node without GPUs: the launcher must not take its cores for slots.
  for (const char* wrong : {"GPU-", "GPU-9", "gpu0", "all", "99999999999999999999"}) {
    GpuReport report = visible(wrong);
    EXPECT_THAT(report.gpus, IsEmpty()) << wrong;
    EXPECT_THAT(report.warnings, IsEmpty()) << wrong;
    EXPECT_THAT(report.error, HasSubstr("names no GPU here: name GPUs by number or UUID")) << wrong;
  }
  EXPECT_THAT(visible("MIG-GPU-1000/1/0").error, HasSubstr("MIG instance"));
}

TEST_F(NvmlTest, NumbersForGpusOfDifferentKindsAreWarnedOf) {
  const std::string two =
      "gpu uuid=GPU-a pci=00000000:3B:00.0 name=T400\n"
      "gpu uuid=GPU-b pci=00000000:AF:00.0 name=H100\n";
  options_.visible_devices = "0";
  EXPECT_THAT(Read(two).warnings, ElementsAre(HasSubstr("CUDA_DEVICE_ORDER=PCI_BUS_ID")));
  options_.device_order = "PCI_BUS_ID";
  EXPECT_THAT(Read(two).warnings, IsEmpty());
  options_.device_order = "";
  options_.visible_devices = "GPU-b";
  EXPECT_THAT(Read(two).warnings, IsEmpty());
}

TEST_F(NvmlTest, WhatAGpuDoesAndHowItIs) {
  GpuReport report = Read("gpu uuid=GPU-a pci=0:1:0.0 utilisation=97 temperature=61 ecc=2\n");
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_EQ(report.gpus[0].utilisation_percent(), 97u);
  EXPECT_EQ(report.gpus[0].temperature_celsius(), 61u);
  EXPECT_EQ(report.gpus[0].uncorrected_ecc_errors(), 2u);
  EXPECT_EQ(report.gpus[0].fault(), "");
}

// A desk's GPU has no ECC, and a value that is not known is not 0.
TEST_F(NvmlTest, WhatAGpuDoesNotTellIsLeftOut) {
  for (const char* library : {"fake_nvml", "fake_nvml_old"}) {
    options_.library = LibraryPath(library) + "/libnvidia-ml.so.1";
    GpuReport report = Read("gpu uuid=GPU-a pci=0:1:0.0 temperature=0\n");
    ASSERT_EQ(report.gpus.size(), 1u);
    EXPECT_FALSE(report.gpus[0].has_utilisation_percent());
    EXPECT_TRUE(report.gpus[0].has_temperature_celsius());
    EXPECT_EQ(report.gpus[0].temperature_celsius(), 0u);
    EXPECT_FALSE(report.gpus[0].has_uncorrected_ecc_errors());
    EXPECT_EQ(report.gpus[0].fault(), "");
  }
}

TEST_F(NvmlTest, AGpuThatIsLostWhileItIsReadIsToldSo) {
  GpuReport report = Read("gpu uuid=GPU-a pci=0:1:0.0\ngpu_error nvmlDeviceGetTotalEccErrors 15\n");
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_THAT(report.gpus[0].fault(), StartsWith("lost"));
}

TEST_F(NvmlTest, TheEnvironmentNamesLibraryAndDevices) {
  unsetenv("DTRAIN_NVML_LIBRARY");
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("CUDA_DEVICE_ORDER");
  GpuOptions plain = GpuOptionsFromEnvironment();
  EXPECT_EQ(plain.library, "libnvidia-ml.so.1");
  EXPECT_EQ(plain.visible_devices, std::nullopt);
  setenv("DTRAIN_NVML_LIBRARY", "/opt/nvml.so", 1);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
  GpuOptions set = GpuOptionsFromEnvironment();
  EXPECT_EQ(set.library, "/opt/nvml.so");
  EXPECT_EQ(set.visible_devices, "");
  EXPECT_EQ(set.device_order, "PCI_BUS_ID");
  for (const char* name : {"DTRAIN_NVML_LIBRARY", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}) {
    unsetenv(name);
  }
}

TEST_F(NvmlTest, AReportBecomesPartOfTheInventory) {
  GpuReport report = Read(EightGpus());
  report.error = "e";
  report.warnings = {"w"};
  v1::Inventory inventory;
  inventory.add_gpus();
  inventory.add_warnings("before");
  SetGpus(std::move(report), inventory);
  EXPECT_EQ(inventory.gpus_size(), 8);
  EXPECT_EQ(inventory.gpu_driver(), "550.54.14");
  EXPECT_EQ(inventory.gpu_error(), "e");
  EXPECT_THAT(inventory.warnings(), ElementsAre("before", "w"));
}

}  // namespace
}  // namespace dtrain::inventory
