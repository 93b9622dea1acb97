// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/words.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/text.h"

namespace dtrain::cli {
namespace {

// Flags of other launchers and schedulers, the flag of ours that does that, and what to write.
struct Elsewhere {
  absl::string_view theirs;
  absl::string_view ours;
  absl::string_view written;  // if empty: --ours
};

constexpr Elsewhere kElsewhere[] = {
    {"nproc", "np", "--np (in all) or --ppn (on each host)"},
    {"num-processes", "np", ""},
    {"ntasks", "np", ""},
    {"world-size", "np", ""},
    {"gpus", "ppn", "--ppn (ranks on each host, a GPU for each) or --gpus-per-rank"},
    {"num-gpus", "ppn", ""},
    {"gpus-per-node", "ppn", ""},
    {"devices", "ppn", ""},
    {"process-count-per-node", "ppn", ""},
    {"ntasks-per-node", "ppn", ""},
    {"tasks-per-node", "ppn", ""},
    {"slots-per-node", "ppn", ""},
    {"gpus-per-task", "gpus-per-rank", ""},
    {"cpus-per-task", "cores-per-rank", ""},
    {"cpus-per-rank", "cores-per-rank", ""},
    {"machinefile", "hostfile", ""},
    {"f", "hostfile", ""},
    {"nodefile", "hostfile", ""},
    {"nodelist", "hosts", ""},
    {"hostlist", "hosts", ""},
    {"num-machines", "nnodes", ""},
    {"num-nodes", "nnodes", ""},
    {"nics", "net", ""},
    {"network-interface", "net", ""},
    {"iface", "net", ""},
    {"image", "container", ""},
    {"volume", "container-mount", ""},
    {"mount", "container-mount", ""},
    {"workdir", "wdir", ""},
    {"chdir", "wdir", ""},
    {"cwd", "wdir", ""},
    {"background", "detach", ""},
    {"job-name", "name", ""},
    {"walltime", "timeout", ""},
    {"time", "timeout", ""},
    {"time-limit", "timeout", ""},
    {"output-filename", "output", ""},
    {"redirects", "log-dir", ""},
    {"tee", "log-dir", ""},
    {"bind-to", "bind", ""},
    {"cpu-bind", "bind", ""},
};

// Flags of launchers that are started once on each host, where dtrain is started once for all.
constexpr absl::string_view kNotNeeded[] = {
    "master-addr",  "master-port", "main-process-ip", "main-process-port", "machine-rank",
    "node-rank",    "rank",        "rdzv-endpoint",   "rdzv-backend",      "rdzv-id",
    "rdzv-conf",    "standalone",  "rendezvous",      "local-addr",        "allow-run-as-root",
    "no-ssh-check", "init-method", "dist-url"};

std::string WhatWasMeant(absl::string_view name, const std::vector<Flag>& flags) {
  const std::string dashed = absl::StrReplaceAll(name, {{"_", "-"}});
  for (const Elsewhere& flag : kElsewhere) {
    if (dashed != flag.theirs || FindLong(flags, flag.ours) < 0) continue;
    return absl::StrCat("; did you mean ",
                        flag.written.empty() ? absl::StrCat("--", flag.ours) : flag.written, "?");
  }
  const bool launches = FindLong(flags, "np") >= 0;
  if (launches &&
      std::find(std::begin(kNotNeeded), std::end(kNotNeeded), dashed) != std::end(kNotNeeded)) {
    return "; leave it out: one dtrain launch starts the ranks on all hosts and connects them";
  }
  return DidYouMean(name, LongNames(flags), "--");
}

class Splitter {
 public:
  Splitter(const std::vector<Flag>& flags, const std::vector<std::string>& args)
      : flags_(flags), args_(args) {}

  absl::StatusOr<Words> Run() {
    while (next_ < args_.size()) {
      const std::string& word = args_[next_];
      if (word == "--") {
        ++next_;
        untouched_ = true;
        break;
      }
      if (word.size() < 2 || word[0] != '-') break;
      ++next_;
      if (absl::Status status = TakeFlag(word); !status.ok()) return status;
    }
    TakeCommand();
    return std::move(words_);
  }

