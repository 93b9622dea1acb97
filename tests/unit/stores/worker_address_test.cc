// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/worker_address.h"

#include <gmock/gmock.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace dtrain::stores {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// Made by pickle of Python 3.11 from ({"eth0": [("10.0.0.2", 4242)]}, bytes(range(32))): protocols
// 2 to 5.
constexpr char kOne2[] =
    "gAJ9cQBYBAAAAGV0aDBxAV1xAlgIAAAAMTAuMC4wLjJxA02SEIZxBGFzY19jb2RlY3MKZW5jb2RlCnEF"
    "WCAAAAAAAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eH3EGWAYAAABsYXRpbjFxB4ZxCFJxCYZx"
    "Ci4=";
constexpr char kOne3[] =
    "gAN9cQBYBAAAAGV0aDBxAV1xAlgIAAAAMTAuMC4wLjJxA02SEIZxBGFzQyAAAQIDBAUGBwgJCgsMDQ4P"
    "EBESExQVFhcYGRobHB0eH3EFhnEGLg==";
constexpr char kOne4[] =
    "gASVQwAAAAAAAAB9lIwEZXRoMJRdlIwIMTAuMC4wLjKUTZIQhpRhc0MgAAECAwQFBgcICQoLDA0ODxAR"
    "EhMUFRYXGBkaGxwdHh+UhpQu";
constexpr char kOne5[] =
    "gAWVQwAAAAAAAAB9lIwEZXRoMJRdlIwIMTAuMC4wLjKUTZIQhpRhc0MgAAECAwQFBgcICQoLDA0ODxAR"
    "EhMUFRYXGBkaGxwdHh+UhpQu";
// ({"eth0": [("10.0.0.2", 4242), ("10.0.0.3", 4242)], "lo": [("127.0.0.1", 4242)]}, …): 3 to 5.
constexpr char kSeveral3[] =
    "gAN9cQAoWAQAAABldGgwcQFdcQIoWAgAAAAxMC4wLjAuMnEDTZIQhnEEWAgAAAAxMC4wLjAuM3EFTZIQ"
    "hnEGZVgCAAAAbG9xB11xCFgJAAAAMTI3LjAuMC4xcQlNkhCGcQphdUMgAAECAwQFBgcICQoLDA0ODxAR"
    "EhMUFRYXGBkaGxwdHh9xC4ZxDC4=";
constexpr char kSeveral4[] =
    "gASVbgAAAAAAAAB9lCiMBGV0aDCUXZQojAgxMC4wLjAuMpRNkhCGlIwIMTAuMC4wLjOUTZIQhpRljAJs"
    "b5RdlIwJMTI3LjAuMC4xlE2SEIaUYXVDIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4flIaU"
    "Lg==";
constexpr char kSeveral5[] =
    "gAWVbgAAAAAAAAB9lCiMBGV0aDCUXZQojAgxMC4wLjAuMpRNkhCGlIwIMTAuMC4wLjOUTZIQhpRljAJs"
    "b5RdlIwJMTI3LjAuMC4xlE2SEIaUYXVDIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4flIaU"
    "Lg==";
// One address whose port is 80, and 70000.
constexpr char kSmallPort[] =
    "gAWVQQAAAAAAAAB9lIwCbG+UXZSMCTEyNy4wLjAuMZRLUIaUYXNDIAABAgMEBQYHCAkKCwwNDg8QERIT"
    "FBUWFxgZGhscHR4flIaULg==";
constexpr char kBigPort[] =
    "gAWVRAAAAAAAAAB9lIwCbG+UXZSMCTEyNy4wLjAuMZRKcBEBAIaUYXNDIAABAgMEBQYHCAkKCwwNDg8Q"
    "ERITFBUWFxgZGhscHR4flIaULg==";
// Two interfaces with the same string object as their address: protocols 3 and 5.
constexpr char kShared3[] =
    "gAN9cQAoWAEAAABhcQFdcQJYCAAAADEwLjAuMC4ycQNNkhCGcQRhWAEAAABicQVdcQZoA02SEIZxB2F1"
    "QyAAAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eH3EIhnEJLg==";
