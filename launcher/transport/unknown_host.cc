// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/cord.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {
namespace {

// A mark beside the status, as a missing file or path is NOT_FOUND too.
constexpr char kUnknownHost[] = "dtrain/unknown-host";

}  // namespace

absl::Status UnknownHostError(absl::string_view message) {
  absl::Status status = absl::NotFoundError(message);
  status.SetPayload(kUnknownHost, absl::Cord());
  return status;
}

bool IsUnknownHost(const absl::Status& status) {
  return status.GetPayload(kUnknownHost).has_value();
}

}  // namespace dtrain::transport
