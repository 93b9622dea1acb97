// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/bootstrap.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/transport/passing.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {
namespace {

// The script's names of homes have 24 digits; this is for whatever else a node may say.
constexpr size_t kLongestHome = 64;

struct Advice {
  absl::string_view code;
  absl::string_view next_step;
};

// By the codes of the bootstrap script, and of the agent (kernel).
constexpr Advice kAdvice[] = {
    {"nohome",
     "the agent is kept under $XDG_CACHE_HOME or $HOME/.cache: give this user a home directory "
     "there"},
    {"denied", "make that directory writable for this user, or set XDG_CACHE_HOME there"},
    {"readonly",
     "set XDG_CACHE_HOME there to a directory on a file system that can be written and executed"},
    {"nospace",
     "free some space there (the agent needs about 20 MB), or set XDG_CACHE_HOME there to a "
     "directory that has some"},
    {"noexec", "set XDG_CACHE_HOME there to a directory from which programs may run"},
    {"notool", "the node needs the usual tools of coreutils and findutils (or busybox)"},
    {"badhash", "the agent was altered in transit, or rebuilt in the meantime: try again"},
    {"kernel", "a container has its host's kernel: update that, or leave this node out"},
    {"unpack", "the agent was altered in transit, or the connection broke: try again"},
    {"short", "the connection broke while the agent was sent: try again"},
};

absl::Status RemoteError(const HandshakeLine& line) {
  absl::string_view code = line.Field("code");
  std::string message =
      absl::StrCat("could not start the agent: ", Escape(line.Field("reason"), 600));
  for (const Advice& advice : kAdvice) {
    if (advice.code == code) absl::StrAppend(&message, "; ", advice.next_step);
  }
  return absl::FailedPreconditionError(message);
}

// The line of `text` that holds `what`, escaped; empty when there is none.
std::string LineWith(absl::string_view text, absl::string_view what) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StrContains(line, what)) return Escape(absl::StripAsciiWhitespace(line), 300);
  }
  return "";
}

// What the dynamic linker and the shell say when a program cannot run on a machine at all.
std::string CannotRun(absl::string_view stderr_tail) {
  for (absl::string_view library : {"`GLIBC_", "`GLIBCXX_"}) {
    std::string line = LineWith(stderr_tail, library);
    if (!line.empty() && absl::StrContains(line, "not found")) {
      return absl::StrCat("its C library is older than the agent needs (", line,
                          "); dtrain's released agents need glibc 2.28");
    }
  }
  std::string line = LineWith(stderr_tail, "cannot open shared object file");
  if (!line.empty()) return absl::StrCat("a library the agent needs is missing there (", line, ")");
  line = LineWith(stderr_tail, "xec format error");
  if (line.empty()) line = LineWith(stderr_tail, "cannot execute binary file");
  if (!line.empty()) {
    return absl::StrCat("the agent was built for another architecture (", line, ")");
  }
  line = LineWith(stderr_tail, "dtrain-agent: Permission denied");
  if (!line.empty()) {
    return absl::StrCat(
        "it is on a file system mounted without exec permission, or a security "
        "module forbids it (",
        line, ")");
  }
  line = LineWith(stderr_tail, "dtrain-agent: not found");
  if (line.empty()) line = LineWith(stderr_tail, "dtrain-agent: No such file");
  if (!line.empty()) {
    return absl::StrCat("glibc is missing there (Alpine and other musl systems are not supported; ",
                        line, ")");
  }
  return "";
}

}  // namespace

Bootstrap::Want Bootstrap::OnOutput(absl::string_view bytes) {
  if (!error_.ok()) return Want::kFailed;
  switch (scanner_.Feed(bytes)) {
    case HandshakeScanner::State::kScanning:
      return Want::kMore;
    case HandshakeScanner::State::kFailed:
      return Fail(scanner_.error());
    case HandshakeScanner::State::kFound:
      break;
  }
  const HandshakeLine& line = scanner_.line();
  if (line.word == "begun") {
    begun_ = true;
    const std::string rest = scanner_.TakeRest();
    scanner_ = HandshakeScanner();
    return OnOutput(rest);
  }
  if (line.word == "ready") return Want::kReady;
  if (line.word == "error") return Fail(RemoteError(line));
  if (line.word == "need") return OnNeed();
  return Fail(absl::FailedPreconditionError(
      absl::StrCat("the remote side gave an unknown answer: ", Escape(line.word))));
}