constexpr char kShared5[] =
    "gAWVTwAAAAAAAAB9lCiMAWGUXZSMCDEwLjAuMC4ylE2SEIaUYYwBYpRdlGgDTZIQhpRhdUMgAAECAwQF"
    "BgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+UhpQu";

std::string KeyOfTests() {
  std::string key;
  for (char c = 0; c < 32; ++c) key += c;
  return key;
}

std::vector<std::string> PlacesOf(const WorkerAddress& address) {
  std::vector<std::string> places;
  for (const auto& place : address.places)
    places.push_back(absl::StrCat(place.ip, " ", place.port));
  return places;
}

// "eth0 10.0.0.2 4242": what was read, or the error.
absl::StatusOr<std::vector<std::string>> ReadPlaces(absl::string_view base64) {
  const auto address = ReadWorkerAddress(base64);
  if (!address.ok()) return address.status();
  EXPECT_EQ(address->key, KeyOfTests());
  return PlacesOf(*address);
}

// Pickles by hand, for what Python writes only for other values, or never.
std::string Op(std::initializer_list<int> bytes) {
  std::string text;
  for (const int byte : bytes) text += static_cast<char>(byte);
  return text;
}
std::string TextOp(absl::string_view text) {
  return absl::StrCat(Op({0x8c, static_cast<int>(text.size())}), text);
}
std::string Port() { return Op({'M', 0x92, 0x10}); }
std::string KeyOp() { return absl::StrCat("C ", KeyOfTests()); }
std::string AddressOp() { return absl::StrCat(TextOp("10.0.0.2"), Port(), Op({0x86})); }
// A whole one around the list of one interface.
std::string Around(absl::string_view list) {
  return absl::StrCat(Op({0x80, 5}), "}", TextOp("lo"), list, "s", KeyOp(), Op({0x86, '.'}));
}
absl::StatusOr<WorkerAddress> ReadPickle(absl::string_view pickle) {
  return ReadWorkerAddress(absl::Base64Escape(pickle));
}
std::string ErrorOf(absl::string_view pickle) {
  const auto address = ReadPickle(pickle);
  return address.ok() ? "it was read" : std::string(address.status().message());
}

TEST(WorkerAddressTest, WhatPythonWritesIsRead) {
  for (const char* one : {kOne3, kOne4, kOne5}) {
    const auto places = ReadPlaces(one);
    ASSERT_TRUE(places.ok()) << places.status();
    EXPECT_THAT(*places, ElementsAre("10.0.0.2 4242"));
  }
  for (const char* several : {kSeveral3, kSeveral4, kSeveral5}) {
    const auto places = ReadPlaces(several);
    ASSERT_TRUE(places.ok()) << places.status();
    EXPECT_THAT(*places, ElementsAre("10.0.0.2 4242", "10.0.0.3 4242", "127.0.0.1 4242"));
  }
}

TEST(WorkerAddressTest, APortOfOneByteAndAStringThatIsUsedTwice) {
  ASSERT_TRUE(ReadPlaces(kSmallPort).ok());
  EXPECT_THAT(*ReadPlaces(kSmallPort), ElementsAre("127.0.0.1 80"));
  for (const char* shared : {kShared3, kShared5}) {
    const auto places = ReadPlaces(shared);
    ASSERT_TRUE(places.ok()) << places.status();
    EXPECT_THAT(*places, ElementsAre("10.0.0.2 4242"));
  }
}

TEST(WorkerAddressTest, LongNamesAndKeysAndManyAddresses) {
  // BINUNICODE and BINBYTES.
  const std::string name(300, 'n'), key(300, 'k');
  const auto address =
      ReadPickle(absl::StrCat(Op({0x80, 4}), "}", "X", Op({0x2c, 1, 0, 0}), name, "]", AddressOp(),
                              "as", "B", Op({0x2c, 1, 0, 0}), key, Op({0x86, '.'})));
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->key, key);
  // LONG_BINPUT and LONG_BINGET, from the 257th on; a tuple with a mark.
  const auto far =
      ReadPickle(Around(absl::StrCat("](", TextOp("10.0.0.2"), "r", Op({1, 2, 0, 0}), Port(),
                                     Op({0x86}), "(j", Op({1, 2, 0, 0}), "K", Op({80}), "t", "e")));
  ASSERT_TRUE(far.ok()) << far.status();
  EXPECT_THAT(PlacesOf(*far), ElementsAre("10.0.0.2 4242", "10.0.0.2 80"));
}

