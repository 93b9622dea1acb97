// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/allreduce/pattern.h"
#include "runtime/base/environment.h"
#include "runtime/boot/address.h"
#include "runtime/boot/pmi_client.h"
#include "runtime/boot/topology.h"

namespace dtrain::runtime {
namespace {

using testing::HasSubstr;

TEST(PmiFieldTest, FindsWholeKeysAndSplitsAtTheFirstEqualsSign) {
  const std::string_view line = "cmd=get_result rc=0 msg=success value=a=b";
  EXPECT_EQ(PmiField(line, "cmd"), "get_result");
  EXPECT_EQ(PmiField(line, "value"), "a=b");
  EXPECT_EQ(PmiField(line, "val"), std::nullopt);
  EXPECT_EQ(PmiField(line, "rc=0"), std::nullopt);
  EXPECT_EQ(PmiField("", "cmd"), std::nullopt);
  EXPECT_EQ(PmiField("cmd= rc=", "cmd"), "");
  EXPECT_EQ(PmiField("cmd= rc=", "rc"), "");
}

TEST(ProcessMappingTest, LaysBlocksOut) {
  using Nodes = std::vector<int>;
  EXPECT_EQ(ParseProcessMapping("(vector,(0,2,2))", 4), (Nodes{0, 0, 1, 1}));
  EXPECT_EQ(ParseProcessMapping("(vector,(0,1,3),(1,1,2))", 5), (Nodes{0, 0, 0, 1, 1}));
  EXPECT_EQ(ParseProcessMapping("(vector,(0,4,1))", 8), (Nodes{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(ParseProcessMapping("(vector,(0,1,1))", 2), (Nodes{0, 0}));
  EXPECT_EQ(ParseProcessMapping("(vector,(0,1,1000000000))", 3), (Nodes{0, 0, 0}));
}

TEST(ProcessMappingTest, RefusesWhatIsNoMapping) {
  for (const char* text :
       {"", "(vector)", "(vector,)", "(vector,(0,1))", "(vector,(0,0,1))", "(vector,(0,1,0))",
        "(vector,(-1,1,1))", "(vector,(0,1,1)", "(vector,(0,1,1)) ", "vector,(0,1,1)",
        "(vector,(0,1,1000000001))", "(vector,(0,1,99999999999))", "(vector, (0,1,1))"}) {
    EXPECT_EQ(ParseProcessMapping(text, 2), std::nullopt) << text;
  }
}

TEST(ProcessMappingTest, ComesBackFromItsText) {
  using Nodes = std::vector<int>;
  EXPECT_EQ(FormatProcessMapping({0, 0, 1, 1, 2, 2}), "(vector,(0,3,2))");
  for (const Nodes& nodes : {Nodes{0}, Nodes{0, 1}, Nodes{0, 0, 0, 1, 1}, Nodes{0, 1, 0, 1},
                             Nodes{0, 1, 1, 0, 2}, Nodes{5, 3, 4, 4, 5, 5}}) {
    EXPECT_EQ(ParseProcessMapping(FormatProcessMapping(nodes), static_cast<int>(nodes.size())),
              nodes);
  }
}

TEST(PlacesTest, NumbersNodesByFirstAppearance) {
  const Places places = PlacesOf(3, {7, 7, 2, 2, 7});
  EXPECT_EQ(places.node, 1);
  EXPECT_EQ(places.local, 1);
  EXPECT_EQ(places.local_size(), 2);
  EXPECT_EQ(places.node_count(), 2);
  EXPECT_EQ(places.leaders(), (std::vector<int>{0, 2}));
  EXPECT_EQ(places.before, (std::vector<int>{0, 3}));
  EXPECT_EQ(places.largest(), 3u);
  EXPECT_FALSE(places.leader());
  EXPECT_EQ(NodesByName({"b", "a", "b"}), (std::vector<int>{0, 1, 0}));
}

class EnvironmentTest : public testing::Test {
 protected:
  Result<Environment> Read() {
    return ReadEnvironment(config_, [this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    });
  }
  dtrain_config config_ = DTRAIN_CONFIG_INIT;
  std::map<std::string, std::string> variables_;
};

TEST_F(EnvironmentTest, NothingSetIsAJobOfOneRank) {
  const auto env = Read();
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(Read()->pmi_fd, -1);
  EXPECT_EQ(Read()->size, 1);
  EXPECT_EQ(Read()->init_timeout, std::chrono::seconds(300));
}

TEST_F(EnvironmentTest, ReadsTheLaunchersVariables) {
  variables_ = {{"PMI_FD", "7"}, {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}};
  auto env = Read();
  ASSERT_TRUE(env.ok()) << env.error().message;
  EXPECT_EQ(env->pmi_fd, 7);
  EXPECT_EQ(env->rank, 3);
  EXPECT_EQ(env->size, 4);
}

TEST_F(EnvironmentTest, ConfigWinsOverVariables) {
  variables_ = {{"DTRAIN_TIMEOUT_SECONDS", "2.5"}, {"DTRAIN_ADDRESS", "10.0.0.1"}};
  EXPECT_EQ(Read()->init_timeout, std::chrono::milliseconds(2500));
  EXPECT_EQ(Read()->address, "10.0.0.1");
  config_.init_timeout_ms = 70;
  config_.address = "10.0.0.2";
  EXPECT_EQ(Read()->init_timeout, std::chrono::milliseconds(70));
  EXPECT_EQ(Read()->address, "10.0.0.2");
  config_.init_timeout_ms = -1;
  EXPECT_EQ(Read().error().code, DTRAIN_ERROR_INVALID_ARGUMENT);
}

TEST_F(EnvironmentTest, RefusesToRunAloneInAJobOfSeveral) {
  for (const char* name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"}) {
    variables_ = {{name, "2"}};
    ASSERT_FALSE(Read().ok()) << name;
    EXPECT_THAT(Read().error().message, HasSubstr(name));
    variables_ = {{name, "1"}};
    EXPECT_TRUE(Read().ok()) << name;
  }
}

TEST_F(EnvironmentTest, RefusesBadNumbers) {
  for (const char* value : {"", "x", "-1", "1e9", "nan", "inf", "0", "1s"}) {
    variables_ = {{"DTRAIN_TIMEOUT_SECONDS", value}};
    EXPECT_FALSE(Read().ok()) << value;
  }
  for (const char* value : {"", "4", "-1", "0x1", " 1", "99999999999"}) {
    variables_ = {{"PMI_FD", "7"}, {"PMI_SIZE", "4"}, {"PMI_RANK", value}};
    EXPECT_FALSE(Read().ok()) << value;
  }
}

TEST_F(EnvironmentTest, FusionIsSetByOurNamesOrElseByHorovods) {
  EXPECT_EQ(Read()->fusion_threshold, size_t{128} << 20);
  EXPECT_EQ(Read()->cycle_time, std::chrono::milliseconds(1));
  variables_ = {{"HOROVOD_FUSION_THRESHOLD", "1024"}, {"HOROVOD_CYCLE_TIME", "3.5"}};
  EXPECT_EQ(Read()->fusion_threshold, 1024u);
  EXPECT_EQ(Read()->cycle_time, std::chrono::microseconds(3500));
  variables_["DTRAIN_FUSION_THRESHOLD"] = "0";
  variables_["DTRAIN_CYCLE_TIME"] = "0";
  EXPECT_EQ(Read()->fusion_threshold, 0u);
  EXPECT_EQ(Read()->cycle_time, std::chrono::microseconds(0));
}

TEST_F(EnvironmentTest, BadFusionAndBackendAreErrorsThatNameTheVariable) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"DTRAIN_FUSION_THRESHOLD", "64M"},
                                                        {"DTRAIN_FUSION_THRESHOLD", ""},
                                                        {"HOROVOD_FUSION_THRESHOLD", "-1"},
                                                        {"DTRAIN_CYCLE_TIME", "fast"},
                                                        {"HOROVOD_CYCLE_TIME", "-0.5"},
                                                        {"HOROVOD_CYCLE_TIME", "nan"},
                                                        {"DTRAIN_BACKEND", "gloo"},
                                                        {"DTRAIN_BACKEND", ""}}) {
    variables_ = {{name, value}};
    const auto env = Read();
    ASSERT_FALSE(env.ok()) << name << "=" << value;
    EXPECT_EQ(env.error().code, DTRAIN_ERROR_ENVIRONMENT);
    EXPECT_THAT(env.error().message, HasSubstr(name + "=" + value));
  }
}

TEST_F(EnvironmentTest, ReadsTheBackendAndThePage) {
  variables_ = {{"DTRAIN_BACKEND", "cpu"}, {"DTRAIN_PAGE_FD", "9"}};
  EXPECT_EQ(Read()->backend, BackendChoice::kCpu);
  EXPECT_EQ(Read()->page_fd, 9);
  variables_ = {{"DTRAIN_PAGE_FD", "x"}};
  EXPECT_TRUE(Read().ok()) << "the page is the launcher's affair";
  EXPECT_EQ(Read()->page_fd, -1);
}

const std::vector<InterfaceAddress> kHost = {{"lo", "127.0.0.1", false, true},
                                             {"docker0", "172.17.0.1", false, false},
                                             {"eth0", "fd00::5", true, false},
                                             {"eth1", "10.0.0.5", false, false}};

TEST(AddressTest, FollowsTheOrderOfChoice) {
  EXPECT_EQ(*ChooseAddress("10.9.9.9", "eth0", true, kHost), "10.9.9.9");
  EXPECT_EQ(*ChooseAddress("", "eth9,eth0,eth1", true, kHost), "fd00::5");
  EXPECT_EQ(*ChooseAddress("", "", true, kHost), "127.0.0.1");
  EXPECT_EQ(*ChooseAddress("", "", false, kHost), "10.0.0.5");
}

TEST(AddressTest, SaysWhatTheHostHas) {
  EXPECT_THAT(ChooseAddress("", "eth", false, kHost).error().message, HasSubstr("eth1 10.0.0.5"));
  EXPECT_THAT(ChooseAddress("", "", false, {kHost[0], kHost[1]}).error().message,
              HasSubstr("docker0 172.17.0.1"));
  EXPECT_FALSE(ChooseAddress("example.org", "", false, kHost).ok());
}

TEST(PatternTest, FindsWrongElements) {
  const allreduce::Pattern<float> pattern(0, 3, DTRAIN_SUM);
  std::vector<float> data(100);
  for (size_t i = 0; i < data.size(); ++i) data[i] = pattern.expected(i);
  size_t first = 0;
  EXPECT_EQ(pattern.CountWrong(data.data(), data.size(), first), 0u);
  data[7] += 1;
  data[99] = 0.5f;
  EXPECT_EQ(pattern.CountWrong(data.data(), data.size(), first), 2u);
  EXPECT_EQ(first, 7u);
  allreduce::Pattern<float>::FillMark(data.data(), data.size());
  EXPECT_EQ(pattern.CountWrong(data.data(), data.size(), first), data.size());
}

TEST(PatternTest, ShiftedDataIsWrong) {
  const allreduce::Pattern<int32_t> pattern(0, 4, DTRAIN_SUM);
  size_t equal = 0;
  for (size_t i = 0; i < 23; ++i) equal += pattern.expected(i) == pattern.expected(i + 1) ? 1 : 0;
  EXPECT_LT(equal, 23u);
}

}  // namespace
}  // namespace dtrain::runtime
