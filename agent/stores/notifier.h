// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "agent/stores/worker_address.h"
#include "common/loop/loop.h"
#include "dtrain/v1/elastic.pb.h"

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

// One notice to a worker on this machine: tries loopback first, as Horovod listens at all
// addresses, then those that it has named, one after the other, for 5 s in all. Loop thread.
class Notifier : public std::enable_shared_from_this<Notifier> {
 public:
  using Done = absl::AnyInvocable<void(v1::ElasticNoticed)>;
  Notifier(loop::Loop& loop, WorkerAddress to, const v1::ElasticNotice& notice, Done done);
  // `done` is called once, later.
  void Start();

 private:
  using Error = boost::system::error_code;
  using Endpoint = boost::asio::ip::tcp::endpoint;
  // Handlers of an attempt that was given up find another number.
  using Attempt = size_t;
  void TryNext();
  void Send(Attempt attempt);
  void ReadHead(Attempt attempt);
  void ReadBody(Attempt attempt);
  void OnFailed(const std::string& why);
  void Finish(std::string failed);

  const std::string key_;
  const std::string bytes_;
  std::vector<Endpoint> endpoints_;
  boost::asio::ip::tcp::socket socket_;
  loop::Timer deadline_;
  Done done_;  // null: it is over
  v1::ElasticNoticed noticed_;
  Attempt attempt_ = 0;  // 1: at the first endpoint
  std::string answer_;
  std::vector<std::string> failures_;  // by endpoint
};

}  // namespace dtrain::stores
