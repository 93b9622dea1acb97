// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/tcp_wire.h"

#include <random>

#include "tests/unit/stores/tcp_clients.h"

namespace dtrain::stores {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// All of it, in pieces of `piece` bytes; with the error at the end, if there is one.
struct Parsed {
  std::vector<TcpRequest> requests;
  absl::Status status;
  TcpDialect dialect = TcpDialect::kUnknown;
};
Parsed ParseIn(absl::string_view bytes, size_t piece) {
  Parsed out;
  TcpParser parser;
  while (!bytes.empty() && out.status.ok()) {
    absl::string_view now = bytes.substr(0, piece);
    bytes.remove_prefix(now.size());
    while (true) {
      auto next = parser.Next(now);
      out.status = next.status();
      if (!next.ok() || !*next) break;
      out.requests.push_back(**next);
    }
  }
  out.dialect = parser.dialect();
  return out;
}

std::string Text(const Parsed& parsed) {
  std::string out;
  for (const TcpRequest& request : parsed.requests) {
    out += std::string(TcpOpName(request.op)) + "(" + std::to_string(request.number);
    for (const std::string& text : request.texts) out += "," + text;
    out += ")";
  }
  return out + (parsed.status.ok() ? "" : "!" + std::string(parsed.status.message()));
}

std::string ClassicTalk() {
  return Byte(3) + Str("init/") + B64(1) + Byte(0) + Str("/a") + Str("v") + Byte(1) + Str("/a") +
         Str("v") + Str("w") + Byte(2) + Str("/a") + Byte(4) + B64(2) + Str("/a") + Str("/b") +
         Byte(5) + B64(0) + Byte(6) + Byte(7) + Str("/w") + Byte(8) + Str("/a") + Byte(9) +
         Str("/a") + Str("") + Byte(10) + B64(1) + Str("/a") + Byte(11) + B64(2) + Str("/x") +
         Str("1") + Str("/y") + Str("2") + Byte(12);
}
constexpr char kClassicTalk[] =
    "ADD(1,init/)SET(0,/a,v)COMPARE_SET(0,/a,v,w)GET(0,/a)CHECK(0,/a,/b)WAIT(0)GETNUMKEYS(0)"
    "WATCH_KEY(0,/w)DELETE_KEY(0,/a)APPEND(0,/a,)MULTI_GET(0,/a)MULTI_SET(0,/x,1,/y,2)"
    "CANCEL_WAIT(0)";

std::string ValidatedTalk() {
  return Greeting() + Byte(13) + Bytes<uint32_t>(77) + Byte(4) + Str("init/") + B64(1) + Byte(1) +
         Str("/a") + Str("v") + Byte(2) + Str("/a") + Str("v") + Str("w") + Byte(3) + Str("/a") +
         Byte(5) + B64(1) + Str("/a") + Byte(6) + B64(1) + Str("/b") + Byte(7) + Byte(8) +
         Str("/a") + Byte(9) + Str("/a") + Str("x") + Byte(10) + B64(1) + Str("/a") + Byte(11) +
         B64(1) + Str("/x") + Str("1") + Byte(12) + Byte(14) + Str("/q") + Str("v") + Byte(15) +
         Str("/q") + Byte(16) + Str("/q") + Byte(17) + Byte(18) + Str("/b") + B64(3);
}
constexpr char kValidatedTalk[] =
    "VALIDATE(0)PING(77)ADD(1,init/)SET(0,/a,v)COMPARE_SET(0,/a,v,w)GET(0,/a)CHECK(0,/a)WAIT(0,/b)"
    "GETNUMKEYS(0)DELETE_KEY(0,/a)APPEND(0,/a,x)MULTI_GET(0,/a)MULTI_SET(0,/x,1)CANCEL_WAIT(0)"
    "QUEUE_PUSH(0,/q,v)QUEUE_POP(0,/q)QUEUE_LEN(0,/q)LIST_KEYS(0)BARRIER(3,/b)";

TEST(TcpWireTest, EveryOperationOfTheClassicDialectSplitAtEveryByte) {
  const std::string talk = ClassicTalk();
  for (size_t piece = 1; piece <= talk.size(); ++piece) {
    const Parsed parsed = ParseIn(talk, piece);
    ASSERT_EQ(Text(parsed), kClassicTalk) << piece;
    ASSERT_EQ(parsed.dialect, TcpDialect::kClassic);
  }
}

TEST(TcpWireTest, EveryOperationOfTheValidatedDialectSplitAtEveryByte) {
  const std::string talk = ValidatedTalk();
  for (size_t piece = 1; piece <= talk.size(); ++piece) {
    const Parsed parsed = ParseIn(talk, piece);
    ASSERT_EQ(Text(parsed), kValidatedTalk) << piece;
    ASSERT_EQ(parsed.dialect, TcpDialect::kValidated);
  }
}

TEST(TcpWireTest, AClassicConnectionMayBeginWithSet) {
  const std::string talk = Byte(0) + Str("/a") + Str("v") + Byte(2) + Str("/a");
  for (size_t piece = 1; piece <= talk.size(); ++piece) {
    ASSERT_EQ(Text(ParseIn(talk, piece)), "SET(0,/a,v)GET(0,/a)") << piece;
  }
}

TEST(TcpWireTest, UnknownOperationsAreNamed) {
  const auto error = [](const std::string& bytes) { return Text(ParseIn(bytes, 7)); };
  EXPECT_EQ(error(Byte(13) + "x"),
            "!it sent operation 13, which PyTorch's store does not have up to torch 2.0, whose "
            "protocol it speaks");
  EXPECT_THAT(error("GET / HTTP/1.1\r\n"), HasSubstr("!it sent operation 71"));
  EXPECT_THAT(error(Greeting() + Byte(19)), HasSubstr("VALIDATE(0)!it sent operation 19"));
  EXPECT_THAT(error(Greeting() + Byte(255)), HasSubstr("!it sent operation 255"));
  EXPECT_THAT(error(Greeting() + Byte(0) + Bytes<uint32_t>(1)), HasSubstr("magic number"));
  EXPECT_EQ(error(Greeting() + Greeting()), "VALIDATE(0)VALIDATE(1015412686)");
}

TEST(TcpWireTest, WhatIsTooLargeIsRefusedWhenItIsAnnounced) {
  const auto error = [](const std::string& bytes) {
    return std::string(ParseIn(bytes, bytes.size()).status.message());
  };
  EXPECT_EQ(error(Byte(2) + B64(kMostTcpKey + 1)),
            "it sent GET with a key of 8193 bytes; the limit is 8192");
  EXPECT_EQ(error(Byte(9) + Str("/k") + B64(kMostTcpValue + 1)),
            "it sent APPEND with a value of 33554433 bytes; the limit is 33554432");
  EXPECT_EQ(error(Byte(5) + B64(kMostTcpKeysAtOnce + 1)),
            "it sent WAIT of 131073 keys; the limit is 131072");
  EXPECT_THAT(error(Byte(4) + B64(UINT64_MAX)), HasSubstr("18446744073709551615 keys"));
  EXPECT_THAT(error(Byte(0) + B64(UINT64_MAX)), HasSubstr("key of 18446744073709551615 bytes"));
  EXPECT_EQ(error(Byte(2) + Str(std::string(kMostTcpKey, 'k'))), "");
  const std::string large(kMostTcpValue, 'x');
  const std::string three = B64(3) + Str("/a") + Str(large) + Str("/b") + Str(large) + Str("/c");
  EXPECT_EQ(error(Byte(11) + three + B64(1)), "it sent MULTI_SET of more than 67108864 bytes");
}

TEST(TcpWireTest, RoomIsMadeForWhatHasComeNotForWhatWasAnnounced) {
  TcpParser parser;
  const std::string begun = Byte(0) + Str("/k") + B64(kMostTcpValue) + "abc";
  absl::string_view bytes = begun;
  ASSERT_TRUE(parser.Next(bytes).ok());
  EXPECT_THAT(bytes, IsEmpty());
  EXPECT_LT(parser.buffered(), 200u);
}

// It ends with an error or wants more, whatever comes, and never with more than came.
TEST(TcpWireTest, GarbageHurtsNobody) {
  std::mt19937 random(20261125);  // NOLINT: the same each time
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = round % 2 == 0 ? Greeting() : "";
    const size_t size = random() % 200;
    for (size_t i = 0; i < size; ++i)
      bytes += Byte(static_cast<int>(random() % (round % 3 == 0 ? 20 : 256)));
    const Parsed whole = ParseIn(bytes, bytes.size());
    ASSERT_EQ(Text(ParseIn(bytes, 1)), Text(whole)) << round;
    ASSERT_LE(whole.requests.size(), bytes.size());
  }
}

}  // namespace
}  // namespace dtrain::stores
