// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/address_choice.h"

#include <gmock/gmock.h>

#include <deque>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"

namespace dtrain::rendezvous {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Nic {
  std::string name;
  std::string ip;
  uint32_t prefix = 24;
  bool physical = true;
  uint32_t speed = 0;
  bool up = true;
  bool loopback = false;
};

class AddressChoiceTest : public testing::Test {
 public:
  void AddNode(const std::vector<Nic>& nics, const std::string& host = "",
               const std::string& reached = "") {
    hosts_.push_back(host.empty() ? absl::StrCat("n", hosts_.size()) : host);
    reached_.push_back(reached);
    v1::Inventory& inventory = inventories_.emplace_back();
    for (const Nic& nic : nics) {
      v1::Interface& interface = *inventory.add_interfaces();
      interface.set_name(nic.name);
      interface.set_up(nic.up);
      interface.set_loopback(nic.loopback);
      interface.set_physical(nic.physical);
      interface.set_speed_mbps(nic.speed);
      v1::Address& address = *interface.add_addresses();
      address.set_ip(nic.ip);
      address.set_prefix_length(nic.prefix);
    }
    inventory.set_probe_port(100 + static_cast<uint32_t>(inventories_.size()));
    inventory.set_probe_reply(absl::StrCat("reply", inventories_.size() - 1));
  }
  std::vector<AddressNode> Nodes() const {
    std::vector<AddressNode> nodes;
    for (size_t i = 0; i < inventories_.size(); ++i) {
      nodes.push_back({hosts_[i], &inventories_[i], reached_[i]});
    }
    return nodes;
  }
  static std::vector<std::string> Ips(const std::vector<Candidate>& candidates) {
    std::vector<std::string> ips;
    for (const Candidate& candidate : candidates) ips.push_back(candidate.ip);
    return ips;
  }
  // The choice when `reach` says who reaches what.
  absl::StatusOr<std::vector<Chosen>> Choose(
      const std::function<bool(size_t prober, size_t target, const std::string& ip)>& reach,
      const std::string& net = "") {
    const auto candidates = FindCandidates(Nodes(), net);
    if (!candidates.ok()) return candidates.status();
    const auto requests = MakeProbeRequests(Nodes(), *candidates, 0, "token", 1000);
    std::vector<v1::ProbeReport> reports(requests.size());
    for (size_t p = 0; p < requests.size(); ++p) {
      for (const v1::ProbeTarget& target : requests[p].targets()) {
        v1::ProbeOutcome& outcome = *reports[p].add_outcomes();
        outcome.set_node(target.node());
        outcome.set_ip(target.ip());
        outcome.set_reached(reach(p, target.node(), target.ip()));
        outcome.set_error("timed out");
      }
    }
    return ChooseAddresses(Nodes(), *candidates, requests, reports);
  }
  std::vector<std::string> ChosenIps(
      const std::function<bool(size_t, size_t, const std::string&)>& reach = All) {
    const auto chosen = Choose(reach);
    EXPECT_TRUE(chosen.ok()) << chosen.status();
    std::vector<std::string> ips;
    if (chosen.ok()) {
      for (const Chosen& each : *chosen) ips.push_back(each.ip);
    }
    return ips;
  }
  static bool All(size_t, size_t, const std::string&) { return true; }

