// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"

namespace dtrain::http {

struct Answer {
  int status = 0;
  std::string body;
};

// Asks a server on a unix socket, and blocks until its answer is whole, or this process has waited
// `patience` for a piece of it.
absl::StatusOr<Answer> Get(const std::string& socket, const std::string& target,
                           Duration patience = std::chrono::seconds(10));

// The same with POST, without a body.
absl::StatusOr<Answer> Post(const std::string& socket, const std::string& target,
                            Duration patience = std::chrono::seconds(10));

// As Get, but gives an answer of status 200 away as it comes, however long that takes; stops
// when `on_piece` returns false. Calls `on_idle` whenever nothing has come for `interval`.
absl::StatusOr<Answer> Stream(const std::string& socket, const std::string& target,
                              absl::FunctionRef<bool(absl::string_view piece)> on_piece,
                              Duration interval, absl::FunctionRef<void()> on_idle);

}  // namespace dtrain::http
