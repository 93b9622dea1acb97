// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/output/router.h"
#include "tests/component/output/loop_fixture.h"

namespace dtrain::output {

inline constexpr v1::StreamKind kOut = v1::STREAM_KIND_STDOUT;
inline constexpr v1::StreamKind kErr = v1::STREAM_KIND_STDERR;

class RouterTest : public LoopTest {
 protected:
  RouterTest() : out_(Create("out")), err_(Create("err")) { signal(SIGPIPE, SIG_IGN); }

  void Make(Options options, uint32_t world_size) {
    Make(std::move(options), world_size, out_.get(), err_.get());
  }
  void Make(Options options, uint32_t world_size, int out_fd, int err_fd) {
    router_.emplace(
        loop_, std::move(options),
        OutputRouter::Callbacks{[this](absl::Status why) { failed_ = std::move(why); },
                                [this](std::string text) { warnings_.push_back(std::move(text)); },
                                [this](const v1::OutputLost& lost) {
                                  for (const auto& file : lost.files()) {
                                    lost_.push_back(file.bytes());
                                  }
                                }},
        out_fd, err_fd);
    Layout layout;
    layout.job_id = "job";
    layout.hosts = {"a", "b"};
    // The second half is on b.
    const uint32_t half = (world_size + 1) / 2;
    for (uint32_t i = 0; i < world_size; ++i) layout.ranks.push_back({i / half, i % half});
    router_->SetLayout(std::move(layout));
  }
  void Finish() {
    bool done = false;
    router_->Finish([&] { done = true; });
    RunUntil([&] { return done; });
  }
  std::string Out() { return ReadFile(dir_ + "/out"); }
  std::string Err() { return ReadFile(dir_ + "/err"); }

  os::UniqueFd out_;
  os::UniqueFd err_;
  std::optional<absl::Status> failed_;
  std::vector<std::string> warnings_;
  std::vector<uint64_t> lost_;  // by files, as it was told
  std::optional<OutputRouter> router_;
};

}  // namespace dtrain::output
