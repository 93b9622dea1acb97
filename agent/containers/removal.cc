// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/removal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/containers/command.h"
#include "agent/containers/environment.h"
#include "agent/containers/look.h"
#include "common/base/programs.h"
#include "common/base/text.h"

namespace dtrain::containers {
namespace {

// Docker's ways to say that there is nothing to do: its daemon removes a container by itself, after
// its client has exited.
bool OnlyMissing(const std::string& output) {
  std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipWhitespace());
  return std::all_of(lines.begin(), lines.end(), [](const std::string& line) {
    return absl::StrContains(line, "No such container") ||
           absl::StrContains(line, "is already in progress") || absl::StartsWith(line, "dtrain-");
  });
}

}  // namespace

std::vector<Removable> RemovablesOf(uid_t owner, const v1::JobPart& part,
                                    const std::vector<uint32_t>* ranks) {
  std::vector<Removable> out;
  for (int i = 0; i < part.programs_size(); ++i) {
    if (!part.programs(i).has_container()) continue;
    Removable of{part.programs(i).container(), {}};
    for (const v1::WorkerSpec& worker : part.workers()) {
      const bool wanted = ranks == nullptr ||
                          std::find(ranks->begin(), ranks->end(), worker.rank()) != ranks->end();
      if (wanted && worker.program() == static_cast<uint32_t>(i)) {
        of.names.push_back(ContainerName(owner, part, worker.rank()));
      }
    }
    if (!of.names.empty()) out.push_back(std::move(of));
  }
  return out;
}

Removal::Removal(loop::Loop& loop, std::vector<Removable> what,
                 const std::vector<std::string>& node_env, const os::Account* user, Done done,
                 Duration limit)
    : loop_(loop),
      env_(ClientEnvironment(node_env)),
      user_(user),
      limit_(limit),
      done_(std::move(done)) {
  const FindExecutable find = FindOnPathOf(node_env);
  for (const Removable& each : what) {
    const auto chosen = Choose(each.container, find);
    if (!chosen.ok()) continue;  // none was started, then
    std::vector<std::string> argv = RemoveCommand(*chosen, each.names);
    if (!argv.empty()) todo_.push_back(std::move(argv));
  }
  // Not from inside the constructor: the owner has yet to keep it.
  loop_.Post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Next();
  });
}

void Removal::Next() {
  run_.reset();
  if (todo_.empty()) return std::exchange(done_, nullptr)(std::move(why_));
  const std::vector<std::string> argv = std::move(todo_.back());
  todo_.pop_back();
  auto run = ClientRun::Start(loop_, {argv, env_, user_, limit_},
                              [this, argv](const ClientRun::End& end) { End(argv, end); });
  if (run.ok()) {
    run_ = *std::move(run);
    return;
  }
  Blame(argv, absl::StrCat("cannot ", std::string(run.status().message())));
  Next();
}

void Removal::End(const std::vector<std::string>& argv, const ClientRun::End& end) {
  const bool gone = end.status.signal == 0 && (end.status.code == 0 || OnlyMissing(end.output));
  if (!gone) Blame(argv, Describe(argv, end));
  // Posted: it runs inside of what it ends.
  loop_.Post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Next();
  });
}

void Removal::Blame(const std::vector<std::string>& argv, absl::string_view how) {
  std::vector<std::string> words(argv.begin(), argv.end());
  words[0] = words[0].substr(words[0].rfind('/') + 1);
  absl::StrAppend(&why_, why_.empty() ? "" : "; ",
                  "containers of the job may be left: ", std::string(how), "; run `",
                  Escape(absl::StrJoin(words, " "), 1000), "` on the node");
}

}  // namespace dtrain::containers
