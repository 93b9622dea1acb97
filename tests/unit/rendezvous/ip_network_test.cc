// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ip_network.h"

#include <gmock/gmock.h>

namespace dtrain::rendezvous {
namespace {

TEST(IpNetworkTest, ReadsNetworksAndAddresses) {
  EXPECT_EQ(IpNetwork::Parse("10.1.2.3/16")->ToString(), "10.1.0.0/16");
  EXPECT_EQ(IpNetwork::Parse("10.1.2.3")->ToString(), "10.1.2.3/32");
  EXPECT_EQ(IpNetwork::Parse("2001:db8::1/33")->ToString(), "2001:db8::/33");
  EXPECT_EQ(IpNetwork::Parse("0.0.0.0/0")->ToString(), "0.0.0.0/0");
  for (const char* bad : {"", "eth0", "10.1.2/16", "10.1.2.3/33", "10.1.2.3/", "10.1.2.3/-1",
                          "10.1.2.3/8x", "::/129", "fe80::1%eth0", "/8", "10.1.2.3/8/8"}) {
    EXPECT_FALSE(IpNetwork::Parse(bad)) << bad;
  }
}

TEST(IpNetworkTest, ContainsItsAddressesOnly) {
  const IpNetwork network = *IpNetwork::Parse("10.1.0.0/15");
  EXPECT_TRUE(network.Contains(*IpAddress::Parse("10.0.255.255")));
  EXPECT_TRUE(network.Contains(*IpAddress::Parse("10.1.0.1")));
  EXPECT_FALSE(network.Contains(*IpAddress::Parse("10.2.0.1")));
  EXPECT_FALSE(network.Contains(*IpAddress::Parse("::ffff:10.1.0.1")));
  EXPECT_TRUE(IpNetwork::Parse("0.0.0.0/0")->Contains(*IpAddress::Parse("1.2.3.4")));
}

// C13
TEST(IpNetworkTest, KnowsWhatNobodyCanConnectTo) {
  for (const char* text :
       {"0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "::", "ff02::1", "fe80::1"}) {
    EXPECT_TRUE(IpAddress::Parse(text)->IsUnusable()) << text;
  }
  for (const char* text : {"10.0.0.1", "169.254.1.1", "fd00::1", "2001:db8::1"}) {
    EXPECT_FALSE(IpAddress::Parse(text)->IsUnusable()) << text;
    EXPECT_FALSE(IpAddress::Parse(text)->IsLoopback()) << text;
  }
  EXPECT_TRUE(IpAddress::Parse("127.3.2.1")->IsLoopback());
  EXPECT_TRUE(IpAddress::Parse("::1")->IsLoopback());
}

}  // namespace
}  // namespace dtrain::rendezvous
