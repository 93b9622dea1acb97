// SPDX-License-Identifier: Apache-2.0
// The parts of the NCCL backend that need neither NCCL nor a GPU.
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/nccl/libraries.h"
#include "runtime/nccl/member.h"
#include "runtime/nccl/options.h"

namespace dtrain::runtime {
namespace {

Member MemberOn(const std::string& host, const std::string& uuid, const std::string& pci) {
  Member member;
  member.host = host;
  member.node = "boot id of " + host;
  member.uuid = uuid;
  member.pci = pci;
  member.nccl_version = 22809;
  return member;
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(NcclMember, SurvivesItsEncoding) {
  Member member = MemberOn("a", "GPU-1", "0000:3b:00.0");
  member.error = "no driver";
  member.share_gpu = true;
  member.several_per_gpu = true;
  member.stray = true;
  member.pinned = "GPU-2";
  member.settings = std::string("\0\n\xff", 3);
  member.unique_id = std::string(128, '\0');
  const std::string bytes = EncodeMember(member);
  const auto back = DecodeMember(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(EncodeMember(*back), bytes);
  EXPECT_EQ(back->settings, member.settings);
  EXPECT_TRUE(back->share_gpu);
  EXPECT_TRUE(back->several_per_gpu);
  EXPECT_TRUE(back->stray);
  EXPECT_EQ(back->pinned, "GPU-2");
}

TEST(NcclMember, AnyCutOrAddedByteIsRefused) {
  const std::string bytes = EncodeMember(MemberOn("a", "GPU-1", "0000:3b:00.0"));
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeMember(bytes.substr(0, n))) << n;
  EXPECT_FALSE(DecodeMember(bytes + "x"));
  EXPECT_FALSE(DecodeMember(std::string(4, '\xff') + bytes.substr(4)));
  EXPECT_FALSE(DecodeMember(bytes.substr(0, 4) + std::string(bytes.size(), '\xff')));
}

TEST(NcclMember, AVeryLongTextIsCutToWhatABootstrapTakes) {
  Member member = MemberOn(std::string(100000, 'h'), "GPU-1", "0000:3b:00.0");
  member.error = std::string(100000, 'e');
  EXPECT_LT(EncodeMember(member).size(), 2048u);
  EXPECT_TRUE(DecodeMember(EncodeMember(member)));
}

TEST(NcclMembers, WithGpusOfTheirOwnAreAccepted) {
  // Equal addresses on different machines are different GPUs.
  EXPECT_FALSE(
      CheckMembers({MemberOn("a", "GPU-1", "0000:3b:00.0"), MemberOn("a", "GPU-2", "0000:86:00.0"),
                    MemberOn("b", "GPU-1", "0000:3b:00.0")}));
}

// M6
TEST(NcclMembers, WithOneGpuForTwoAreRefusedUnlessBothShareIt) {
  std::vector<Member> members = {MemberOn("a", "GPU-1", "0000:3b:00.0"),
                                 MemberOn("b", "GPU-2", "0000:3b:00.0"),
                                 MemberOn("a", "GPU-1", "0000:3b:00.0")};
  const MaybeError error = CheckMembers(members);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_DEVICE);
  EXPECT_TRUE(Contains(error->message,
                       "rank 0 and rank 2 would both use GPU-1 (0000:3b:00.0) of "
                       "host a, which NCCL does not support"))
      << error->message;
  members[2].share_gpu = true;
  EXPECT_TRUE(CheckMembers(members));
  members[0].share_gpu = true;
  EXPECT_FALSE(CheckMembers(members));
}

TEST(NcclMembers, OnOneGpuByItsUuidAreRefusedWithWhatTheLauncherGaveThem) {
  std::vector<Member> members = {MemberOn("a", "GPU-1", "0000:3b:00.0"),
                                 MemberOn("a", "GPU-1", "00000000:3b:00.0")};
  members[0].pinned = "GPU-1";
  members[1].pinned = "GPU-2";
  const MaybeError error = CheckMembers(members);
  ASSERT_TRUE(error);
  EXPECT_TRUE(Contains(error->message, "rank 0 and rank 1 would both use GPU-1")) << error->message;
  EXPECT_TRUE(Contains(error->message, "The launcher gave them GPU-1 and GPU-2")) << error->message;
  EXPECT_TRUE(Contains(error->message, "cudaSetDevice")) << error->message;
  members[1].pinned = "GPU-1";
  EXPECT_FALSE(Contains(CheckMembers(members)->message, "The launcher gave"));
}

TEST(NcclMembers, OnOtherGpusThanTheLauncherGaveThemAreNamed) {
  std::vector<Member> members;
  for (const char* gpu : {"GPU-1", "GPU-2", "GPU-3"}) {
    members.push_back(MemberOn("a", gpu, gpu));
    members.back().pinned = gpu;
  }
  EXPECT_EQ(DescribeStrays(members), "");
  // Exchanged, and one that no rank of the job was given.
  std::swap(members[0].uuid, members[1].uuid);
  members[2].uuid = "GPU-9";
  members[2].stray = true;
  EXPECT_EQ(DescribeStrays(members),
            "rank 0 (host a) uses GPU-2, the one of rank 1, and was given GPU-1; rank 1 (host a) "
            "uses GPU-1, the one of rank 0, and was given GPU-2; rank 2 (host a) uses GPU-9, and "
            "was given GPU-3");
  // The second of two that it has for its own.
  members = {MemberOn("a", "GPU-2", "2")};
  members[0].pinned = "GPU-1";
  EXPECT_EQ(DescribeStrays(members), "");
  // Nothing is known without a launcher.
  members[0].pinned = "";
  members[0].stray = true;
  EXPECT_EQ(DescribeStrays(members), "");
}

Pinning PinningOf(const std::string& start, const std::string& now) {
  return ReadPinning(VariablesOf(start), VariablesOf(now));
}

TEST(NcclPinning, IsWhatTheProcessStartedWith) {
  using namespace std::string_literals;
  const std::string start = "A=1\0CUDA_VISIBLE_DEVICES=GPU-1,GPU-2,MIG-3\0DTRAIN_DEVICE=1\0"s;
  const Pinning same = PinningOf(start, start);
  EXPECT_EQ(same.visible, (std::vector<std::string>{"GPU-1", "GPU-2", "MIG-3"}));
  EXPECT_EQ(same.own, "GPU-2");
  EXPECT_TRUE(same.stands);
  EXPECT_FALSE(same.renumbered);
  const Pinning narrowed = PinningOf(start, "CUDA_VISIBLE_DEVICES=1\0DTRAIN_DEVICE=1\0"s);
  EXPECT_EQ(narrowed.own, "GPU-2");
  EXPECT_TRUE(narrowed.stands && narrowed.renumbered);
  const Pinning own = PinningOf(start, "CUDA_VISIBLE_DEVICES=1\0DTRAIN_DEVICE=0\0"s);
  EXPECT_FALSE(own.stands || own.renumbered) << "the program means what it says";
  // By a script around the program, or by a user who says nothing of UUIDs.
  const std::string script = "CUDA_VISIBLE_DEVICES=3\0DTRAIN_DEVICE=3\0"s;
  EXPECT_TRUE(PinningOf(script, script).renumbered);
  EXPECT_EQ(PinningOf(script, script).own, "");
  EXPECT_FALSE(PinningOf("DTRAIN_DEVICE=3\0"s, "DTRAIN_DEVICE=3\0"s).renumbered);
  EXPECT_EQ(PinningOf("CUDA_VISIBLE_DEVICES=GPU-1\0DTRAIN_DEVICE=7\0"s, "").own, "");
  EXPECT_TRUE(PinningOf("CUDA_VISIBLE_DEVICES=GPU-1,2\0"s, "").visible.empty());
  EXPECT_TRUE(PinningOf("", "").visible.empty());
}

TEST(NcclPinning, KnowsAGpuByAnyKindOfItsUuid) {
  EXPECT_TRUE(SameGpu("GPU-5d1c", "GPU-5d1c"));
  EXPECT_TRUE(SameGpu("MIG-5d1c", "GPU-5d1c"));
  EXPECT_TRUE(SameGpu("GPU-5d", "GPU-5d1c"));
  EXPECT_FALSE(SameGpu("GPU-5d1d", "GPU-5d1c"));
  EXPECT_FALSE(SameGpu("GPU-", "GPU-5d1c"));
  EXPECT_FALSE(SameGpu("", "GPU-5d1c"));
}

// M6, N14: NCCL 2.30 compares addresses at first, later the GPU's UUID, which slices share.
TEST(NcclMembers, OnSlicesOfOneGpuNeedAnNcclThatWasAskedForIt) {
  std::vector<Member> members = {MemberOn("a", "MIG-1", "0000:3b:00.0"),
                                 MemberOn("a", "MIG-2", "0000:3b:00.0")};
  members[0].nccl_version = members[1].nccl_version = 23003;
  const MaybeError error = CheckMembers(members);
  ASSERT_TRUE(error);
  EXPECT_TRUE(Contains(error->message, "slices")) << error->message;
  EXPECT_TRUE(Contains(error->message, "NCCL_MULTI_RANK_GPU_ENABLE=1")) << error->message;
  members[0].several_per_gpu = true;
  EXPECT_TRUE(CheckMembers(members));
  members[1].several_per_gpu = true;
  EXPECT_FALSE(CheckMembers(members));
  members[0].nccl_version = members[1].nccl_version = 22907;
  EXPECT_TRUE(CheckMembers(members));
}

TEST(NcclMembers, WithDifferentSettingsAreRefusedByName) {
  std::vector<Member> members = {MemberOn("a", "GPU-1", "1"), MemberOn("b", "GPU-2", "1")};
  members[1].settings = NcclSettings([](const char* name) -> const char* {
    return std::string(name) == "NCCL_ALGO" ? "Ring" : nullptr;
  });
  const MaybeError error = CheckMembers(members);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_ENVIRONMENT);
  EXPECT_TRUE(Contains(error->message,
                       "none of NCCL's settings on rank 0 (host a), NCCL_ALGO=Ring "
                       "on rank 1 (host b)"))
      << error->message;
}

TEST(NcclMembers, WithDifferentNcclsAreRefusedByName) {
  std::vector<Member> members = {MemberOn("a", "GPU-1", "1"), MemberOn("b", "GPU-2", "1")};
  members[1].nccl_version = 21805;
  const MaybeError error = CheckMembers(members);
  ASSERT_TRUE(error);
  EXPECT_TRUE(Contains(error->message, "2.18.5 on rank 1 (host b); 2.28.9 on rank 0 (host a)"))
      << error->message;
}

TEST(NcclMembers, ThatCannotTakePartAreNamedFirstAndNotAll) {
  std::vector<Member> members(9, MemberOn("a", "GPU-1", "1"));
  for (Member& member : members) member.error = "no driver";
  const MaybeError error = CheckMembers(members);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message.rfind("rank 0 (host a): no driver; rank 1 (host a): no driver", 0), 0u);
  EXPECT_TRUE(Contains(error->message, "; and 5 more ranks")) << error->message;
}

