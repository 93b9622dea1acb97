// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_printer.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "launcher/output/terminal_text.h"
#include "launcher/status/print.h"

namespace dtrain::status {

LogPrinter::LogPrinter(const CommandOptions& options, bool of_another)
    : options_(options), shows_escapes_(of_another && isatty(STDOUT_FILENO) == 1) {}

LogPrinter::~LogPrinter() {
  lines_.Flush([this](absl::string_view line, bool ended) { PrintLine(line, ended); });
}

bool LogPrinter::Add(absl::string_view piece) {
  if (options_.json || shows_escapes_) {
    lines_.Add(piece, [this](absl::string_view line, bool ended) { PrintLine(line, ended); });
  } else {
    Print(std::string(piece));
  }
  return std::fflush(stdout) == 0;
}

void LogPrinter::PrintLine(absl::string_view line, bool ended) const {
  if (options_.json) {
    return Print(
        JsonText(
            {{"rank", options_.rank}, {"stream", options_.stream}, {"line", std::string(line)}}) +
        "\n");
  }
  std::string shown;
  output::AppendForTerminal(line, "", shown);
  Print(ended ? shown + "\n" : shown);
}

}  // namespace dtrain::status
