// SPDX-License-Identifier: Apache-2.0
// Finding NCCL and the driver, and what is said when they will not do.
#include <string>
#include <thread>
#include <vector>

#include "tests/component/runtime/nccl_ranks.h"

namespace dtrain::runtime {
namespace {

// Why NCCL is not usable in a process with these variables; empty: it is.
void ExpectUnusable(std::map<std::string, std::string> environment,
                    const std::vector<std::string>& parts) {
  RunNccl(1, environment, [&](NcclRank&) {
    std::string why;
    EXPECT_FALSE(NcclUsable(why));
    for (const std::string& part : parts) {
      EXPECT_NE(why.find(part), std::string::npos) << why << "\nlacks " << part;
    }
  });
}

TEST(NcclLibraries, AreUsableWhenBothAreThere) {
  RunNccl(1, FakeEnvironment(), [](NcclRank&) {
    std::string why;
    EXPECT_TRUE(NcclUsable(why)) << why;
    EXPECT_EQ((*LoadLibraries())->nccl.version, 22809);
  });
}

TEST(NcclLibraries, SayWhichFileIsMissing) {
  auto environment = FakeEnvironment();
  environment["DTRAIN_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2";
  ExpectUnusable(environment, {"DTRAIN_NCCL_LIBRARY=/nowhere/libnccl.so.2", "No such file"});
  environment["DTRAIN_CUDA_LIBRARY"] = "/nowhere/libcuda.so.1";
  ExpectUnusable(environment, {"DTRAIN_CUDA_LIBRARY=/nowhere/libcuda.so.1", "No such file"});
}

TEST(NcclLibraries, SayThatTheVersionIsTooOld) {
  auto environment = FakeEnvironment();
  environment["FAKE_NCCL_VERSION"] = "21003";
  ExpectUnusable(environment, {"NCCL 2.10.3", "too old", "2.14.3"});
  environment["FAKE_NCCL_VERSION"] = "2708";
  ExpectUnusable(environment, {"NCCL 2.7.8", "too old"});
}

TEST(NcclLibraries, SayWhichFunctionIsMissingInWhichVersion) {
  ExpectUnusable(FakeEnvironment("fake_nccl_broken"), {"NCCL 2.28.9", "no function ncclSend:"});
  // Something that is no NCCL at all.
  auto environment = FakeEnvironment();
  environment["DTRAIN_NCCL_LIBRARY"] = environment["DTRAIN_CUDA_LIBRARY"];
  ExpectUnusable(environment, {"does not report its version"});
  environment["DTRAIN_CUDA_LIBRARY"] = "libm.so.6";
  ExpectUnusable(environment, {"has no function cuInit, "});
}

TEST(NcclLibraries, SayThatThereIsNoGpu) {
  auto environment = FakeEnvironment();
  environment["FAKE_CUDA_DEVICES"] = "0";
  ExpectUnusable(environment, {"no CUDA-capable device is detected (CUDA error 100)"});
  environment = FakeEnvironment();
  environment["FAKE_CUDA_INIT_ERROR"] = "803";
  ExpectUnusable(environment, {"CUDA error 803"});
}

TEST(NcclLibraries, ARankThatHasNoneIsNamedOnTheOthers) {
  RunNccl(3, FakeEnvironment(), [](NcclRank& self) {
    if (self.rank == 1) setenv("DTRAIN_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    auto made = self.Make();
    ASSERT_FALSE(made.ok());
    const std::string& text = made.error().message;
    EXPECT_NE(text.find("/nowhere/libnccl.so.2"), std::string::npos) << text;
    if (self.rank != 1) {
      EXPECT_EQ(text.rfind("rank 1 (host ", 0), 0u) << text;
    }
  });
}

TEST(NcclLibraries, DifferentVersionsAreRefusedWithTheRanksThatHaveThem) {
  RunNccl(3, FakeEnvironment(), [](NcclRank& self) {
    if (self.rank == 2) setenv("FAKE_NCCL_VERSION", "22708", 1);
    auto made = self.Make();
    ASSERT_FALSE(made.ok());
    const std::string& text = made.error().message;
    EXPECT_NE(text.find("2.27.8 on rank 2 (host "), std::string::npos) << text;
    EXPECT_NE(text.find("2.28.9 on rank 0 (host "), std::string::npos) << text;
  });
}

TEST(NcclDevice, IsTheOneWithTheLocalRanksNumber) {
  RunNccl(2, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_NE((*made)->Description().find(self.rank == 0 ? "Fake GPU 0" : "Fake GPU 1"),
              std::string::npos)
        << (*made)->Description();
  });
}

TEST(NcclDevice, IsTheOneThatTheProgramHasChosen) {
  RunNccl(2, FakeEnvironment(), [](NcclRank& self) {
    std::vector<std::string> found;
    const auto make = [&] {
      auto made = self.Make();
      ASSERT_TRUE(made.ok()) << made.error().message;
      found.push_back((*made)->Description());
    };
    auto device = Device::Open((*LoadLibraries())->cuda, self.rank + 4, std::nullopt);
    ASSERT_TRUE(device.ok());
    {
      const Device::Scope scope(**device);
      make();
    }
    // Also for a group that another thread makes.
    std::thread(make).join();
    ASSERT_EQ(found.size(), 2u);
    for (const std::string& text : found) {
      EXPECT_NE(text.find(self.rank == 0 ? "Fake GPU 4" : "Fake GPU 5"), std::string::npos) << text;
    }
  });
}

// The UUID of one of the fake's GPUs.
std::string FakeUuid(int gpu) {
  const std::string byte = std::to_string(11 + gpu);
  const std::string two = byte + byte;
  return "GPU-" + two + two + "-" + two + "-" + two + "-" + two + "-" + two + two + two;
}

// What `dtrain launch` starts a worker with: all GPUs of the node, or its own.
Variables Launched(const std::vector<int>& gpus, int own) {
  std::string list;
  for (const int gpu : gpus) list += (list.empty() ? "" : ",") + FakeUuid(gpu);
  std::string block = "CUDA_VISIBLE_DEVICES=" + list;
  block += '\0';
  block += "DTRAIN_DEVICE=" + std::to_string(own);
  return VariablesOf(block + '\0');
}

// As the variables of the process are, if it leaves them alone.
void Take(const Variables& start) {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "DTRAIN_DEVICE"}) setenv(name, start(name), 1);
}

TEST(NcclDevice, IsTheOneThatTheLauncherHasGivenWhateverTheProgramMakesVisible) {
  enum class Program { kLeavesThem, kNarrowsToItsOwn, kNarrowsToAnother, kReverses, kChooses };
  for (const bool narrow : {false, true}) {
    for (const Program program :
         {Program::kLeavesThem, Program::kNarrowsToItsOwn, Program::kNarrowsToAnother,
          Program::kReverses, Program::kChooses}) {
      RunNccl(2, FakeEnvironment(), [&](NcclRank& self) {
        const int own = 5 - 2 * self.rank;  // the launcher's order is not CUDA's
        self.start = narrow ? Launched({own}, 0) : Launched({5, 3, 6}, self.rank);
        Take(self.start);
        int expected = own;
        const auto see = [](const char* gpus) { setenv("CUDA_VISIBLE_DEVICES", gpus, 1); };
        if (program == Program::kNarrowsToItsOwn) see(std::to_string(own).c_str());
        if (program == Program::kNarrowsToAnother) {
          expected = self.rank + 1;
          see(std::to_string(expected).c_str());
        }
        if (program == Program::kReverses) see("7,6,5,4,3,2,1,0");
        if (program == Program::kChooses) {
          see("0,1,2,3");
          expected = 2 + self.rank;
          setenv("DTRAIN_DEVICE", std::to_string(expected).c_str(), 1);
        }
        testing::internal::CaptureStderr();
        auto made = self.Make();
        const std::string said = testing::internal::GetCapturedStderr();
        ASSERT_TRUE(made.ok()) << made.error().message;
        const std::string description = (*made)->Description();
        EXPECT_NE(description.find("Fake GPU " + std::to_string(expected)), std::string::npos)
            << description << ", program " << static_cast<int>(program);
        const bool strays = expected != own;
        EXPECT_EQ(
            said.find("not on the GPUs that the launcher chose: rank 0 ") != std::string::npos,
            strays && self.rank == 0)
            << said << ", program " << static_cast<int>(program);
        int32_t value = 1;
        Collective sum;
        sum.kind = Collective::Kind::kAllreduce;
        sum.type = DTRAIN_INT32;
        sum.count = 1;
        sum.input = sum.output = &value;
        Spent spent;
        const MaybeError error = (*made)->Run(sum, std::chrono::seconds(20), spent);
        EXPECT_FALSE(error) << error->message;
        EXPECT_EQ(value, 2);
      });
    }
  }
}

// By a script around the program, so that nothing is known of the launcher's.
TEST(NcclDevice, IsTheOnlyOneThatAScriptHasLeft) {
  RunNccl(3, FakeEnvironment(), [](NcclRank& self) {
    setenv("CUDA_VISIBLE_DEVICES", std::to_string(self.rank + 2).c_str(), 1);
    setenv("DTRAIN_DEVICE", std::to_string(self.rank).c_str(), 1);
    self.start = [](const char* name) { return std::getenv(name); };
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    const std::string description = (*made)->Description();
    EXPECT_NE(description.find("Fake GPU " + std::to_string(self.rank + 2)), std::string::npos)
        << description;
  });
}

// NCCL would hang on some ranks.
TEST(NcclDevice, OfTwoRanksThatHaveForgottenToChooseIsRefusedOnAllWithTheirOwn) {
  RunNccl(3, FakeEnvironment(), [](NcclRank& self) {
    self.start = Launched({0, 1, 2}, self.rank);
    Take(self.start);
    // As a program whose every rank begins on cuda:0.
    auto device = Device::Open((*LoadLibraries())->cuda, self.rank == 2 ? 2 : 0, std::nullopt);
    ASSERT_TRUE(device.ok());
    const Device::Scope scope(**device);
    const auto begin = std::chrono::steady_clock::now();
    auto made = self.Make();
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, DTRAIN_ERROR_DEVICE);
    for (const std::string& part : {std::string("rank 0 and rank 1 would both use ") + FakeUuid(0),
                                    "The launcher gave them " + FakeUuid(0) + " and " + FakeUuid(1),
                                    std::string("torch.cuda.set_device")}) {
      EXPECT_NE(made.error().message.find(part), std::string::npos) << made.error().message;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  });
}

TEST(NcclPinning, IsReadFromTheProcesssBeginning) {
  const char* const path = std::getenv("PATH");
  ASSERT_NE(path, nullptr);
  const std::string before = path;
  setenv("PATH", "/changed", 1);
  const Variables start = StartVariables();
  setenv("PATH", before.c_str(), 1);
  ASSERT_NE(start("PATH"), nullptr);
  EXPECT_EQ(start("PATH"), before);
  EXPECT_EQ(start("PAT"), nullptr);
}

TEST(NcclDevice, ANumberThatIsNotThereIsRefused) {
  auto environment = FakeEnvironment();
  environment["DTRAIN_DEVICE"] = "8";
  RunNccl(1, environment, [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, DTRAIN_ERROR_ENVIRONMENT);
    EXPECT_NE(made.error().message.find("DTRAIN_DEVICE=8"), std::string::npos);
  });
}

}  // namespace
}  // namespace dtrain::runtime
