// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/translation.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::faces {

using Becomes = FaceFlag::Becomes;

std::vector<std::string> LaunchWords(const Translation& translation) {
  std::vector<std::string> words = {"launch"};
  for (const Line& line : translation.programs) {
    if (&line != &translation.programs.front()) words.emplace_back(":");
    words.insert(words.end(), line.flags.begin(), line.flags.end());
    // With "--" a ':' would be an argument; of several programs none is.
    if (translation.programs.size() == 1) words.emplace_back("--");
    words.insert(words.end(), line.command.begin(), line.command.end());
  }
  return words;
}

void BeforeHosts(const Translation& translation, cli::LaunchOptions& options) {
  plan::PlanOptions& plan = options.job.plan;
  plan.cores_are_no_limit = translation.cores_are_no_limit;
  plan.ppn_wraps = translation.ppn_wraps;
  if (!translation.way.empty() && !options.host_flag.empty()) options.host_flag = translation.way;
  if (translation.grace && !options.grace_asked) options.job.grace = *translation.grace;
  if (translation.rank_per_gpu_or_one && !plan.ranks && !plan.ranks_per_node && !plan.per_node) {
    plan.per_node = plan::PerNode::kGpusOrOne;
  }
  std::vector<std::pair<uint32_t, uint32_t>> ranks = std::move(options.output.shown.ranks);
  options.output.shown = translation.shown;
  options.output.shown.ranks = std::move(ranks);
  // In a Kubernetes Indexed Job the hosts follow from it.
  if (translation.needs_hosts) plan.nodes = translation.fewest_nodes;
  if (!translation.this_machine) return;
  options.local = true;
  options.hostfile.clear();
  options.host_list.clear();
}

absl::Status AfterHosts(const Translation& translation, cli::LaunchOptions& options) {
  const size_t hosts = options.hosts.entries.size();
  if (translation.needs_hosts && options.local) {
    return absl::InvalidArgumentError(
        "several nodes are asked for, and no hosts are known: name them with --hostfile FILE or "
        "--hosts LIST, which are dtrain's own flags and work here too, with DTRAIN_HOSTFILE, in "
        "the configuration file, or start inside a Slurm allocation");
  }
  if (translation.fewest_nodes && hosts < *translation.fewest_nodes) {
    return absl::InvalidArgumentError(absl::StrCat("at least ", *translation.fewest_nodes,
                                                   " nodes are asked for, and the host list has ",
                                                   hosts));
  }
  if (translation.most_nodes && !options.local) {
    options.job.plan.nodes = std::min(*translation.most_nodes, static_cast<uint32_t>(hosts));
    if (translation.fewest_nodes < translation.most_nodes) {
      options.job.min_nodes = *translation.fewest_nodes;
    }
  }
  std::vector<std::string>& warnings = options.hosts.warnings;
  warnings.insert(warnings.end(), translation.notes.begin(), translation.notes.end());
  return absl::OkStatus();
}

absl::Status LineBuilder::Take(const FaceWords& words) {
  words_ = words;
  line_.command = words.command;
  std::vector<std::pair<absl::string_view, std::vector<std::string>>> ignored;  // by why
  for (const Mention& mention : words_.mentions) {
    if (mention.flag == nullptr) {
      line_.flags.insert(line_.flags.end(), mention.values.begin(), mention.values.end());
      continue;
    }
    const FaceFlag& flag = *mention.flag;
    const std::string value = mention.values.empty() ? "" : mention.values.back();
    const size_t cut = flag.to.find_first_of(" =");
    const absl::string_view to = flag.to.substr(0, cut);
    const bool fixed = cut != absl::string_view::npos;
    switch (flag.becomes) {
      case Becomes::kFlag:
        if (fixed || !flag.values.empty()) {
          Flag(to, fixed ? flag.to.substr(cut + 1) : absl::string_view(value));
        } else {
          Switch(to);
        }
        break;
      case Becomes::kVariable:
        Export(to, fixed ? flag.to.substr(cut + 1) : absl::string_view(value));
        break;
      case Becomes::kIgnored: {
        if (flag.to.empty()) break;
        auto same = std::find_if(ignored.begin(), ignored.end(),
                                 [&](const auto& each) { return each.first == flag.to; });
        if (same == ignored.end()) same = ignored.insert(same, {flag.to, {}});
        same->second.push_back(Escape(mention.spelled, 80));
        break;
      }
      case Becomes::kRejected:
        return absl::InvalidArgumentError(
            absl::StrCat(Escape(mention.spelled, 80), " is not supported: ", flag.to));
      case Becomes::kOwn:
        break;
    }
  }
  for (const auto& [why, flags] : ignored) {
    Note(absl::StrCat(absl::StrJoin(flags, ", "), " ignored: ", why));
  }
  return absl::OkStatus();
}