 private:
  // A ':' at either end of the command separates nothing.
  void TakeCommand() {
    words_.apart = untouched_;
    const auto begin = args_.begin() + static_cast<std::ptrdiff_t>(next_);
    auto end = args_.end();
    if (!untouched_ && args_.end() - begin > 2) {
      end = std::find(begin + 1, args_.end() - 1, ":");
      if (end == args_.end() - 1) end = args_.end();
    }
    words_.command.assign(begin, end);
    if (end != args_.end()) words_.further.assign(end + 1, args_.end());
  }

  absl::Status TakeFlag(absl::string_view word) {
    bool two_dashes = word[1] == '-';
    absl::string_view body = word.substr(two_dashes ? 2 : 1);
    size_t equals = body.find('=');
    absl::string_view name = body.substr(0, equals);
    absl::string_view value;
    if (equals != absl::string_view::npos) value = body.substr(equals + 1);
    // One dash and several letters is the field's habit for long names: -np, -hostfile.
    int flag = two_dashes || name.size() > 1 ? FindLong(flags_, name) : -1;
    if (flag >= 0) {
      return Add(flag, word.substr(0, word.size() - body.size() + name.size()),
                 equals != absl::string_view::npos, value);
    }
    if (two_dashes || FindShort(flags_, body[0]) < 0) {
      return Unknown(word.substr(0, word.size() - body.size() + name.size()), name);
    }
    return TakeLetters(body, name);
  }

  absl::Status TakeLetters(absl::string_view body, absl::string_view name) {
    for (size_t i = 0; i < body.size(); ++i) {
      int flag = FindShort(flags_, body[i]);
      std::string spelling = absl::StrCat("-", body.substr(i, 1));
      if (flag < 0) return Unknown(absl::StrCat("-", name), name);
      absl::string_view rest = body.substr(i + 1);
      bool has_value = !rest.empty() && (rest[0] == '=' || !flags_[flag].value.empty());
      if (!rest.empty() && rest[0] == '=') rest.remove_prefix(1);
      if (has_value || !flags_[flag].value.empty()) return Add(flag, spelling, has_value, rest);
      if (absl::Status status = Add(flag, spelling, false, ""); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Add(int index, absl::string_view spelling, bool has_value, absl::string_view value) {
    const Flag& flag = flags_[index];
    std::string canonical = absl::StrCat("--", FlagName(flag));
    if (flag.value.empty()) {
      words_.flags.push_back(has_value ? absl::StrCat(canonical, "=", value) : canonical);
      return absl::OkStatus();
    }
    if (!has_value) {
      if (next_ == args_.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat(Escape(spelling), " needs a value: ", spelling, " ", flag.value));
      }
      value = args_[next_++];
    }
    words_.flags.push_back(std::move(canonical));
    words_.flags.emplace_back(value.data(), value.size());
    return absl::OkStatus();
  }

  absl::Status Unknown(absl::string_view word, absl::string_view name) const {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown flag ", Escape(word, 80), WhatWasMeant(name, flags_)));
  }

  const std::vector<Flag>& flags_;
  const std::vector<std::string>& args_;
  size_t next_ = 0;
  bool untouched_ = false;  // the command follows "--"
  Words words_;
};

}  // namespace

absl::StatusOr<Words> SplitWords(const std::vector<Flag>& flags,
                                 const std::vector<std::string>& args) {
  return Splitter(flags, args).Run();
}

absl::StatusOr<MixedWords> SplitMixed(const std::vector<Flag>& flags,
                                      std::vector<std::string> args) {
  MixedWords mixed;
  while (!args.empty()) {
    absl::StatusOr<Words> words = SplitWords(flags, args);
    if (!words.ok()) return words.status();
    absl::StatusOr<std::vector<Given>> given = ParseFlags(flags, words->flags);
    if (!given.ok()) return given.status();
    for (Given& one : *given) mixed.flags.push_back(std::move(one));
    args = std::move(words->command);
    if (args.empty()) break;
    mixed.operands.push_back(std::move(args[0]));
    args.erase(args.begin());
  }
  return mixed;
}

}  // namespace dtrain::cli
