// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::discovery {

inline constexpr Duration kBetweenRuns = std::chrono::seconds(1);

// The user's --discover: a command that prints which hosts there are now. It has our environment
// and directory, and is killed when it takes longer than 30 s. Loop thread.
class Script {
 public:
  // Errors say what became of the command, or which line is not a host.
  using OnFound = absl::AnyInvocable<void(absl::StatusOr<hosts::HostList>)>;

  // `command`: for /bin/sh. `slots`: of a host whose line names none.
  Script(loop::Loop& loop, std::string command, std::optional<uint32_t> slots);
  // Kills the command, if it runs.
  ~Script();
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  // Runs it once; not while it runs. Not to be destroyed from within `found`.
  void Run(OnFound found);

 private:
  struct Running;
  absl::Status Start();
  void OnEnd();
  absl::StatusOr<hosts::HostList> Read(Running& running) const;

  loop::Loop& loop_;
  const std::string command_;
  const std::optional<uint32_t> slots_;
  OnFound found_;
  std::unique_ptr<Running> running_;  // null: it does not run
  loop::Timer patience_;
};

// Runs it on a loop of its own until it has printed a host, once a second, for so long at most. A
// signal that ends us ends the command first.
absl::StatusOr<hosts::HostList> AwaitHosts(const std::string& command,
                                           std::optional<uint32_t> slots, Duration at_most);

}  // namespace dtrain::discovery
