// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/loop/loop.h"
#include "common/loop/signal_sender.h"

namespace dtrain::loop {
namespace {

std::string NameOfUser() {
  const std::string text = UserText(getuid());
  const bool is_name = text != "root" && !absl::StartsWith(text, "uid ");
  return absl::StrCat(is_name ? "user " : "", text);
}

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
      EXPECT_EQ(NameSignal(signal), absl::StrCat(SignalName(signal), " from component_loop (pid ",
                                                 child, ", ", NameOfUser(), ")"));
      ASSERT_EQ(waitpid(child, nullptr, 0), child);
    }
  }
}

}  // namespace
}  // namespace dtrain::loop