// As Python 3 pickles bytes with protocol 2: by a call of _codecs.encode.
TEST(WorkerAddressTest, NothingThatNamesAClassIsRead) {
  EXPECT_EQ(ReadWorkerAddress(kOne2).status().message(),
            "opcode 0x63 is not one that addresses need (byte 42 of 122)");
  // GLOBAL, INST, OBJ, REDUCE, BUILD, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, PERSID, BINPERSID, EXT1.
  for (const int opcode : {0x63, 0x69, 0x6f, 0x52, 0x62, 0x81, 0x92, 0x93, 0x50, 0x51, 0x82}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(Op({0x80, 2, opcode}), "os\nsystem\n")),
                HasSubstr("is not one that addresses need (byte 2 of"));
  }
}

TEST(WorkerAddressTest, EveryCutIsAnError) {
  for (const char* whole : {kOne3, kOne5, kSeveral3, kSeveral5, kShared5, kSmallPort}) {
    std::string pickle;
    ASSERT_TRUE(absl::Base64Unescape(whole, &pickle));
    for (size_t size = 0; size < pickle.size(); ++size) {
      EXPECT_THAT(ErrorOf(pickle.substr(0, size)), HasSubstr("it is cut short")) << size;
    }
    EXPECT_THAT(ErrorOf(pickle + "N"), HasSubstr("bytes follow its end"));
  }
  // A frame that is longer than what there is.
  const auto framed = [](int size) {
    return ErrorOf(absl::StrCat(Op({0x80, 5, 0x95, size, 0, 0, 0, 0, 0, 0, 0}), "])."));
  };
  EXPECT_THAT(framed(3), HasSubstr("does not end with one value"));
  EXPECT_THAT(framed(4), HasSubstr("it is cut short"));
}

TEST(WorkerAddressTest, OnlyThisShape) {
  const auto shape = [](const std::string& pickle) {
    const std::string error = ErrorOf(pickle);
    EXPECT_THAT(error, StartsWith("it is not ({interface: [(ip, port), ...]}, key): "));
    return error.substr(error.find("): ") + 3);
  };
  EXPECT_EQ(shape(Op({0x80, 5, ')', '.'})), "it is not a pair");
  EXPECT_EQ(shape(absl::StrCat(Op({0x80, 5}), "]", KeyOp(), Op({0x86, '.'}))),
            "the first is not a dict");
  EXPECT_EQ(shape(absl::StrCat(Op({0x80, 5}), "}", KeyOp(), Op({0x86, '.'}))),
            "there is no address");
  EXPECT_EQ(shape(absl::StrCat(Op({0x80, 5}), "}", TextOp("key"), Op({0x86, '.'}))),
            "the key is not bytes");
  EXPECT_EQ(shape(Op({0x80, 5, '}', 'C', 0, 0x86, '.'})), "the key has 0 bytes");
  EXPECT_EQ(shape(Around("]")), "there is no address");
  EXPECT_EQ(shape(Around(TextOp("x"))), "an interface has no list");
  EXPECT_EQ(shape(Around("])a")), "an address is not a pair");
  EXPECT_EQ(shape(Around(absl::StrCat("]", Port(), Port(), Op({0x86}), "a"))),
            "an address is not a text and a number");
  EXPECT_EQ(shape(Around(absl::StrCat("]", TextOp(""), Port(), Op({0x86}), "a"))),
            "an address has 0 bytes");
  EXPECT_EQ(shape(Around(absl::StrCat("]", TextOp("::1"), Op({'K', 0, 0x86, 'a'})))),
            "a port is 0");
  EXPECT_EQ(
      shape(Around(absl::StrCat("]", TextOp("::1"), Op({'J', 0xff, 0xff, 0xff, 0xff, 0x86, 'a'})))),
      "a port is -1");
  EXPECT_EQ(shape([] {
              std::string pickle;
              EXPECT_TRUE(absl::Base64Unescape(kBigPort, &pickle));
              return pickle;
            }()),
            "a port is 70000");
}

