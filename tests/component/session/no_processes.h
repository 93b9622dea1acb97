// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/spawn/processes.h"
#include "common/base/clock.h"

namespace dtrain::session {

// What is not there: nothing runs.
class NoProcesses final : public spawn::Processes {
 public:
  explicit NoProcesses(os::UniqueFd socket) : socket_(std::move(socket)) {}
  os::UniqueFd TakeSocket() override { return std::move(socket_); }
  bool is_prepared() const override { return prepared; }
  void WhenStarted(OnStarted done) override { done(absl::OkStatus()); }
  void WhenShepherdEnded(OnEnded done) override { ended = std::move(done); }
  bool shepherd_ended() const override { return false; }
  pid_t shepherd_pid() const override { return shepherd; }
  const os::Account* account() const override { return nullptr; }
  void SetPart(const std::string&, uint32_t, uint32_t) override {}
  void Save(v1::JobRecord&) const override {}
  std::vector<uint32_t> Living() const override { return {}; }
  void KillShepherd() override { was_killed = true; }
  void KillLiving() override {}
  void KillMarked() override { marked_were_killed = true; }
  void EndAll(loop::Task done) override {
    ++ends;
    done();
  }
  const std::set<uint32_t>& killed() const override { return pids_; }
  void set_patience(Duration) override {}
  void set_presence(std::shared_ptr<const bool>) override {}

  OnEnded ended;
  bool prepared = false;
  pid_t shepherd = 0;
  bool was_killed = false;
  bool marked_were_killed = false;
  int ends = 0;

 private:
  os::UniqueFd socket_;
  std::set<uint32_t> pids_;
};

}  // namespace dtrain::session
