// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/print.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/safe_json.h"

namespace dtrain::status {

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void PrintPageAnew(const std::string& page) {
  static const bool terminal = isatty(STDOUT_FILENO) != 0;
  Print(terminal ? "\x1b[H\x1b[2J" + page : page + "\n");
  std::fflush(stdout);
}

void PrintJson(const nlohmann::ordered_json& json) { Print(JsonText(json, 2) + "\n"); }

std::string JsonText(const nlohmann::ordered_json& json, int indent) {
  using Json = nlohmann::ordered_json;
  static const bool terminal = isatty(STDOUT_FILENO) != 0;
  return SafeJson(
      json.dump(indent, ' ', /*ensure_ascii=*/terminal, Json::error_handler_t::replace));
}

void PrintEnded(const std::string& job_id, bool json) {
  if (json) return PrintJson({{"id", job_id}, {"ended", true}});
  std::fprintf(stderr, "dtrain: %s has ended\n", job_id.c_str());
}

}  // namespace dtrain::status
