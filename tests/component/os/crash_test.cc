// SPDX-License-Identifier: Apache-2.0
#include "common/os/crash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/os/fd.h"

// E6: what a process that crashes says last.
namespace dtrain::os {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// Sanitizers have handlers of their own, which are called after ours and end a process otherwise.
void WithoutHandlers() {
  for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::signal(signal, SIG_DFL);
}

// Of which the compiler does not know that it is never reached.
volatile int bottom = -1;
__attribute__((noinline)) int Overflow(int depth) {
  volatile char room[4096];
  room[0] = 0;
  return depth == bottom ? 0 : Overflow(depth + 1) + room[0];
}

class CrashTest : public ::testing::Test {
 protected:
  CrashTest() {
    char name[] = "/tmp/dtrain-crash-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/last_crash";
  }
  ~CrashTest() override { std::filesystem::remove_all(directory_); }

  // Runs `crash` in a process whose crashes are recorded; returns the signal that ended it.
  int SignalThatEnds(const std::function<void()>& crash) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit none{0, 0};
      (void)setrlimit(RLIMIT_CORE, &none);
      (void)!freopen((directory_ + "/stderr").c_str(), "w", stderr);
      WithoutHandlers();
      if (!RecordCrashes(path_).ok()) _exit(3);
      crash();
      _exit(4);
    }
    pid_ = child;
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
  }
  std::string Recorded() {
    auto text = ReadSmallFile(path_);
    return text.ok() ? *text : "";
  }
  std::string directory_;
  std::string path_;
  pid_t pid_ = 0;
};

TEST_F(CrashTest, TheLastRequestIsKeptAndTheSignalIsWhatItWas) {
  const int signal = SignalThatEnds([] {
    NoteRequest("Session.hello", "job-1", "bob");
    NoteRequest("Session.start", "job-2", "user:alice");
    // Not a null pointer, which UBSan sees before the processor does.
    void* forbidden = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *static_cast<volatile int*>(forbidden) = 1;
  });
  EXPECT_EQ(signal, SIGSEGV);
  EXPECT_THAT(Recorded(), AllOf(HasSubstr(absl::StrCat("process ", pid_, ", died of SIGSEGV")),
                                EndsWith("last request was Session.start of job job-2 for "
                                         "user:alice\n"),
                                Not(HasSubstr("job-1"))));
  auto told = ReadSmallFile(directory_ + "/stderr");
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(*told, Recorded());
}

TEST_F(CrashTest, SoAreOtherSignalsAndThoseThatSomebodySends) {
  EXPECT_EQ(SignalThatEnds([] { abort(); }), SIGABRT);
  EXPECT_THAT(Recorded(), AllOf(HasSubstr("SIGABRT"), EndsWith("last request was none\n")));
  EXPECT_EQ(SignalThatEnds([] { kill(getpid(), SIGBUS); }), SIGBUS);
  EXPECT_THAT(Recorded(), HasSubstr("SIGBUS"));
}

TEST_F(CrashTest, ATestThatKillsNobodyInParticularEndsItself) {
  for (const pid_t nobody : {0, -1}) EXPECT_EQ(SignalThatEnds([=] { kill(nobody, 0); }), SIGABRT);
}

TEST_F(CrashTest, AnOverflowOfTheStackIsToldToo) {
  EXPECT_EQ(SignalThatEnds([] { Overflow(0); }), SIGSEGV);
  EXPECT_THAT(Recorded(), HasSubstr("SIGSEGV"));
}

TEST_F(CrashTest, WhatComesFromOutsideIsPrintableAndShort) {
  EXPECT_EQ(SignalThatEnds([] {
              NoteRequest("Session.start", absl::StrCat("a\nb\x1b[2J", std::string(1000, 'x')),
                          std::string(1000, 'y'));
              raise(SIGSEGV);
            }),
            SIGSEGV);
  const std::string text = Recorded();
  EXPECT_THAT(text, HasSubstr("of job a?b?[2Jxxx"));
  EXPECT_LE(text.size(), 512u);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST_F(CrashTest, WithoutAPlaceForItItStillEnds) {
  path_ = directory_ + "/gone/last_crash";
  EXPECT_EQ(SignalThatEnds([] { raise(SIGSEGV); }), SIGSEGV);
  auto told = ReadSmallFile(directory_ + "/stderr");
  ASSERT_TRUE(told.ok());
  EXPECT_THAT(*told, HasSubstr("SIGSEGV"));
}

}  // namespace
}  // namespace dtrain::os