TEST(WorkerAddressTest, WhatIsNotThereIsNotTaken) {
  for (const char* program :
       {"\x86", "t",    "a",     "e",    "s",     "u",  "]a", "}s", "}]s",     "(a",     "]((ae",
        "}(]u", "](]a", "}(]]s", "\x94", "(\x94", "q0", "h0", "hh", "(](\x86", "]](\x86"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(Op({0x80, 5}), program, ".")),
                testing::AnyOf(HasSubstr("that is not there"), HasSubstr("that are not there"),
                               HasSubstr("has not kept")))
        << absl::CEscape(program);
  }
  EXPECT_THAT(ErrorOf(absl::StrCat(Op({0x80, 5}), "}]a.")), HasSubstr("cannot hold them"));
  EXPECT_THAT(ErrorOf(absl::StrCat(Op({0x80, 5}), "]]]s.")), HasSubstr("cannot hold them"));
  EXPECT_THAT(ErrorOf(Op({0x80, 5, '.'})), HasSubstr("does not end with one value"));
  EXPECT_THAT(ErrorOf(Op({0x80, 5, ']', ']', '.'})), HasSubstr("does not end with one value"));
  EXPECT_THAT(ErrorOf(Op({0x80, 5, ']', '(', '.'})), HasSubstr("does not end with one value"));
  EXPECT_THAT(ErrorOf(Op({0x80, 5, 0x80, 5, ']', '.'})), HasSubstr("it begins twice"));
  EXPECT_THAT(ErrorOf("]."), HasSubstr("does not begin as a pickle"));
  for (const int protocol : {0, 1, 6}) {
    EXPECT_THAT(ErrorOf(Op({0x80, protocol, ']', '.'})), HasSubstr("its protocol is"));
  }
}

// A list that contains itself, as its own address.
TEST(WorkerAddressTest, AValueWithinItselfIsHarmless) {
  EXPECT_THAT(ErrorOf(Around("]q0h0a")), HasSubstr("an address is not a pair"));
}

TEST(WorkerAddressTest, ItsSizeIsBounded) {
  EXPECT_THAT(ErrorOf(std::string(kMostPickle + 3, ']')), HasSubstr("the limit is"));
  EXPECT_EQ(ReadWorkerAddress("!").status().message(), "it is not base64");
  EXPECT_THAT(ErrorOf(absl::StrCat(Op({0x80, 5}), std::string(5000, ']'))),
              HasSubstr("more than 4096 values"));
  EXPECT_THAT(ErrorOf(absl::StrCat(Op({0x80, 5}), std::string(9, '('))),
              HasSubstr("nested too deeply"));
  std::string keeps = Op({0x80, 5, ']'});
  for (int i = 0; i < 5000; ++i) keeps += Op({0x94});
  EXPECT_THAT(ErrorOf(keeps), HasSubstr("keeps more than 4096 values"));
  // Many interfaces that share one long list.
  std::string shares = absl::StrCat(Op({0x80, 5}), "}(", TextOp("lo"), Op({'q', 1}), "](",
                                    AddressOp(), Op({'q', 0}));
  for (int i = 0; i < 3000; ++i) shares += Op({'h', 0});
  shares += Op({'e', 'q', 2});
  for (int i = 0; i < 3000; ++i) shares += Op({'h', 1, 'h', 2});
  EXPECT_THAT(ErrorOf(absl::StrCat(shares, "u", KeyOp(), Op({0x86, '.'}))),
              HasSubstr("there are too many addresses"));
  std::string many = "](";
  for (int i = 0; i < 200; ++i) {
    many += absl::StrCat(TextOp(absl::StrCat("10.0.0.", i)), Port(), Op({0x86}));
  }
  const auto cut = ReadPickle(Around(many + "e"));
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->places.size(), 64u);
}

}  // namespace
}  // namespace dtrain::stores
