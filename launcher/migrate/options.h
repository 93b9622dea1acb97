// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/cli/page.h"
#include "launcher/transport/transport.h"

namespace dtrain::migrate {

struct Options {
  std::string help;                // to be printed on stdout, and nothing else
  bool receives = false;           // the other end, which ssh runs
  std::string job;                 // as it was named; empty: the only one that runs
  transport::Target to;            // the machine
  std::string program = "dtrain";  // there
  std::string ssh_config;
  uint16_t ssh_port = 0;
  std::string rsh;  // instead of ssh; empty: ssh
  Duration connect_timeout = std::chrono::seconds(10);
  bool json = false;
};

// "[USER@]HOST". INVALID_ARGUMENT: it is no host, or more than that.
absl::StatusOr<transport::Target> ParseTarget(const std::string& text);

// `args` begins with "migrate". Every error is InvalidArgument, one or two lines.
absl::StatusOr<Options> Parse(const std::vector<std::string>& args);

cli::Page PageOf(absl::string_view command);

}  // namespace dtrain::migrate
