// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "dtrain/dtrain.h"

namespace dtrain::runtime {

// A failure, as the C API reports it. (The rest of dtrain uses absl::Status; this library lives in
// a stranger's process and brings no absl with it.)
struct Error {
  dtrain_status code;
  std::string message;
};

// nullopt is success.
using MaybeError = std::optional<Error>;

// A value or the Error that kept us from making one.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  T& operator*() { return std::get<T>(state_); }
  const T& operator*() const { return std::get<T>(state_); }
  T* operator->() { return &std::get<T>(state_); }
  const Error& error() const { return std::get<Error>(state_); }

 private:
  std::variant<T, Error> state_;
};

// Text from outside, made safe to show: control bytes become '?', long texts end in "...".
std::string Printable(std::string_view text);

}  // namespace dtrain::runtime
