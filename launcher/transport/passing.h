// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

// Which failures to reach a host pass by themselves: it boots, its name is not published yet, its
// sshd or its container has not started. Keys, host keys, configurations and permissions do not.
// Pure.
namespace dtrain::transport {

// Of connect() and of a read on a connection that has just been made, by errno: "connection
// refused". Empty: it does not pass.
std::string WhatPassesOf(int error_number);

// Of what ssh, kubectl exec, docker exec and the like write to stderr, in few words. Empty: it does
// not pass, or is not known.
std::string WhatPassesIn(absl::string_view words);

}  // namespace dtrain::transport
