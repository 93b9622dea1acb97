// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_printer.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "launcher/status/print.h"

namespace dtrain::status {

LogPrinter::~LogPrinter() {
  lines_.Flush([this](absl::string_view line, bool) { PrintLine(line); });
}

bool LogPrinter::Add(absl::string_view piece) {
  if (options_.json) {
    lines_.Add(piece, [this](absl::string_view line, bool) { PrintLine(line); });
  } else {
    Print(std::string(piece));
  }
  return std::fflush(stdout) == 0;
}

void LogPrinter::PrintLine(absl::string_view line) const {
  const nlohmann::ordered_json json = {
      {"rank", options_.rank}, {"stream", options_.stream}, {"line", std::string(line)}};
  Print(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace dtrain::status
