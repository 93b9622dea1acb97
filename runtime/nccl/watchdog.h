// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace dtrain::runtime {

// A thread that looks after something ten times a second, and more often when asked to. It blocks
// all signals and does not keep the process from exiting.
class Watchdog {
 public:
  // `look` returns how long the next look may take to come; zero: no more. Null: no thread could be
  // had.
  using Look = std::function<std::chrono::milliseconds()>;
  static std::unique_ptr<Watchdog> Start(Look look);
  // Waits for a look that is under way, ten seconds at most: then it hangs in the driver, and is
  // left behind.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Look soon. Any thread.
  void Wake();
  // Whether no look has come to its end for ten seconds. Any thread.
  bool Hangs() const;

 private:
  struct State;
  explicit Watchdog(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State> state_;
};

}  // namespace dtrain::runtime
