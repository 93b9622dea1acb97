// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/cord.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {
namespace {

// Marks beside the status: a missing file or path is NOT_FOUND too, and ssh refuses logins.
constexpr char kUnknownHost[] = "dtrain/unknown-host";
constexpr char kNotAuthorised[] = "dtrain/not-authorised";
constexpr char kStartedAnew[] = "dtrain/started-anew";
constexpr char kPassingMark[] = "dtrain/passes";

absl::Status Marked(absl::Status status, absl::string_view mark) {
  status.SetPayload(mark, absl::Cord());
  return status;
}

}  // namespace

std::string BridgeFlag(const Target& target) {
  if (target.resume) return target.keep ? "--resume-kept" : "--resume";
  if (target.keep) return "--keep";
  return target.asks ? "--ask" : "";
}

absl::Status UnknownHostError(absl::string_view message) {
  return Marked(absl::NotFoundError(message), kUnknownHost);
}

bool IsUnknownHost(const absl::Status& status) {
  return status.GetPayload(kUnknownHost).has_value();
}

absl::Status NotAuthorisedError(absl::string_view message) {
  return Marked(absl::PermissionDeniedError(message), kNotAuthorised);
}

bool IsNotAuthorised(const absl::Status& status) {
  return status.GetPayload(kNotAuthorised).has_value();
}

absl::Status PassingError(absl::Status why, absl::string_view what) {
  if (!why.ok() && !what.empty()) why.SetPayload(kPassingMark, absl::Cord(what));
  return why;
}

std::string WhatPasses(const absl::Status& why) {
  const auto what = why.GetPayload(kPassingMark);
  return what ? std::string(*what) : "";
}

absl::Status StartedAnewError(absl::string_view message) {
  return Marked(absl::NotFoundError(message), kStartedAnew);
}

bool WasStartedAnew(const absl::Status& status) {
  return status.GetPayload(kStartedAnew).has_value();
}

}  // namespace dtrain::transport
