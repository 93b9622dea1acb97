// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/loop/loop.h"
#include "common/manifest/manifest.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::staged {

// Whether a folder of this node has the files that a launcher names. More may be there. Changes
// nothing, and works in small portions on the loop thread.
class Comparison {
 public:
  struct Handlers {
    absl::AnyInvocable<void(const std::string& sha256)> on_same;
    // What differs, or why it cannot be seen. Once.
    absl::AnyInvocable<void(absl::Status)> on_failed;
  };
  Comparison(loop::Loop& loop, Handlers handlers) : loop_(loop), handlers_(std::move(handlers)) {}
  ~Comparison() { *alive_ = false; }
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  void Begin(const v1::StageTree& tree);  // once

 private:
  absl::Status Open(const v1::StageTree& tree);
  void Look();
  std::string DifferenceOf(const manifest::File& file);
  absl::Status Verdict() const;

  loop::Loop& loop_;
  Handlers handlers_;
  std::string sha256_;
  std::string path_;
  os::UniqueFd top_;
  std::vector<manifest::File> files_;
  size_t looked_ = 0;
  std::vector<std::string> differences_;  // the first ones
  size_t differing_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::staged
