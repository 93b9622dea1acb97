// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/look_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/os/fd.h"
#include "common/os/unique_fd.h"

namespace dtrain::status {
namespace {

using testing::HasSubstr;

// Its files are made by the kernel: no disk of this machine has them.
constexpr char kNotOnADisk[] = "/proc/self";
constexpr std::chrono::milliseconds kSoon(20);

// Our stderr, as long as this lives.
class Said {
 public:
  Said() : before_(dup(STDERR_FILENO)) {
    auto pipe = os::Pipe();
    EXPECT_TRUE(pipe.ok()) << pipe.status();
    if (!pipe.ok()) return;
    read_ = std::move(pipe->first);
    dup2(pipe->second.get(), STDERR_FILENO);
  }
  ~Said() { dup2(before_.get(), STDERR_FILENO); }
  Said(const Said&) = delete;
  Said& operator=(const Said&) = delete;

  // Empty: nothing has come for long.
  std::string Next() {
    if (NothingFor(std::chrono::seconds(20))) return "";
    std::string text(1000, '\0');
    const ssize_t size = read(read_.get(), text.data(), text.size());
    text.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return text;
  }
  bool NothingFor(std::chrono::milliseconds time) {
    pollfd something{read_.get(), POLLIN, 0};
    return poll(&something, 1, static_cast<int>(time.count())) == 0;
  }

 private:
  const os::UniqueFd before_;
  os::UniqueFd read_;
};

TEST(LookWatch, ALookThatIsLateIsToldOf) {
  Said said;
  LookWatch watch(kNotOnADisk, kSoon);
  EXPECT_THAT(watch.Do([&] { return said.Next(); }),
              HasSubstr("dtrain: still waiting for /proc/self after "));
}

TEST(LookWatch, WhatElseTakesLongIsNot) {
  Said said;
  LookWatch watch(kNotOnADisk, kSoon);
  EXPECT_TRUE(said.NothingFor(5 * kSoon));
  EXPECT_TRUE(watch.Do([&] { return watch.Pause([&] { return said.NothingFor(5 * kSoon); }); }));
}

TEST(LookWatchDeathTest, ItsLimitEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto look_for_ever = [] {
    LookWatch watch(kNotOnADisk, kSoon, {.end = Clock::now() + kSoon, .exit_code = 42});
    watch.Do([] {
      for (;;) pause();
    });
  };
  EXPECT_EXIT(look_for_ever(), testing::ExitedWithCode(42), "the time limit is reached");
}

TEST(LookWatch, ALimitHarmsNobodyWhoDoesNotLook) {
  LookWatch watch(kNotOnADisk, kSoon, {.end = Clock::now(), .exit_code = 42});
  EXPECT_EQ(poll(nullptr, 0, 5 * static_cast<int>(kSoon.count())), 0);
}

// SIGINT has a handler, and the thread that would call it looks.
void LookForEver() {
  signal(SIGINT, [](int) {});
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
  LookWatch watch(kNotOnADisk, kSoon);
  watch.Do([] {
    kill(getpid(), SIGINT);
    for (;;) pause();
  });
}

TEST(LookWatchDeathTest, AnInterruptEndsTheProcessMeanwhile) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(LookForEver(), testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace dtrain::status