  std::deque<v1::Inventory> inventories_;
  std::vector<std::string> hosts_, reached_;
};

constexpr auto kSlowAndFast = [](int host) {
  return std::vector<Nic>{{.name = "eth0", .ip = absl::StrCat("10.0.0.", host), .speed = 1000},
                          {.name = "ib0", .ip = absl::StrCat("192.168.7.", host), .speed = 100000},
                          {.name = "br0", .ip = absl::StrCat("10.9.0.", host), .physical = false}};
};

TEST_F(AddressChoiceTest, TwoNamesOfOneMachineShareItsAddresses) {
  for (const char* ip : {"10.0.0.1", "10.0.0.1", "10.0.0.2"}) {
    AddNode(
        {{.name = "docker0", .ip = "172.17.0.1", .physical = false}, {.name = "eth0", .ip = ip}});
    inventories_.back().set_boot_id(absl::StrCat("boot of ", ip));
    inventories_.back().set_network_namespace(7);
  }
  EXPECT_THAT(ChosenIps(), ElementsAre("10.0.0.1", "10.0.0.1", "10.0.0.2"));
  // Containers of one machine with networks of their own are machines of their own.
  inventories_[1].set_network_namespace(8);
  EXPECT_FALSE(FindCandidates(Nodes(), "").ok());
}

TEST_F(AddressChoiceTest, WhatTheUserWroteIsUsed) {
  AddNode(kSlowAndFast(1), "10.0.0.1", "10.0.0.1");
  AddNode(kSlowAndFast(2), "10.0.0.2", "10.0.0.2");
  AddNode(kSlowAndFast(3));  // the launching machine, say
  EXPECT_THAT(ChosenIps(), ElementsAre("10.0.0.1", "10.0.0.2", "10.0.0.3"));
}

TEST_F(AddressChoiceTest, EvenWhereItIsVirtual) {
  AddNode(kSlowAndFast(1), "10.9.0.1");
  AddNode(kSlowAndFast(2), "10.9.0.2");
  EXPECT_THAT(ChosenIps(), ElementsAre("10.9.0.1", "10.9.0.2"));
}

TEST_F(AddressChoiceTest, WhatWasWrittenAndCannotBeReachedIsNotUsed) {
  AddNode(kSlowAndFast(1), "10.0.0.1");
  AddNode(kSlowAndFast(2), "10.0.0.2");
  const auto chosen =
      Choose([](size_t, size_t, const std::string& ip) { return ip.find("10.0.0.") != 0; });
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->at(0).ip, "192.168.7.1");
  EXPECT_THAT(WhyChosen(*FindCandidates(Nodes(), ""), *chosen),
              HasSubstr("192.168.7.0/24 (ib0), as not all hosts can reach each other at the "
                        "addresses in the list of hosts"));
}

TEST_F(AddressChoiceTest, WhereANameLeadsDecidesBetweenEquals) {
  for (const int host : {1, 2}) {
    AddNode({{.name = "eth0", .ip = absl::StrCat("10.0.0.", host)},
             {.name = "ib0", .ip = absl::StrCat("192.168.7.", host)}},
            "", absl::StrCat("192.168.7.", host));
  }
  EXPECT_THAT(ChosenIps(), ElementsAre("192.168.7.1", "192.168.7.2"));
}

TEST_F(AddressChoiceTest, AFasterNetworkIsBetterThanWhereANameLeads) {
  AddNode(kSlowAndFast(1), "", "10.0.0.1");
  AddNode(kSlowAndFast(2), "", "10.0.0.2");
  EXPECT_THAT(ChosenIps(), ElementsAre("192.168.7.1", "192.168.7.2"));
}

// As ssh does, which the workers should not.
TEST_F(AddressChoiceTest, ANameThatLeadsToIpv6MeansTheInterface) {
  for (const int host : {1, 2}) {
    AddNode({{.name = "eth0", .ip = absl::StrCat("10.0.0.", host)},
             {.name = "eth1", .ip = absl::StrCat("192.168.7.", host)}},
            "", absl::StrCat("fd00::", host));
    v1::Address& address = *inventories_.back().mutable_interfaces(1)->add_addresses();
    address.set_ip(absl::StrCat("fd00::", host));
    address.set_prefix_length(64);
  }
  EXPECT_THAT(ChosenIps(), ElementsAre("192.168.7.1", "192.168.7.2"));
}

TEST_F(AddressChoiceTest, TheChoiceAmongSeveralIsExplained) {
  AddNode(kSlowAndFast(1), "10.0.0.1");
  AddNode(kSlowAndFast(2), "10.0.0.2");
  EXPECT_EQ(WhyChosen(*FindCandidates(Nodes(), ""), *Choose(All)),
            "the workers use 10.0.0.0/24 (eth0), which the list of hosts names; 10.9.0.0/24, "
            "192.168.7.0/24 are there, too (--net chooses)");
  EXPECT_THAT(Offers(Nodes(), *FindCandidates(Nodes(), "")),
              ElementsAre("10.0.0.1 has 10.0.0.1 on eth0, 192.168.7.1 on ib0, 10.9.0.1 on br0",
                          testing::_));
  EXPECT_EQ(WhyChosen(*FindCandidates(Nodes(), "eth0"), *Choose(All, "eth0")), "");
}

TEST_F(AddressChoiceTest, NoWordIsLostOnIpv6BesideIpv4) {
  for (const int host : {1, 2}) {
    AddNode({{.name = "eth0", .ip = absl::StrCat("10.0.0.", host)},
             {.name = "eth0", .ip = absl::StrCat("fd00::", host), .prefix = 64}});
  }
  EXPECT_EQ(WhyChosen(*FindCandidates(Nodes(), ""), *Choose(All)), "");
}

