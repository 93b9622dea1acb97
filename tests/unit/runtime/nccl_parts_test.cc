// SPDX-License-Identifier: Apache-2.0
// The parts of the NCCL backend that need neither NCCL nor a GPU.
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/nccl/libraries.h"
#include "runtime/nccl/member.h"
#include "runtime/nccl/options.h"
#include "runtime/nccl/wish.h"

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
  member.ip = "10.0.0.1";
  member.port = 65535;
  member.token = std::string("\0\n\xff", 3);
  member.unique_id = std::string(128, '\0');
  const std::string bytes = EncodeMember(member);
  const auto back = DecodeMember(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(EncodeMember(*back), bytes);
  EXPECT_EQ(back->token, member.token);
  EXPECT_EQ(back->port, member.port);
  EXPECT_TRUE(back->share_gpu);
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

// M6
TEST(NcclMembers, OnSlicesOfOneGpuNeedAnNcclThatKnowsThem) {
  std::vector<Member> members = {MemberOn("a", "MIG-1", "0000:3b:00.0"),
                                 MemberOn("a", "MIG-2", "0000:3b:00.0")};
  const MaybeError error = CheckMembers(members);
  ASSERT_TRUE(error);
  EXPECT_TRUE(Contains(error->message, "slices")) << error->message;
  members[0].nccl_version = members[1].nccl_version = 23001;
  EXPECT_FALSE(CheckMembers(members));
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

Collective Sum(size_t count) {
  Collective what;
  what.kind = Collective::Kind::kAllreduce;
  what.count = count;
  return what;
}

// M5
TEST(NcclWishes, ThatDifferAreNamedWithTheirRanks) {
  Collective broadcast;
  broadcast.kind = Collective::Kind::kBroadcast;
  broadcast.count = 4;
  broadcast.root = 3;
  const std::vector<Wish> wishes = {MakeWish(Sum(4)), MakeWish(Sum(4)), MakeWish(Sum(5)),
                                    MakeWish(broadcast)};
  const MaybeError error = CompareWishes(wishes, {"rank 0", "rank 1", "rank 2 (host b)", "rank 3"});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_MISMATCH);
  EXPECT_EQ(error->message,
            "the ranks do not ask for the same thing: rank 0, rank 1 ask for allreduce sum of 4 "
            "int32; rank 2 (host b) asks for allreduce sum of 5 int32; rank 3 asks for broadcast "
            "from rank 3 of 4 int32");
}

TEST(NcclWishes, DoNotDifferInWhatTheirKindDoesNotUse) {
  Collective one = Sum(4), other = Sum(4);
  one.root = 1;
  other.number = 7;
  EXPECT_FALSE(CompareWishes({MakeWish(one), MakeWish(other)}, {"rank 0", "rank 1"}));
  one.kind = other.kind = Collective::Kind::kAllgather;
  one.op = DTRAIN_MAX;
  EXPECT_FALSE(CompareWishes({MakeWish(one), MakeWish(other)}, {"rank 0", "rank 1"}));
  one.kind = other.kind = Collective::Kind::kBarrier;
  one.count = 9;
  one.type = DTRAIN_FLOAT64;
  EXPECT_FALSE(CompareWishes({MakeWish(one), MakeWish(other)}, {"rank 0", "rank 1"}));
}

TEST(NcclWishes, OfAnUnknownKindAreSaidToBeSo) {
  Wish odd;
  odd.kind = 99;
  const MaybeError error = CompareWishes({MakeWish(Sum(4)), odd}, {"rank 0", "rank 1"});
  ASSERT_TRUE(error);
  EXPECT_TRUE(Contains(error->message, "rank 1 asks for an unknown collective"));
}

Result<NcclOptions> Read(const std::map<std::string, std::string>& variables) {
  return ReadNcclOptions([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(NcclOptions, HaveTheDocumentedDefaults) {
  const auto options = *Read({});
  EXPECT_FALSE(options.share_gpu);
  EXPECT_FALSE(options.check);
  EXPECT_FALSE(options.device);
  EXPECT_EQ(options.init_timeout, std::chrono::seconds(60));
  EXPECT_EQ(options.longest_end, std::chrono::seconds(10));
}

TEST(NcclOptions, AreReadFromTheEnvironment) {
  const auto options = *Read({{"DTRAIN_SHARE_GPU", "1"},
                              {"DTRAIN_CHECK", "0"},
                              {"DTRAIN_DEVICE", "3"},
                              {"DTRAIN_NCCL_INIT_SECONDS", "2.5"}});
  EXPECT_TRUE(options.share_gpu);
  EXPECT_FALSE(options.check);
  EXPECT_EQ(options.device, 3);
  EXPECT_EQ(options.init_timeout, std::chrono::milliseconds(2500));
}

TEST(NcclOptions, ThatMakeNoSenseAreRefusedWithTheirName) {
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"DTRAIN_SHARE_GPU", "yes"},
                                          {"DTRAIN_CHECK", "2"},
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
