// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/words.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/text.h"

namespace dtrain::transport {
namespace {

constexpr uint16_t kUsualPort = 22;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n'; }

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quote == '\0' && IsBlank(c)) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == quote) {
      quote = '\0';
    } else if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'') {
      if (++i == text.size())
        return absl::InvalidArgumentError("the command ends with a backslash");
      // Between double quotes a backslash quotes only what is special there.
      if (quote == '"' && !absl::StrContains("\"\\$`", text[i])) words.back() += '\\';
      words.back() += text[i];
    } else {
      words.back() += c;
    }
  }
  if (quote != '\0') {
    return absl::InvalidArgumentError(
        absl::StrCat("no closing ", std::string(1, quote), " in: ", Escape(text)));
  }
  if (words.empty()) return absl::InvalidArgumentError("the command is empty");
  return words;
}

absl::StatusOr<std::vector<std::string>> ExpandWords(const std::vector<std::string>& words,
                                                     const Target& target,
                                                     absl::string_view own_user) {
  bool host = false, user = false, port = false;
  std::vector<std::string> out;
  for (const std::string& word : words) {
    host |= absl::StrContains(word, "{host}");
    user |= absl::StrContains(word, "{user}");
    port |= absl::StrContains(word, "{port}");
    out.push_back(absl::StrReplaceAll(
        word, {{"{host}", target.host},
               {"{user}", target.user.empty() ? own_user : absl::string_view(target.user)},
               {"{port}", absl::StrCat(target.port == 0 ? kUsualPort : target.port)}}));
  }
  if (!target.user.empty() && !user) {
    return absl::InvalidArgumentError(absl::StrCat(
        "user ", Escape(target.user), " is asked for, but the --rsh command has no {user}"));
  }
  if (target.port != 0 && !port) {
    return absl::InvalidArgumentError(absl::StrCat("port ", target.port,
                                                   " is asked for, but the --rsh command has no "
                                                   "{port}"));
  }
  if (!host) out.push_back(target.host);
  return out;
}

std::vector<std::string> OpenSshWords(const Target& target, const std::string& config_file,
                                      uint16_t port, Duration connect_timeout, Duration silence,
                                      absl::string_view beyond) {
  const auto seconds = [](Duration time) {
    return std::max<int64_t>(std::chrono::ceil<std::chrono::seconds>(time).count(), 1);
  };
  constexpr int kQuestions = 3;
  // What a configuration may say of sessions of people would keep this one from running a command,
  // or leave a process behind.
  std::vector<std::string> words = {
      "ssh", "-T",
      "-o",  "BatchMode=yes",
      "-o",  "RemoteCommand=none",
      "-o",  "ClearAllForwardings=yes",
      "-o",  "ControlMaster=no",
      "-o",  absl::StrCat("ConnectTimeout=", seconds(connect_timeout)),
      "-o",  absl::StrCat("ServerAliveInterval=", seconds(silence / kQuestions)),
      "-o",  absl::StrCat("ServerAliveCountMax=", kQuestions)};
  // Older ones than 8.7 do not know these.
  for (const char* setting :
       {"ForkAfterAuthentication=no", "StdinNull=no", "SessionType=default"}) {
    const absl::string_view keyword = setting;
    if (absl::StrContains(beyond, keyword.substr(0, keyword.find('=')))) {
      words.insert(words.end(), {"-o", setting});
    }
  }
  // Which -f and ForkAfterAuthentication imply.
  if (absl::StrContains(beyond, "ForkAfterAuthentication") &&
      !absl::StrContains(beyond, "StdinNull")) {
    words.insert(words.end(), {"-o", "StdinNull=no"});
  }
  if (!config_file.empty()) words.insert(words.end(), {"-F", config_file});
  if (target.port != 0) port = target.port;
  if (port != 0) words.insert(words.end(), {"-p", absl::StrCat(port)});
  if (!target.user.empty()) words.insert(words.end(), {"-l", target.user});
  words.insert(words.end(), {"--", target.host});
  return words;
}

}  // namespace dtrain::transport