const Mention* LineBuilder::Find(absl::string_view name) const {
  for (auto it = words_.mentions.rbegin(); it != words_.mentions.rend(); ++it) {
    if (it->flag != nullptr && NameOf(*it->flag) == name) return &*it;
  }
  return nullptr;
}

std::string LineBuilder::Value(absl::string_view name, absl::string_view otherwise) const {
  const Mention* mention = Find(name);
  if (mention == nullptr || mention->values.empty()) return std::string(otherwise);
  return mention->values.back();
}

std::vector<const Mention*> LineBuilder::All(absl::string_view name) const {
  std::vector<const Mention*> all;
  for (const Mention& mention : words_.mentions) {
    if (mention.flag != nullptr && NameOf(*mention.flag) == name) all.push_back(&mention);
  }
  return all;
}

bool LineBuilder::HasOurs(absl::string_view name) const {
  return std::any_of(words_.mentions.begin(), words_.mentions.end(), [&](const Mention& each) {
    if (each.flag != nullptr) return false;
    const std::vector<cli::Flag>& ours = cli::LaunchFlags();
    const int index = cli::FindLong(ours, each.spelled.substr(2));
    return index >= 0 && cli::FlagName(ours[static_cast<size_t>(index)]) == name;
  });
}

void LineBuilder::Flag(absl::string_view name, absl::string_view value) {
  line_.flags.emplace_back(name);
  line_.flags.emplace_back(value);
}

void LineBuilder::Switch(absl::string_view name) { line_.flags.emplace_back(name); }

bool LineBuilder::IsExported(absl::string_view name) const {
  const std::string begin = absl::StrCat(name, "=");
  return std::any_of(words_.mentions.begin(), words_.mentions.end(), [&](const Mention& each) {
    if (each.flag != nullptr) return false;
    const std::string& value = each.values.back();
    return absl::StartsWith(value, begin) ||
           absl::StartsWith(value, absl::StrCat("--export=", begin));
  });
}

void LineBuilder::Export(absl::string_view name, absl::string_view value) {
  if (IsExported(name)) return;
  Flag("--export", absl::StrCat(name, "=", value));
}

void LineBuilder::Note(absl::string_view text) {
  out_.notes.push_back(absl::StrCat("dtrain: ", text));
}

absl::Status BadValue(absl::string_view flag, absl::string_view value, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": \"", Escape(value, 60), "\" is not ", wanted));
}

std::string ShellWord(absl::string_view word) {
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::vector<std::string> WithLocalRank(const std::vector<std::string>& command,
                                       absl::string_view placeholder) {
  const bool any = std::any_of(command.begin(), command.end(), [&](const std::string& word) {
    return absl::StrContains(word, placeholder);
  });
  if (!any) return command;
  std::vector<std::string> words;
  for (const std::string& word : command) {
    const std::vector<std::string> parts = absl::StrSplit(word, placeholder);
    words.push_back(absl::StrJoin(parts, "\"$LOCAL_RANK\"", [](std::string* out, const auto& part) {
      absl::StrAppend(out, ShellWord(part));
    }));
  }
  return {"/bin/sh", "-c", absl::StrCat("exec ", absl::StrJoin(words, " "))};
}

bool IsSet(const cli::Surroundings& surroundings, absl::string_view name) {
  const std::vector<std::string>& all = surroundings.environment;
  return std::any_of(all.begin(), all.end(), [&](const std::string& entry) {
    return absl::StartsWith(entry, absl::StrCat(name, "="));
  });
}

std::string Variable(const cli::Surroundings& surroundings, absl::string_view name) {
  return std::string(cli::FindVariable(surroundings, name).value_or(""));
}

absl::StatusOr<std::vector<std::string>> PythonCommand(const std::vector<std::string>& command,
                                                       bool module, bool plain,
                                                       const cli::Surroundings& surroundings) {
  if (command.empty()) return absl::InvalidArgumentError("no script to run");
  if (plain) {
    if (!module) return command;
    return absl::InvalidArgumentError("a module (-m) needs Python: leave out --no-python");
  }
  const std::string interpreter = Variable(surroundings, "PYTHON_EXEC");
  std::vector<std::string> words = {interpreter.empty() ? "python3" : interpreter, "-u"};
  if (module) words.emplace_back("-m");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace dtrain::faces