Result<NcclOptions> Read(const std::map<std::string, std::string>& variables) {
  return ReadNcclOptions(
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      VariablesOf(""));
}

TEST(NcclOptions, HaveTheDocumentedDefaults) {
  const auto options = *Read({});
  EXPECT_FALSE(options.share_gpu);
  EXPECT_FALSE(options.device);
  // NCCL itself gives up after 60 s, and knows more about why.
  EXPECT_EQ(options.init_timeout, std::chrono::seconds(120));
  EXPECT_EQ(options.init_timeout_per_rank, std::chrono::milliseconds(50));
  EXPECT_EQ(options.longest_end, std::chrono::seconds(10));
}

TEST(NcclOptions, AreReadFromTheEnvironment) {
  const auto options = *Read(
      {{"DTRAIN_SHARE_GPU", "1"}, {"DTRAIN_DEVICE", "3"}, {"DTRAIN_NCCL_INIT_SECONDS", "2.5"}});
  EXPECT_TRUE(options.share_gpu);
  EXPECT_EQ(options.device, 3);
  EXPECT_EQ(options.init_timeout, std::chrono::milliseconds(2500));
}

TEST(NcclOptions, ThatMakeNoSenseAreRefusedWithTheirName) {
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"DTRAIN_SHARE_GPU", "yes"},
                                          {"DTRAIN_DEVICE", "-1"},
                                          {"DTRAIN_NCCL_INIT_SECONDS", "nan"}}) {
    const auto options = Read({{name, value}});
    ASSERT_FALSE(options.ok()) << name;
    EXPECT_EQ(options.error().code, DTRAIN_ERROR_ENVIRONMENT);
    EXPECT_TRUE(Contains(options.error().message, name + "=" + value));
  }
}

TEST(NcclVersion, IsWrittenAsNvidiaWritesIt) {
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(21403), "2.14.3");
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

}  // namespace
}  // namespace dtrain::runtime
