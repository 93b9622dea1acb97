// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "common/loop/loop.h"

namespace dtrain::loop {
namespace {

TEST(SignalWatchTest, WhoHasSentItIsKnown) {
  for (int time = 0; time < 2; ++time) {  // the handlers are set anew
    Loop loop;
    int seen = 0;
    SignalWatch watch(loop, {SIGUSR2, SIGRTMIN}, [&](int signal) {
      seen = signal;
      loop.Stop();
    });
    for (const int signal : {SIGUSR2, SIGRTMIN}) {
      const pid_t parent = getpid();
      const pid_t child = fork();
      if (child == 0) _exit(kill(parent, signal));
      Timer deadline(loop);
      deadline.After(std::chrono::seconds(20), [&] { loop.Stop(); });
      loop.context().restart();
      loop.Run();
      EXPECT_EQ(seen, signal);
      EXPECT_EQ(SignalWatch::SenderOf(signal).pid, child);
      EXPECT_EQ(SignalWatch::SenderOf(signal).uid, getuid());
      ASSERT_EQ(waitpid(child, nullptr, 0), child);
    }
  }
}

}  // namespace
}  // namespace dtrain::loop
