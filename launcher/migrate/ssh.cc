// SPDX-License-Identifier: Apache-2.0
#include "launcher/migrate/ssh.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/os/account.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "launcher/transport/words.h"

namespace dtrain::migrate {
namespace {

constexpr int kEndMs = 5000;

// For a shell there, where the words of ssh end up; other commands may have none.
std::string ForShell(const std::string& word) {
  const bool plain = std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("/._-+~", c);
  });
  return plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

absl::StatusOr<std::vector<std::string>> WordsTo(const Options& options) {
  std::vector<std::string> words;
  if (options.rsh.empty()) {
    words = transport::OpenSshWords(options.to, options.ssh_config, options.ssh_port,
                                    options.connect_timeout, kSshSilence);
  } else {
    const auto own = os::FindAccount(geteuid());
    auto split = transport::SplitWords(options.rsh);
    if (!split.ok()) return split.status();
    auto expanded =
        transport::ExpandWords(*split, options.to, own.ok() ? own->name : std::string());
    if (!expanded.ok()) return expanded.status();
    words = *std::move(expanded);
  }
  words.insert(words.end(), {ForShell(options.program), "migrate", "--receive"});
  return words;
}

}  // namespace

absl::Status Ssh::Start(const Options& options) {
  const auto words = WordsTo(options);
  if (!words.ok()) return words.status();
  command_ = absl::StrCat((*words)[0], " ... ", options.program, " migrate --receive");
  auto stream = os::SocketPair();
  if (!stream.ok()) return stream.status();
  if (absl::Status s = os::SetNonBlocking(stream->first.get(), true); !s.ok()) return s;
  os::SpawnSpec spec;
  spec.argv = *words;
  spec.env = os::OwnEnvironment();
  spec.stdin_fd = stream->second.get();
  spec.stdout_fd = stream->second.get();
  spec.stderr_fd = STDERR_FILENO;
  spec.new_session = true;
  auto child = os::Spawn(spec);
  if (!child.ok()) return child.status();
  child_ = *std::move(child);
  stream_ = std::move(stream->first);
  return absl::OkStatus();
}

std::string Ssh::End() {
  if (!child_.pidfd) return "";
  stream_.Reset();
  pollfd ended{child_.pidfd.get(), POLLIN, 0};
  const bool by_itself = poll(&ended, 1, kEndMs) > 0;
  if (!by_itself) (void)os::SendSignal(child_.pidfd.get(), SIGKILL);
  const auto status = os::WaitAndReap(child_.pidfd.get());
  child_ = {};
  if (!by_itself || !status.ok() || status->signal != 0) return "";
  return absl::StrCat("exit status ", status->code);
}

}  // namespace dtrain::migrate
