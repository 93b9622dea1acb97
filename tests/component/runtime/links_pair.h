// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/net/links.h"

namespace dtrain::runtime {

inline Deadline FromNow(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}
constexpr std::chrono::seconds kPatience{30};

// The sockets of two nodes in this process, by node, for one use; the other's are closed.
inline std::vector<std::vector<Socket>> ConnectedPair(Links::Use use) {
  std::vector<std::unique_ptr<Links>> ends;
  std::vector<NodeEndpoint> endpoints;
  for (int node = 0; node < 2; ++node) {
    auto made = Links::Listen(node, {3, 7}, "127.0.0.1");
    EXPECT_TRUE(made.ok());
    ends.push_back(std::move(*made));
    endpoints.push_back(ends.back()->endpoint());
  }
  MaybeError errors[2];
  std::thread other([&] { errors[1] = ends[1]->Connect(endpoints, FromNow(kPatience)); });
  errors[0] = ends[0]->Connect(endpoints, FromNow(kPatience));
  other.join();
  for (const MaybeError& error : errors) EXPECT_FALSE(error) << error->message;
  std::vector<std::vector<Socket>> sockets;
  for (auto& end : ends) sockets.push_back(end->Take(use));
  return sockets;
}

}  // namespace dtrain::runtime
