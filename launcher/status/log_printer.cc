// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_printer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/output/terminal_text.h"
#include "launcher/status/print.h"

namespace dtrain::status {

LogPrinter::LogPrinter(const CommandOptions& options, bool of_another)
    : options_(options), shows_escapes_(of_another && !options.raw && isatty(STDOUT_FILENO) == 1) {}

LogPrinter::~LogPrinter() {
  lines_.Flush([this](absl::string_view line, bool) { PrintLine(line); });
  std::string shown;
  for (char c : rest_) output::AppendEscaped(c, shown);
  Print(shown);
}

bool LogPrinter::Add(absl::string_view piece) {
  if (options_.json) {
    lines_.Add(piece, [this](absl::string_view line, bool) { PrintLine(line); });
  } else if (shows_escapes_) {
    const std::string text = absl::StrCat(std::exchange(rest_, {}), piece);
    std::string shown;
    const size_t cut = output::AppendForOthers(text, shown);
    rest_ = text.substr(text.size() - cut);
    Print(shown);
  } else {
    Print(std::string(piece));
  }
  return std::fflush(stdout) == 0;
}

void LogPrinter::PrintLine(absl::string_view line) const {
  Print(JsonText(
            {{"rank", options_.rank}, {"stream", options_.stream}, {"line", std::string(line)}}) +
        "\n");
}

bool IsOfAnother(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && status.st_uid != geteuid();
}

}  // namespace dtrain::status
