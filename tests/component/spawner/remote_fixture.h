// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "agent/spawn/remote_spawner.h"
#include "common/loop/loop.h"
#include "tests/component/spawner/harness.h"

namespace dtrain::spawn {

inline constexpr Duration kRemoteLimit = std::chrono::seconds(20);

// An agent's loop in a thread of its own, with a RemoteSpawner: the test asks there and waits here.
class RemoteAgent {
 public:
  RemoteAgent() : thread_([this] { loop_.Run(); }) {}
  ~RemoteAgent() {
    OnLoop([this] {
      processes_.reset();
      spawner_.reset();
      loop_.Stop();
    });
    thread_.join();
  }
  template <typename F>
  void OnLoop(F f) {
    std::promise<void> done;
    loop_.Post([&] {
      f();
      done.set_value();
    });
    ASSERT_EQ(done.get_future().wait_for(kRemoteLimit), std::future_status::ready);
  }
  // Waits for what `ask`, on the loop, has told of by its argument.
  template <typename T, typename F>
  T Await(F ask) {
    auto told = std::make_shared<std::promise<T>>();
    std::future<T> future = told->get_future();
    OnLoop([&] { ask([told](T value) { told->set_value(std::move(value)); }); });
    if (future.wait_for(kRemoteLimit) == std::future_status::ready) return future.get();
    ADD_FAILURE() << "nothing came";
    return T();
  }
  void Connect(const std::string& path, const SpawnerLimits& limits = {}) {
    OnLoop([&] { spawner_ = std::make_unique<RemoteSpawner>(loop_, path, limits); });
  }
  absl::Status WhenReady() {
    return Await<absl::Status>([&](auto done) { spawner_->WhenReady(std::move(done)); });
  }
  void Submit(Order order) {
    OnLoop([&] {
      processes_.reset();
      auto made = spawner_->Spawn(std::move(order));
      ASSERT_TRUE(made.ok()) << made.status();
      processes_ = *std::move(made);
    });
  }
  absl::Status Started() {
    return Await<absl::Status>([&](auto done) { processes_->WhenStarted(std::move(done)); });
  }
  absl::Status Start(Order order) {
    Submit(std::move(order));
    return Started();
  }
  // Whether it ends.
  bool EndAll() {
    return Await<bool>(
        [&](auto done) { processes_->EndAll([done = std::move(done)]() mutable { done(true); }); });
  }
  std::string HowEnded() {
    return Await<std::string>([&](auto done) { processes_->WhenShepherdEnded(std::move(done)); });
  }
  os::UniqueFd TakeSocket() {
    os::UniqueFd socket;
    OnLoop([&] { socket = processes_->TakeSocket(); });
    return socket;
  }
  std::string Quarantine() {
    std::string why;
    OnLoop([&] { why = spawner_->quarantine().Why(loop_.Now(), std::nullopt); });
    return why;
  }

  loop::Loop loop_;
  std::unique_ptr<RemoteSpawner> spawner_;
  std::unique_ptr<Processes> processes_;

 private:
  std::thread thread_;
};

}  // namespace dtrain::spawn
