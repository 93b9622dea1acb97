// SPDX-License-Identifier: Apache-2.0
// Which of a launcher's agents a node gets, and what is sent of it. The real script, under /bin/sh
// here, with a uname that says what the test wants.
#include <cstring>

#include "launcher/transport/command_transport.h"
#include "tests/component/transport/harness.h"

namespace dtrain::transport {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A program for that machine, as far as its header goes.
std::string Elf(char machine, const std::string& loader, const std::string& content) {
  std::string header(120, '\0');
  std::memcpy(header.data(), "\177ELF\2\1\1", 7);
  header[16] = 3;
  header[18] = machine;
  header[32] = 64;  // e_phoff
  header[54] = 56;  // e_phentsize
  header[56] = 1;   // e_phnum
  header[64] = 3;   // PT_INTERP
  header[72] = 120;
  header[96] = static_cast<char>(loader.size() + 1);
  return header + loader + '\0' + content;
}
constexpr char kX86 = 62;
constexpr char kArm = static_cast<char>(183);

class AgentImagesTest : public TransportTest {
 protected:
  AgentImagesTest() {
    for (const char* folder : {"bin", "lib/dtrain", "tools"}) {
      std::filesystem::create_directories(dir_ / folder);
    }
  }
  void Install(const std::string& x86_loader, const std::string& arm_loader) {
    WriteFile(dir_ / "bin/dtrain-agent", Elf(kX86, x86_loader, Blob(300000)), 0700);
    WriteFile(dir_ / "lib/dtrain/agent-aarch64", Elf(kArm, arm_loader, Blob(200000)), 0700);
  }
  void UnameSays(const std::string& machine) {
    WriteFile(dir_ / "tools/uname",
              "#!/bin/sh\necho asked >>" + (dir_ / "asked") + "\necho " + machine + "\n", 0700);
  }
  const AgentImages& Load() {
    agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "bin/dtrain-agent");
    agent_->StartLoading();
    EXPECT_TRUE(agent_->Wait().ok()) << agent_->Wait().status();
    return *agent_->Wait();
  }
  std::string Path() const { return dir_ / "tools:/usr/bin:/bin"; }
  void Connect() {
    probe_ = Probe();  // its connection is of the transport
    transport_ = std::move(*CommandTransport::Make(
        loop_, "env PATH=" + Path() + " XDG_CACHE_HOME=" + (dir_ / "cache"), *agent_));
    probe_.connection = transport_->Connect({"NODE=1", "", 0}, probe_.callbacks());
    ASSERT_TRUE(Await([&] { return probe_.done(); }));
  }
  std::string Cached(const AgentImage& image) {
    return absl::StrCat(dir_ / "cache/dtrain/agent-", image.sha256, "/dtrain-agent");
  }
  // What is run is told by its place and size: so a script can stand for a program of elsewhere.
  void PutIntoCache(const AgentImage& image) {
    std::string script = EchoAgent();
    script.resize(image.size, '\n');
    std::filesystem::create_directories(std::filesystem::path(Cached(image)).parent_path());
    WriteFile(Cached(image), script, 0700);
  }
  bool AskedUname() { return std::filesystem::exists(dir_ / "asked"); }

  std::unique_ptr<AgentBinary> agent_;
  std::unique_ptr<CommandTransport> transport_;
  Probe probe_;
};

TEST_F(AgentImagesTest, ANodeOfEachMachineGetsItsAgent) {
  Install("/nowhere/ld-x86", "/nowhere/ld-arm");
  const AgentImages& images = Load();
  ASSERT_EQ(images.size(), 2u);
  EXPECT_EQ(images[0].machine, "x86_64");
  EXPECT_EQ(images[0].loader, "/nowhere/ld-x86");
  EXPECT_EQ(images[1].machine, "aarch64");
  for (const AgentImage& image : images) {
    UnameSays(image.machine);
    Connect();  // nothing here can run it
    EXPECT_THAT(probe_.phases,
                ElementsAre(Phase::kConnecting, Phase::kStartingAgent, Phase::kPushingAgent));
    EXPECT_TRUE(ReadAll(Cached(image)) == ReadAll(image.path)) << image.machine;
  }
}

// B7
TEST_F(AgentImagesTest, AThirdMachineIsNamedBeforeAnythingIsSent) {
  Install("/nowhere/ld-x86", "/nowhere/ld-arm");
  Load();
  UnameSays("riscv64");
  Connect();
  EXPECT_THAT(probe_.error(), AllOf(HasSubstr("of kind riscv64"),
                                    HasSubstr("an agent for x86_64 and aarch64 only")));
  EXPECT_THAT(probe_.phases, ElementsAre(Phase::kConnecting, Phase::kStartingAgent));
}

TEST_F(AgentImagesTest, AWarmNodeWithOneOfTheLoadersIsNotAskedForItsMachine) {
  Install("/nowhere/ld-x86", dir_ / "ld-arm");
  WriteFile(dir_ / "ld-arm", "");
  const AgentImages& images = Load();
  UnameSays("riscv64");
  PutIntoCache(images[1]);
  Connect();
  EXPECT_TRUE(probe_.stream) << probe_.error();
  EXPECT_FALSE(AskedUname());
}

// A home that machines of both kinds share.
TEST_F(AgentImagesTest, BothAgentsInOneCacheAreToldApart) {
  Install("/bin/sh", "/bin/true");
  const AgentImages& images = Load();
  PutIntoCache(images[0]);
  for (const AgentImage& image : images) {
    UnameSays(image.machine);
    Connect();
    const bool is_there = &image == &images[0];
    EXPECT_EQ(static_cast<bool>(probe_.stream), is_there) << image.machine;
    EXPECT_EQ(probe_.phases.size(), is_there ? 2u : 3u);
  }
  EXPECT_TRUE(AskedUname());
}

TEST_F(AgentImagesTest, AnAgentUnderTheNameOfAnotherMachineIsRejected) {
  Install("/nowhere/ld-x86", "/nowhere/ld-arm");
  std::filesystem::rename(dir_ / "lib/dtrain/agent-aarch64", dir_ / "bin/dtrain-agent");
  WriteFile(dir_ / "lib/dtrain/agent-aarch64", "#!/bin/sh\n", 0700);
  agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "bin/dtrain-agent");
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("for another machine (unknown) than its name says"));
}

TEST_F(AgentImagesTest, FromTheFourthPushOnTheAgentIsPacked) {
  WriteFile(dir_ / "bin/dtrain-agent", EchoAgent() + "#" + Blob(1 << 20), 0700);
  WriteFile(dir_ / "tools/gzip",
            "#!/bin/sh\necho >>" + (dir_ / "unpacked") + "\nexec /bin/gzip \"$@\"\n", 0700);
  const AgentImages& images = Load();
  for (int push = 1; push <= 5; ++push) {
    std::filesystem::remove_all(dir_ / "cache");
    Connect();
    ASSERT_TRUE(probe_.stream) << probe_.error();
    EXPECT_TRUE(ReadAll(Cached(images[0])) == ReadAll(images[0].path));
    EXPECT_EQ(ReadAll(dir_ / "unpacked").size(), push > 3 ? push - 3u : 0u);
    probe_ = Probe();
    transport_.reset();
  }
}

}  // namespace
}  // namespace dtrain::transport