Bootstrap::Want Bootstrap::OnNeed() {
  const std::string machine(scanner_.line().Field("machine"));
  if (pushing_) {
    return Fail(absl::FailedPreconditionError("the remote side asked for the agent twice"));
  }
  const auto found = std::find(machines_.begin(), machines_.end(), machine);
  const bool any = machines_.size() == 1 && machines_[0].empty();
  if (found == machines_.end() && !any) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(
        "the node is a machine of kind ", Escape(machine), " and this dtrain has an agent for ",
        absl::StrJoin(machines_, " and "), " only; use a dtrain that has one for ", Escape(machine),
        " (../lib/dtrain/agent-", Escape(machine), " from the program)")));
  }
  wanted_ = any ? 0 : static_cast<size_t>(found - machines_.begin());
  has_gzip_ = scanner_.line().Field("gzip") == "yes";
  home_ = std::string(scanner_.line().Field("home").substr(0, kLongestHome));
  pushing_ = true;
  scanner_ = HandshakeScanner();
  return Want::kPush;
}

std::string Bootstrap::LookAgain() {
  pushing_ = false;
  return "look\n";
}

absl::Status Bootstrap::OnEnd(absl::string_view how, absl::string_view stderr_tail) {
  if (!error_.ok()) return error_;
  std::string cause = CannotRun(stderr_tail);
  if (!cause.empty()) {
    Fail(absl::FailedPreconditionError(absl::StrCat("the agent cannot run there: ", cause)));
    return error_;
  }
  std::string message =
      absl::StrCat(how, " before an agent answered",
                   pushing_ ? ", and after the node had asked to be sent one" : "");
  std::string last = LastLines(stderr_tail);
  if (!last.empty()) absl::StrAppend(&message, ": ", last);
  std::string noise = scanner_.FirstNoiseLine();
  if (!noise.empty()) absl::StrAppend(&message, "; its output begins: \"", noise, "\"");
  if (const std::string shell = NeverBegun(how); !shell.empty()) {
    absl::StrAppend(&message, "; ", shell);
  } else if (last.empty() && noise.empty() && !pushing_ && !begun_ &&
             absl::EndsWith(how, "status 0")) {
    // A shell that has read nothing.
    absl::StrAppend(&message,
                    "; does the command pass on its standard input? kubectl exec and docker exec "
                    "need -i for that");
  }
  std::string passes = WhatPassesIn(stderr_tail);
  // By somebody there or here, or for lack of memory.
  if (passes.empty() && absl::StrContains(how, " was killed by ")) passes = "connection broken";
  Fail(PassingError(absl::UnavailableError(message), passes));
  return error_;
}

// The login shell has ended by itself. 255 is ssh's own word.
std::string Bootstrap::NeverBegun(absl::string_view how) const {
  if (!login_shell_ || begun_ || !absl::StrContains(how, " status ") ||
      absl::EndsWith(how, "status 255")) {
    return "";
  }
  return "a start-up file of the login shell there (~/.bashrc, ~/.zshenv, ~/.cshrc or the like) "
         "ended "
         "it, put another program in its place or read what was meant for it: look there for exit, "
         "exec and read. `ssh HOST true` must print nothing and succeed";
}

Bootstrap::Want Bootstrap::Fail(absl::Status error) {
  error_ = std::move(error);
  return Want::kFailed;
}

std::string LastLines(absl::string_view text, size_t lines) {
  std::vector<std::string> kept;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) kept.push_back(Escape(line, 300));
  }
  if (kept.size() > lines) {
    kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(lines));
  }
  return absl::StrJoin(kept, "; ");
}

}  // namespace dtrain::transport
