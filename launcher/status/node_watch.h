// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::status {

// What the page of a node has of it, and when its agent is to be asked again: while somebody looks,
// once a second, however many they are; after failures more and more seldom. Pure.
class NodeWatch {
 public:
  static constexpr Duration kPause = std::chrono::seconds(1);
  static constexpr Duration kLongestPause = std::chrono::seconds(15);
  // A node without a resident agent is asked over the same connection for as long: a new one, which
  // would find an agent that has come since, is a login, and a process there.
  static constexpr Duration kLookForAgent = std::chrono::seconds(15);

  explicit NodeWatch(std::string host) : host_(std::move(host)) {}

  // Somebody looks: whether to ask now. Then OnAnswer must follow.
  bool OnLook(TimePoint now);
  // Whether to give the connection up, so that the next question finds who is there then.
  bool OnAnswer(TimePoint now, absl::StatusOr<v1::NodeReport> answer);

  bool is_asking() const { return asking_; }
  bool knows() const { return report_.has_value(); }
  // Why there is no answer; OK: there is.
  const absl::Status& failure() const { return failure_; }
  // NodeJson, its "age_s", and after a failure "no_answer": "why", and in how long ("retry_s") it
  // is asked again. Only when it knows anything.
  nlohmann::ordered_json View(TimePoint now) const;

 private:
  void OnFailure(TimePoint now, absl::Status why);

  const std::string host_;
  bool asking_ = false;
  TimePoint asked_at_{};
  TimePoint next_at_{};  // not before
  int failures_ = 0;     // in a row
  absl::Status failure_;
  std::optional<v1::NodeReport> report_;
  TimePoint heard_at_{};                          // report_
  std::optional<TimePoint> without_agent_since_;  // on this connection
};

}  // namespace dtrain::status
