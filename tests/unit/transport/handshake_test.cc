// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace dtrain::transport {
namespace {

using State = HandshakeScanner::State;
using testing::HasSubstr;

TEST(Handshake, FindsTheLineAndLeavesTheRest) {
  HandshakeScanner scanner;
  EXPECT_EQ(scanner.Feed("DTRAIN-AGENT/1 ready pid=17 v=0.1.0\nPRI * HTTP"), State::kFound);
  EXPECT_EQ(scanner.line().word, "ready");
  EXPECT_EQ(scanner.line().Field("pid"), "17");
  EXPECT_EQ(scanner.line().Field("v"), "0.1.0");
  EXPECT_EQ(scanner.line().Field("none"), "");
  scanner.Feed("/2.0");
  EXPECT_EQ(scanner.TakeRest(), "PRI * HTTP/2.0");
  EXPECT_EQ(scanner.TakeRest(), "");
}

TEST(Handshake, ReasonRunsToTheEndOfTheLine) {
  HandshakeScanner scanner;
  scanner.Feed("DTRAIN-AGENT/1 error code=nospace reason=write x=1: No space\n");
  EXPECT_EQ(scanner.line().Field("code"), "nospace");
  EXPECT_EQ(scanner.line().Field("reason"), "write x=1: No space");
}

// B5
TEST(Handshake, SkipsNoise) {
  for (std::string noise : {"Welcome to node3\n\n", "no line feed\n", "\033[1m\x01x\n",
                            "see DTRAIN-AGENT/1 ready\n", "DTRAIN-AGENT\nDTRAIN-\n"}) {
    HandshakeScanner scanner;
    EXPECT_EQ(scanner.Feed(noise), State::kScanning) << noise;
    EXPECT_EQ(scanner.Feed("DTRAIN-AGENT/1 ready\n\n"), State::kFound) << noise;
    EXPECT_EQ(scanner.TakeRest(), "\n");
  }
}

// B5: set -v echoes the script that prints the tag.
TEST(Handshake, TextThatOnlyHoldsTheTagIsNoise) {
  HandshakeScanner scanner;
  EXPECT_EQ(scanner.Feed("say() { printf '\\nDTRAIN-AGENT/1 %s\\n'; }\nDTRAIN-AGENT/x ready\n"
                         "DTRAIN-AGENT/1 READY\nDTRAIN-AGENT/1 need machine=arm\n"),
            State::kFound);
  EXPECT_EQ(scanner.line().word, "need");
  EXPECT_EQ(scanner.FirstNoiseLine(), "say() { printf '\\\\nDTRAIN-AGENT/1 %s\\\\n'; }");
}

// B5
TEST(Handshake, TooMuchNoiseIsAnErrorThatQuotesItsFirstLine) {
  HandshakeScanner scanner;
  EXPECT_EQ(scanner.Feed("\n  \n\033]0;evil\007 Loading modules...\n"), State::kScanning);
  scanner.Feed(std::string(kMaxNoise, '#'));
  EXPECT_EQ(scanner.Feed(std::string(64, '#')), State::kFailed);
  EXPECT_THAT(scanner.error().message(), HasSubstr("64 KiB"));
  EXPECT_THAT(scanner.error().message(), HasSubstr("\\x1b]0;evil\\x07 Loading modules..."));
  EXPECT_EQ(scanner.Feed("DTRAIN-AGENT/1 ready\n"), State::kFailed);
}

// The tag may come with the byte that is too much, after noise that came before.
TEST(Handshake, TooMuchNoiseIsNamedByItsFirstLine) {
  HandshakeScanner scanner;
  EXPECT_EQ(scanner.Feed("  Loading modules\n"), State::kScanning);
  EXPECT_EQ(scanner.Feed(std::string(80000, 'y') + "\nDTRAIN-AGENT/1 ready version=1\n"),
            State::kFailed);
  EXPECT_THAT(scanner.error().message(), HasSubstr("begins: \"Loading modules\""));
}

TEST(Handshake, ExactlyTheAllowedNoiseIsAllowed) {
  HandshakeScanner at_limit;
  EXPECT_EQ(at_limit.Feed(std::string(kMaxNoise - 1, 'x') + "\nDTRAIN-AGENT/1 ready\n"),
            State::kFound);
  HandshakeScanner above;
  EXPECT_EQ(above.Feed(std::string(kMaxNoise, 'x') + "\nDTRAIN-AGENT/1 ready\n"), State::kFailed);
}

// B7
TEST(Handshake, AnotherVersionIsItsOwnError) {
  HandshakeScanner scanner;
  EXPECT_EQ(scanner.Feed("DTRAIN-AGENT/2 ready\n"), State::kFailed);
  EXPECT_THAT(scanner.error().message(), HasSubstr("speaks version 2"));
}

TEST(Handshake, ATerminalInBetweenIsNamed) {
  HandshakeScanner scanner;
  EXPECT_EQ(scanner.Feed("DTRAIN-AGENT/1 ready\r\n"), State::kFailed);
  EXPECT_THAT(scanner.error().message(), HasSubstr("terminal"));
}

TEST(Handshake, ALineWithoutEndIsNoise) {
  HandshakeScanner scanner;
  scanner.Feed("DTRAIN-AGENT/1 " + std::string(kMaxHandshakeLine + 1, 'a'));
  EXPECT_EQ(scanner.Feed("\nDTRAIN-AGENT/1 ready\n"), State::kFound);
  EXPECT_EQ(scanner.line().word, "ready");
}

TEST(Handshake, TheResultDoesNotDependOnThePieces) {
  const std::string all = "noise\nDTRAIN-AGENT/1\nDTRAIN-AGENT/1 need machine=x86_64 a=\nrest\n";
  for (size_t piece = 1; piece <= all.size(); ++piece) {
    HandshakeScanner scanner;
    for (size_t i = 0; i < all.size(); i += piece) scanner.Feed(all.substr(i, piece));
    ASSERT_EQ(scanner.state(), State::kFound) << piece;
    EXPECT_EQ(scanner.line().word, "need");
    EXPECT_EQ(scanner.line().Field("machine"), "x86_64");
    EXPECT_EQ(scanner.TakeRest(), "rest\n");
  }
}

}  // namespace
}  // namespace dtrain::transport