TEST_F(AddressChoiceTest, OneNodeUsesLoopback) {
  AddNode({{.name = "lo", .ip = "127.0.0.1", .prefix = 8, .loopback = true},
           {.name = "eth0", .ip = "10.0.0.1"}});
  const auto chosen = Choose(All);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->at(0).ip, "127.0.0.1");
  EXPECT_EQ(chosen->at(0).interface_name, "lo");
  const auto wanted = Choose(All, "eth0");
  ASSERT_TRUE(wanted.ok());
  EXPECT_EQ(wanted->at(0).ip, "10.0.0.1");
}

TEST_F(AddressChoiceTest, InterfaceNamesMayDiffer) {
  AddNode({{.name = "eth0", .ip = "10.0.0.1"}});
  AddNode({{.name = "ens5", .ip = "10.0.0.2"}});
  const auto chosen = Choose(All);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->at(0).interface_name, "eth0");
  EXPECT_EQ(chosen->at(1).interface_name, "ens5");
}

// C13: what a node claims is not taken for true.
TEST_F(AddressChoiceTest, UselessAddressesAreNoCandidates) {
  AddNode({{.name = "lo", .ip = "127.0.0.1", .prefix = 8, .loopback = true},
           {.name = "any", .ip = "0.0.0.0"},
           {.name = "down", .ip = "10.3.0.1", .up = false},
           {.name = "v6", .ip = "fe80::1", .prefix = 64},
           {.name = "junk", .ip = "not an address"},
           {.name = "docker0", .ip = "172.17.0.1", .physical = false},
           {.name = "eth0", .ip = "10.0.0.1"}});
  AddNode({{.name = "docker0", .ip = "172.17.0.1", .physical = false},
           {.name = "eth0", .ip = "10.0.0.2"}});
  const auto candidates = FindCandidates(Nodes(), "");
  ASSERT_TRUE(candidates.ok());
  EXPECT_THAT(Ips(candidates->at(0)), ElementsAre("10.0.0.1"));
  EXPECT_THAT(Ips(candidates->at(1)), ElementsAre("10.0.0.2"));
}

TEST_F(AddressChoiceTest, ANodeWithoutCandidatesIsNamedWithWhatItHas) {
  AddNode({{.name = "eth0", .ip = "10.0.0.1"}});
  AddNode({{.name = "lo", .ip = "127.0.0.1", .prefix = 8, .loopback = true}});
  const auto candidates = FindCandidates(Nodes(), "");
  EXPECT_TRUE(absl::IsUnavailable(candidates.status()));
  EXPECT_THAT(std::string(candidates.status().message()),
              AllOf(HasSubstr("n1"), HasSubstr("127.0.0.1 on lo (loopback)")));
}

TEST_F(AddressChoiceTest, NetNarrowsByNetworkOrName) {
  for (int i = 1; i <= 2; ++i) {
    AddNode({{.name = "eth0", .ip = absl::StrCat("10.0.0.", i)},
             {.name = "ib0", .ip = absl::StrCat("10.9.0.", i), .speed = 100000}});
  }
  EXPECT_THAT(Ips(FindCandidates(Nodes(), "10.0.0.0/8")->at(0)),
              ElementsAre("10.9.0.1", "10.0.0.1"));
  EXPECT_THAT(Ips(FindCandidates(Nodes(), "10.0.0.0/24")->at(0)), ElementsAre("10.0.0.1"));
  EXPECT_THAT(Ips(FindCandidates(Nodes(), "eth0")->at(1)), ElementsAre("10.0.0.2"));
  const auto none = FindCandidates(Nodes(), "192.168.0.0/16");
  EXPECT_TRUE(absl::IsInvalidArgument(none.status()));
  EXPECT_THAT(std::string(none.status().message()), AllOf(HasSubstr("n0"), HasSubstr("10.9.0.1")));
}

TEST(CheckNetTest, RefusesWhatIsNeitherNetworkNorName) {
  for (const char* good : {"", "eth0", "enp3s0f1np1", "10.0.0.0/8", "fd00::/8", "10.0.0.1"}) {
    EXPECT_TRUE(CheckNet(good).ok()) << good;
  }
  for (const char* bad :
       {"10.0.0.0/33", "a/b", "an_interface_name_too_long", "eth 0", "^eth", "\x1b"}) {
    EXPECT_FALSE(CheckNet(bad).ok()) << bad;
  }
}

