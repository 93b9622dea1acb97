// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/cli/options.h"
#include "launcher/faces/face_flags.h"
#include "launcher/output/shown.h"

namespace dtrain::faces {

// One program with its flags, in words of dtrain launch.
struct Line {
  std::vector<std::string> flags;
  std::vector<std::string> command;
};

// Another launcher's command line in dtrain's words.
struct Translation {
  std::vector<Line> programs;      // at least one
  std::vector<std::string> notes;  // for the user: what has no meaning here
  bool this_machine = false;       // whatever hosts are known otherwise
  bool needs_hosts = false;        // more nodes than this machine
  bool cores_are_no_limit = false;
  bool ppn_wraps = false;  // ranks beyond --ppn begin again with the first host
  // A rank for each GPU of a node, or one where it has none, unless something says how many.
  bool rank_per_gpu_or_one = false;
  // The parameter that became --rsh or --ssh-port, for messages: "--mca plm_rsh_args"; empty: none.
  std::string way;
  // What the other launcher gives between TERM and KILL.
  std::optional<Duration> grace;
  // MIN:MAX nodes: as many of those there are.
  std::optional<uint32_t> fewest_nodes, most_nodes;
  output::Shown shown;  // but for its ranks, which --show-ranks names
};

// The words behind `dtrain`: "launch" and what the programs make of it.
std::vector<std::string> LaunchWords(const Translation& translation);

// What no flag of dtrain launch says. Before LoadHosts, and after it.
void BeforeHosts(const Translation& translation, cli::LaunchOptions& options);
absl::Status AfterHosts(const Translation& translation, cli::LaunchOptions& options);

// Builds one program's line of a translation from mentions.
class LineBuilder {
 public:
  explicit LineBuilder(Translation& out) : out_(out) {}

  // Does what the flag's entry says; what is the face's own is left to Find.
  absl::Status Take(const FaceWords& words);
  // The last mention of the face's own flag; null: none. Values as typed.
  const Mention* Find(absl::string_view name) const;
  bool Has(absl::string_view name) const { return Find(name) != nullptr; }
  // Its value; `otherwise` when it was not given.
  std::string Value(absl::string_view name, absl::string_view otherwise = "") const;
  // All mentions of it.
  std::vector<const Mention*> All(absl::string_view name) const;
  // A flag of dtrain's stands on this very line: "hostfile".
  bool HasOurs(absl::string_view name) const;

  void Flag(absl::string_view name, absl::string_view value);
  void Switch(absl::string_view name);
  // Unless --export on this very line sets the variable: that is the user's last word.
  void Export(absl::string_view name, absl::string_view value);
  void Note(absl::string_view text);
  Line& line() { return line_; }

 private:
  bool IsExported(absl::string_view name) const;

  Translation& out_;
  FaceWords words_;
  Line line_;
};

// "--nnodes: "x" is not a number of nodes".
absl::Status BadValue(absl::string_view flag, absl::string_view value, absl::string_view wanted);

// As a shell would read it as one word.
std::string ShellWord(absl::string_view word);

// `command` with the worker's local rank wherever `placeholder` stands in a word; unchanged where
// it stands in none.
std::vector<std::string> WithLocalRank(const std::vector<std::string>& command,
                                       absl::string_view placeholder);

// The variable's value in the launcher's own environment; empty: it has none.
std::string Variable(const cli::Surroundings& surroundings, absl::string_view name);

bool IsSet(const cli::Surroundings& surroundings, absl::string_view name);

// Words of "python3 -u SCRIPT ...": `module` for -m, `plain` for a program that is its own.
absl::StatusOr<std::vector<std::string>> PythonCommand(const std::vector<std::string>& command,
                                                       bool module, bool plain,
                                                       const cli::Surroundings& surroundings);

}  // namespace dtrain::faces
