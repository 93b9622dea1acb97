// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/transport/agent_binary.h"
#include "launcher/transport/child.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {
namespace {

using Want = Bootstrap::Want;
using testing::HasSubstr;
using testing::Not;

TEST(Bootstrap, AnAgentThatIsThereIsReadyAtOnce) {
  Bootstrap bootstrap({"x86_64"});
  EXPECT_EQ(bootstrap.OnOutput("hello\n"), Want::kMore);
  EXPECT_EQ(bootstrap.OnOutput("\nDTRAIN-AGENT/1 ready\ngrpc"), Want::kReady);
  EXPECT_EQ(bootstrap.TakeRest(), "grpc");
}

TEST(Bootstrap, AMissingAgentIsPushedOnce) {
  Bootstrap bootstrap({"x86_64"});
  EXPECT_EQ(bootstrap.OnOutput("\nDTRAIN-AGENT/1 need machine=x86_64\n"), Want::kPush);
  EXPECT_EQ(bootstrap.OnOutput("DTRAIN-AGENT/1 ready\n"), Want::kReady);

  Bootstrap twice({"x86_64"});
  twice.OnOutput("DTRAIN-AGENT/1 need machine=x86_64\n");
  EXPECT_EQ(twice.OnOutput("DTRAIN-AGENT/1 need machine=x86_64\n"), Want::kFailed);
}

// B7
TEST(Bootstrap, AnotherKindOfMachineIsNamedBeforeAnythingIsSent) {
  Bootstrap bootstrap({"x86_64"});
  EXPECT_EQ(bootstrap.OnOutput("DTRAIN-AGENT/1 need machine=aarch64\n"), Want::kFailed);
  EXPECT_THAT(bootstrap.error().message(), HasSubstr("of kind aarch64"));
  EXPECT_THAT(bootstrap.error().message(), HasSubstr("an agent for x86_64 only"));
}

TEST(Bootstrap, TellsAShellThatReadsFromOneThatNeverCame) {
  Bootstrap begun({"x86_64"}, /*login_shell=*/true);
  EXPECT_FALSE(begun.begun());
  EXPECT_EQ(begun.OnOutput("hello\n\nDTRAIN-AGENT/1 begun\n\nDTRAIN-AGENT/1 ready\ngrpc"),
            Want::kReady);
  EXPECT_TRUE(begun.begun());
  EXPECT_EQ(begun.TakeRest(), "grpc");

  auto message = [](bool login_shell, const char* output, const char* how) {
    Bootstrap bootstrap({"x86_64"}, login_shell);
    bootstrap.OnOutput(output);
    return std::string(bootstrap.OnEnd(how, "").message());
  };
  const char* const kEnded = "the shell there ended with status 0";
  EXPECT_THAT(message(true, "", kEnded), HasSubstr("a start-up file of the login shell"));
  EXPECT_THAT(message(true, "bye\n", kEnded), HasSubstr("a start-up file of the login shell"));
  EXPECT_THAT(message(true, "", "the shell there ended with status 2"), HasSubstr("start-up file"));
  // What comes later is not theirs, and 255 is ssh's own.
  EXPECT_THAT(message(true, "\nDTRAIN-AGENT/1 begun\n", kEnded), Not(HasSubstr("start-up file")));
  EXPECT_THAT(message(true, "", "`ssh` exited with status 255"), Not(HasSubstr("start-up file")));
  EXPECT_THAT(message(true, "", "the ssh connection broke (reset)"),
              Not(HasSubstr("start-up file")));
  EXPECT_THAT(message(false, "", kEnded), Not(HasSubstr("start-up file")));
  EXPECT_NE(WhatPasses(Bootstrap({""}).OnEnd("`ssh` was killed by SIGKILL", "")), "");
  EXPECT_EQ(WhatPasses(Bootstrap({""}).OnEnd("`ssh` exited with status 1", "")), "");
}

// B12
TEST(Bootstrap, ErrorsOfTheScriptComeWithTheNextStep) {
  Bootstrap bootstrap({""});
  EXPECT_EQ(bootstrap.OnOutput("DTRAIN-AGENT/1 error code=nospace reason=write /x\033: No space\n"),
            Want::kFailed);
  EXPECT_THAT(bootstrap.error().message(), HasSubstr("write /x\\x1b: No space"));
  EXPECT_THAT(bootstrap.error().message(), HasSubstr("free some space"));
}

TEST(Bootstrap, AKernelThatIsTooOldIsNamed) {
  Bootstrap bootstrap({""});
  EXPECT_EQ(
      bootstrap.OnOutput("DTRAIN-AGENT/1 error code=kernel reason=Linux 4.15, dtrain needs 4.18\n"),
      Want::kFailed);
  EXPECT_THAT(bootstrap.error().message(), HasSubstr("Linux 4.15, dtrain needs 4.18; a container"));
}

std::string EndMessage(absl::string_view stderr_tail, absl::string_view output = "") {
  Bootstrap bootstrap({"x86_64"});
  bootstrap.OnOutput(output);
  return std::string(bootstrap.OnEnd("`ssh n1` exited with status 255", stderr_tail).message());
}

// B8
TEST(Bootstrap, AnEndBeforeTheHandshakeQuotesStderrAndNoise) {
  std::string message = EndMessage("debug1: x\nPermission denied (publickey).\n", "Go away\n");
  EXPECT_THAT(message, HasSubstr("`ssh n1` exited with status 255 before an agent answered"));
  EXPECT_THAT(message, HasSubstr("Permission denied (publickey)."));
  EXPECT_THAT(message, HasSubstr("its output begins: \"Go away\""));
}

TEST(Bootstrap, AShellThatReadNothingIsToldFromOneThatFailed) {
  auto message = [](absl::string_view how, absl::string_view stderr_tail) {
    return std::string(Bootstrap({"x86_64"}).OnEnd(how, stderr_tail).message());
  };
  EXPECT_THAT(message("`kubectl exec n1 --` exited with status 0", ""), HasSubstr("need -i"));
  EXPECT_THAT(message("`kubectl exec n1 --` exited with status 0", "bye\n"), Not(HasSubstr("-i")));
  EXPECT_THAT(message("`kubectl exec n1 --` exited with status 1", ""), Not(HasSubstr("-i")));
}

// B7
TEST(Bootstrap, TellsWhyAnAgentCannotRunAtAll) {
  EXPECT_THAT(EndMessage("/x/dtrain-agent: /lib/libc.so.6: version `GLIBC_2.36' not found "
                         "(required by /x/dtrain-agent)\n"),
              HasSubstr("C library is older"));
  EXPECT_THAT(EndMessage("sh: 1: exec: /x/dtrain-agent: Exec format error\n"),
              HasSubstr("another architecture"));
  EXPECT_THAT(EndMessage("sh: exec: line 9: /x/dtrain-agent: not found\n"), HasSubstr("musl"));
  EXPECT_THAT(EndMessage("sh: 20: exec: /x/dtrain-agent: Permission denied\n"),
              HasSubstr("without exec permission"));
  EXPECT_THAT(EndMessage("Permission denied (publickey).\n"), Not(HasSubstr("exec permission")));
}

TEST(Bootstrap, TheRemoteCommandCarriesNoData) {
  EXPECT_STREQ(kRemoteShell, "/bin/sh");
  AgentImages images(2);
  images[0].sha256 = std::string(64, 'a');
  images[0].size = 1234;
  images[0].machine = "x86_64";
  images[0].loader = "/lib64/ld.so";
  images[1].sha256 = std::string(64, 'b');
  std::string script = BootstrapScript(images, /*bridge_flag=*/"");
  EXPECT_THAT(script, testing::StartsWith("\n"));
  EXPECT_THAT(script, testing::EndsWith("\ndtrain - x86_64 " + images[0].sha256 +
                                        " 1234 /lib64/ld.so - " + images[1].sha256 + " 0 -\n"));
  images.pop_back();
  EXPECT_EQ(BridgeFlag({}), "");
  Target target;
  target.asks = true;
  EXPECT_EQ(BridgeFlag(target), "--ask");
  target.resume = true;
  EXPECT_EQ(BridgeFlag(target), "--resume");
  script = BootstrapScript(images, BridgeFlag(target));
  EXPECT_THAT(script, testing::EndsWith("\ndtrain --resume x86_64 " + images[0].sha256 +
                                        " 1234 /lib64/ld.so\n"));
}

TEST(Bootstrap, ANodeGetsTheAgentOfItsMachinePackedIfItCanUnpack) {
  Bootstrap bootstrap({"x86_64", "aarch64"});
  EXPECT_EQ(bootstrap.OnOutput("\nDTRAIN-AGENT/1 need machine=aarch64 gzip=yes\n"), Want::kPush);
  EXPECT_EQ(bootstrap.wanted(), 1u);
  EXPECT_TRUE(bootstrap.has_gzip());

  Bootstrap bare({"x86_64", "aarch64"});
  EXPECT_EQ(bare.OnOutput("\nDTRAIN-AGENT/1 need machine=x86_64 gzip=no\n"), Want::kPush);
  EXPECT_EQ(bare.wanted(), 0u);
  EXPECT_FALSE(bare.has_gzip());

  // Of a machine that is not known.
  Bootstrap any({""});
  EXPECT_EQ(any.OnOutput("\nDTRAIN-AGENT/1 need machine=riscv64 gzip=yes\n"), Want::kPush);
  EXPECT_EQ(any.wanted(), 0u);
}

TEST(Bootstrap, ANodeMayBeToldToLookAgainAndAskOnceMore) {
  const std::string need = "\nDTRAIN-AGENT/1 need machine=x86_64 gzip=yes home=0123456789abcdef\n";
  Bootstrap found({"x86_64"});
  EXPECT_EQ(found.OnOutput(need), Want::kPush);
  EXPECT_EQ(found.home(), "0123456789abcdef");
  EXPECT_EQ(found.LookAgain(), "look\n");
  EXPECT_EQ(found.OnOutput("\nDTRAIN-AGENT/1 ready\ngrpc"), Want::kReady);
  EXPECT_EQ(found.TakeRest(), "grpc");

  Bootstrap lacks({"x86_64"});
  EXPECT_EQ(lacks.OnOutput(need), Want::kPush);
  lacks.LookAgain();
  EXPECT_EQ(lacks.OnOutput(need), Want::kPush);
  EXPECT_EQ(lacks.OnOutput(need), Want::kFailed);
  EXPECT_THAT(lacks.error().message(), HasSubstr("asked for the agent twice"));
}

TEST(Bootstrap, TheNameOfAHomeIsWhateverTheNodeSays) {
  auto home = [](const std::string& fields) {
    Bootstrap bootstrap({"x86_64"});
    EXPECT_EQ(bootstrap.OnOutput("DTRAIN-AGENT/1 need machine=x86_64 " + fields + "\n"),
              Want::kPush);
    return bootstrap.home();
  };
  EXPECT_EQ(home("gzip=yes"), "");
  EXPECT_EQ(home("home="), "");
  EXPECT_EQ(home("home=../x=\033 gzip=yes"), "../x=\033");
  EXPECT_EQ(home("home=" + std::string(3000, 'x')), std::string(64, 'x'));
}

TEST(Bootstrap, AnEndAfterTheAgentWasAskedForSaysSo) {
  EXPECT_THAT(
      EndMessage("killed", "\nDTRAIN-AGENT/1 need machine=x86_64\n"),
      HasSubstr("status 255 before an agent answered, and after the node had asked to be sent "
                "one: killed"));
}

TEST(LastLines, KeepsTheLastThatSaySomething) {
  EXPECT_EQ(LastLines("a\n\nb\r\nc \n\td\n\n"), "b; c; d");
  EXPECT_EQ(LastLines("\n \n"), "");
}

TEST(ElfMachine, ReadsTheHeader) {
  std::string header("\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\3\0\267\0", 20);
  EXPECT_EQ(ElfMachine(header), "aarch64");
  header[18] = 62;
  EXPECT_EQ(ElfMachine(header), "x86_64");
  EXPECT_EQ(ElfMachine("#!/bin/sh\nexec cat # long enough"), "");
  EXPECT_EQ(ElfMachine(header.substr(0, 19)), "");
}

TEST(ElfLoader, IsReadFromTheProgramHeaders) {
  std::string file(120, '\0');
  file.replace(0, 7, "\177ELF\2\1\1", 7);
  file[18] = 62;
  file[32] = 64;  // e_phoff
  file[54] = 56;  // e_phentsize
  file[56] = 1;   // e_phnum
  file[64] = 3;   // PT_INTERP
  file[72] = 120;
  file[96] = 13;
  const std::string whole = file + std::string("/lib64/ld.so\0", 13);
  EXPECT_EQ(ElfLoader(whole), "/lib64/ld.so");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(ElfLoader(absl::string_view(whole).substr(0, size)), "") << size;
  }
  EXPECT_EQ(ElfLoader(file + std::string("/lib $(x).so\0", 13)), "");  // no word of a script
  file[64] = 1;
  EXPECT_EQ(ElfLoader(file), "");
}

// B15
TEST(Tail, KeepsTheEndInFlatMemory) {
  Tail tail(4);
  for (int i = 0; i < 1000; ++i) tail.Add("0123456789");
  tail.Add("ab");
  EXPECT_EQ(tail.text(), "89ab");
  tail.Add("");
  EXPECT_EQ(tail.text(), "89ab");
}

// The script passes it on as one word.
TEST(BridgeFlag, IsOneWord) {
  Target target;
  EXPECT_EQ(BridgeFlag(target), "");
  target.asks = true;
  EXPECT_EQ(BridgeFlag(target), "--ask");
  target.asks = false;
  target.keep = true;
  EXPECT_EQ(BridgeFlag(target), "--keep");
  target.resume = true;
  EXPECT_EQ(BridgeFlag(target), "--resume-kept");
  target.keep = false;
  EXPECT_EQ(BridgeFlag(target), "--resume");
}

}  // namespace
}  // namespace dtrain::transport