TEST_F(AddressChoiceTest, AtMostEightCandidatesTheBestOnes) {
  std::vector<Nic> nics;
  for (int i = 0; i < 20; ++i) {
    nics.push_back({.name = absl::StrCat("e", i),
                    .ip = absl::StrCat("10.", i, ".0.1"),
                    .speed = static_cast<uint32_t>(i)});
  }
  AddNode(nics);
  AddNode({{.name = "eth0", .ip = "10.0.0.2"}});
  const auto candidates = FindCandidates(Nodes(), "");
  ASSERT_TRUE(candidates.ok());
  EXPECT_EQ(candidates->at(0).size(), kMaxCandidates);
  EXPECT_EQ(candidates->at(0)[0].ip, "10.19.0.1");
}

TEST_F(AddressChoiceTest, ANetworkThatAllShareComesFirst) {
  AddNode(
      {{.name = "fast", .ip = "10.1.0.1", .speed = 100000}, {.name = "slow", .ip = "10.5.0.1"}});
  AddNode(
      {{.name = "fast", .ip = "10.2.0.2", .speed = 100000}, {.name = "slow", .ip = "10.5.0.2"}});
  EXPECT_THAT(ChosenIps(), ElementsAre("10.5.0.1", "10.5.0.2"));
}

TEST_F(AddressChoiceTest, PhysicalComesBeforeVirtualAndSpeedNext) {
  for (int i = 1; i <= 2; ++i) {
    AddNode({{.name = "tun0", .ip = absl::StrCat("10.8.0.", i), .physical = false, .speed = 400000},
             {.name = "eth0", .ip = absl::StrCat("10.0.0.", i), .speed = 1000},
             {.name = "ib0", .ip = absl::StrCat("10.9.0.", i), .speed = 100000}});
  }
  EXPECT_THAT(ChosenIps(), ElementsAre("10.9.0.1", "10.9.0.2"));
  EXPECT_THAT(ChosenIps([](size_t, size_t, const std::string& ip) { return ip[3] != '9'; }),
              ElementsAre("10.0.0.1", "10.0.0.2"));
  EXPECT_THAT(ChosenIps([](size_t, size_t, const std::string& ip) { return ip[3] == '8'; }),
              ElementsAre("10.8.0.1", "10.8.0.2"));
}

TEST_F(AddressChoiceTest, TheSlowestNodesSpeedCounts) {
  AddNode({{.name = "a", .ip = "10.1.0.1", .speed = 100000},
           {.name = "b", .ip = "10.2.0.1", .speed = 10000}});
  AddNode({{.name = "a", .ip = "10.1.0.2", .speed = 1000},
           {.name = "b", .ip = "10.2.0.2", .speed = 10000}});
  EXPECT_THAT(ChosenIps(), ElementsAre("10.2.0.1", "10.2.0.2"));
}

TEST_F(AddressChoiceTest, IPv4ComesBeforeIPv6OfTheSameInterface) {
  for (int i = 1; i <= 2; ++i) {
    AddNode({{.name = "eth0", .ip = absl::StrCat("fd00::", i), .prefix = 64},
             {.name = "eth0", .ip = absl::StrCat("10.0.0.", i)}});
  }
  EXPECT_THAT(ChosenIps(), ElementsAre("10.0.0.1", "10.0.0.2"));
  EXPECT_THAT(ChosenIps([](size_t, size_t, const std::string& ip) { return ip[0] == 'f'; }),
              ElementsAre("fd00::1", "fd00::2"));
}

// Clouds give each machine a /32, data centres a network per rack.
TEST_F(AddressChoiceTest, RoutedNetworksNeedNoCommonPrefix) {
  AddNode({{.name = "vpn", .ip = "100.64.0.1", .physical = false},
           {.name = "eth0", .ip = "10.1.0.1", .prefix = 32}});
  AddNode({{.name = "vpn", .ip = "100.64.0.2", .physical = false},
           {.name = "eth0", .ip = "10.2.0.1", .prefix = 32}});
  EXPECT_THAT(ChosenIps(), ElementsAre("10.1.0.1", "10.2.0.1"));
}

TEST_F(AddressChoiceTest, AnAddressMustBeReachedByAllWhoTried) {
  for (int i = 1; i <= 3; ++i) {
    AddNode({{.name = "ib0", .ip = absl::StrCat("10.9.0.", i), .speed = 100000},
             {.name = "eth0", .ip = absl::StrCat("10.0.0.", i)}});
  }
  const auto one_bad_link = [](size_t prober, size_t target, const std::string& ip) {
    return !(prober == 2 && target == 1 && ip == "10.9.0.2");
  };
  EXPECT_THAT(ChosenIps(one_bad_link), ElementsAre("10.0.0.1", "10.0.0.2", "10.0.0.3"));
}

