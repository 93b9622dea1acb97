// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::stores {

// What is said to a worker of an elastic Horovod job, at its WorkerAddress, when hosts have come or
// gone, and what it answers: a MAC, a length, a pickle. What the answer is a pickle of is not read.
//
// Source: horovod/runner/common/util/network.py, horovod/runner/elastic/worker.py.

inline constexpr size_t kNoticeHead = 36;  // MAC and length
inline constexpr size_t kMostAnswer = 64 << 10;

// A HostsUpdatedRequest. `change`: Horovod's HostUpdateResult.
std::string NoticeBytes(absl::string_view key, uint32_t timestamp, uint8_t change);

// How much follows a head of kNoticeHead bytes; absent: it is none, or that is over kMostAnswer.
std::optional<size_t> AnswerSize(absl::string_view head);

// Whether someone who knows the key has answered: `bytes` are head and body.
bool IsAnswer(absl::string_view key, absl::string_view bytes);

}  // namespace dtrain::stores
