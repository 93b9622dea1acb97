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
  ExpectUnusable(environment, {"does not tell its version"});
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