TEST_F(AddressChoiceTest, WhatIsReachedByNobodyIsNamedPairByPair) {
  for (int i = 1; i <= 3; ++i) AddNode({{.name = "eth0", .ip = absl::StrCat("10.0.0.", i)}});
  const auto chosen = Choose([](size_t, size_t target, const std::string&) { return target != 2; });
  EXPECT_TRUE(absl::IsUnavailable(chosen.status()));
  EXPECT_THAT(
      std::string(chosen.status().message()),
      AllOf(HasSubstr("n0 cannot reach n2 at 10.0.0.3 port 103: timed out"),
            HasSubstr("n1 cannot reach n2"), HasSubstr("--net"), Not(HasSubstr("reach n1"))));
}

TEST_F(AddressChoiceTest, AReportThatSaysLessOrMoreThanAskedProvesNothing) {
  for (int i = 1; i <= 2; ++i) AddNode({{.name = "eth0", .ip = absl::StrCat("10.0.0.", i)}});
  const auto candidates = FindCandidates(Nodes(), "");
  const auto requests = MakeProbeRequests(Nodes(), *candidates, 0, "token", 1000);
  std::vector<v1::ProbeReport> reports(2);
  for (uint32_t n = 0; n < 5; ++n) {
    v1::ProbeOutcome& outcome = *reports[0].add_outcomes();
    outcome.set_node(n);
    outcome.set_ip("10.0.0.9");
    outcome.set_reached(true);
  }
  const auto chosen = ChooseAddresses(Nodes(), *candidates, requests, reports);
  EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("no outcome was reported"));
  EXPECT_FALSE(ChooseAddresses(Nodes(), *candidates, requests, {}).ok());
}

TEST_F(AddressChoiceTest, AllPairsAreTriedUpToSixteenNodes) {
  for (int i = 1; i <= 16; ++i) AddNode({{.name = "eth0", .ip = absl::StrCat("10.0.0.", i)}});
  const auto requests = MakeProbeRequests(Nodes(), *FindCandidates(Nodes(), ""), 0, "token", 1000);
  for (size_t p = 0; p < requests.size(); ++p) {
    EXPECT_EQ(requests[p].targets().size(), 15);
    EXPECT_EQ(requests[p].token(), "token");
    EXPECT_EQ(requests[p].timeout_ms(), 1000u);
    for (const v1::ProbeTarget& target : requests[p].targets()) {
      EXPECT_NE(target.node(), p);
      EXPECT_EQ(target.port(), 101 + target.node());
      EXPECT_EQ(target.expected_reply(), absl::StrCat("reply", target.node()));
    }
  }
}

TEST_F(AddressChoiceTest, ManyNodesTryTheMasterTheirNeighboursAndSixMore) {
  for (int i = 0; i < 200; ++i) AddNode({{.name = "eth0", .ip = absl::StrCat("10.0.1.", i + 1)}});
  const size_t master = 5;
  const auto requests =
      MakeProbeRequests(Nodes(), *FindCandidates(Nodes(), ""), master, "token", 1000);
  std::set<uint32_t> probed;
  for (size_t p = 0; p < requests.size(); ++p) {
    std::set<uint32_t> targets;
    for (const v1::ProbeTarget& target : requests[p].targets()) targets.insert(target.node());
    probed.insert(targets.begin(), targets.end());
    EXPECT_LE(targets.size(), 9u);
    EXPECT_GE(targets.size(), 8u);
    EXPECT_FALSE(targets.contains(p));
    EXPECT_TRUE(p == master || targets.contains(master));
    EXPECT_TRUE(targets.contains((p + 1) % 200));
    EXPECT_TRUE(targets.contains((p + 199) % 200));
  }
  EXPECT_EQ(probed.size(), 200u);
}

TEST_F(AddressChoiceTest, WhatIsPreferredIsWhatWouldBeChosenIfAllWorked) {
  for (int i = 1; i <= 3; ++i) {
    AddNode({{.name = "docker0", .ip = "172.17.0.1", .physical = false},
             {.name = "eth0", .ip = absl::StrCat("10.0.0.", i)},
             {.name = "ib0", .ip = absl::StrCat("10.9.0.", i), .speed = 100000}});
  }
  const Candidates preferred = Preferred(*FindCandidates(Nodes(), ""));
  std::vector<std::string> ips;
  for (const auto& mine : preferred) {
    ASSERT_EQ(mine.size(), 1u);
    ips.push_back(mine[0].ip);
  }
  EXPECT_EQ(ips, ChosenIps());
}

}  // namespace
}  // namespace dtrain::rendezvous
