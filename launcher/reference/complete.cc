// SPDX-License-Identifier: Apache-2.0
#include "launcher/reference/complete.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace dtrain::reference {
namespace {

using Kind = Completion::Kind;
using Operand = cli::Page::Operand;
using View = absl::string_view;

// One line that tells what the flag is.
std::string Summary(const cli::Flag& flag) { return absl::StrReplaceAll(flag.help, {{"\n", " "}}); }

bool IsFlag(View word) { return word.size() >= 2 && word[0] == '-' && word != "--"; }

// The flag whose value the word after `word` is; -1: none.
int WantsValue(const std::vector<cli::Flag>& flags, View word) {
  if (absl::StrContains(word, '=')) return -1;
  const View name = word.substr(word[1] == '-' ? 2 : 1);
  const auto takes_value = [&](int flag) { return flag >= 0 && !flags[flag].value.empty(); };
  // As in SplitWords: one dash and several letters may be a long name.
  const int by_name = word[1] == '-' || name.size() > 1 ? cli::FindLong(flags, name) : -1;
  if (by_name >= 0 || word[1] == '-') return takes_value(by_name) ? by_name : -1;
  for (size_t i = 0; i < name.size(); ++i) {
    const int flag = cli::FindShort(flags, name[i]);
    if (flag < 0) return -1;
    // What follows a letter that takes a value is that value.
    if (takes_value(flag)) return i + 1 == name.size() ? flag : -1;
  }
  return -1;
}

class Completer {
 public:
  Completer(const std::vector<Command>& commands, const std::vector<std::string>& typed,
            const std::vector<std::string>& jobs)
      : command_(&commands[0]), typed_(typed), jobs_(jobs), last_(typed.back()) {
    while (at_ + 1 < typed.size()) {
      const Command* inner =
          Find(commands,
               command_->name.empty() ? typed[at_] : absl::StrCat(command_->name, " ", typed[at_]));
      if (inner == nullptr) break;
      command_ = inner;
      ++at_;
    }
  }

  Completion Run() {
    const std::vector<cli::Flag>& flags = command_->accepts;
    const bool runs_program = command_->page.operand == Operand::kProgram;
    size_t operands = 0;
    bool flags_are_over = false;
    for (; at_ + 1 < typed_.size(); ++at_) {
      const std::string& word = typed_[at_];
      if (word == "--" && !flags_are_over) {
        flags_are_over = true;
      } else if (!flags_are_over && IsFlag(word)) {
        const int flag = WantsValue(flags, word);
        if (flag < 0) continue;
        if (at_ + 2 == typed_.size()) return Value(flags[flag], "", last_);
        ++at_;
      } else if (runs_program) {
        return Program(at_);
      } else {
        ++operands;
      }
    }
    if (!flags_are_over && !last_.empty() && last_[0] == '-') return FlagOrValue();
    if (runs_program) return Program(at_);
    if (operands > 0) return {};
    return FirstOperand();
  }

 private:
  // `index` counts from the word after dtrain.
  static Completion Program(size_t index) { return {Kind::kProgram, {}, index + 1}; }

  static void Offer(View word, View summary, View beginning, Completion& out) {
    if (absl::StartsWith(word, beginning)) {
      out.words.push_back({std::string(word), std::string(summary)});
    }
  }

  static Completion Value(const cli::Flag& flag, View prefix, View begun) {
    if (flag.value == "FILE" || flag.value == "PATH") return {Kind::kFiles, {}, 0};
    if (flag.value == "DIR") return {Kind::kDirectories, {}, 0};
    Completion out;
    for (View word : flag.words) {
      Offer(absl::StrCat(prefix, word), "", absl::StrCat(prefix, begun), out);
    }
    return out;
  }

  Completion FlagOrValue() const {
    const size_t equals = last_.find('=');
    if (equals != std::string::npos) {
      const int flag = WantsValue(command_->accepts, View(last_).substr(0, equals));
      if (flag < 0) return {};
      return Value(command_->accepts[flag], View(last_).substr(0, equals + 1),
                   View(last_).substr(equals + 1));
    }
    Completion out;
    for (const cli::Flag& flag : command_->accepts) {
      for (View name : absl::StrSplit(flag.names, ',')) Offer(name, Summary(flag), last_, out);
    }
    return out;
  }

  Completion FirstOperand() const {
    Completion out;
    if (command_->page.operand == Operand::kListed) {
      for (const cli::Page::Entry& entry : command_->page.list) {
        Offer(entry.word, entry.summary, last_, out);
      }
    }
    if (command_->page.operand == Operand::kJob) {
      for (const std::string& job : jobs_) Offer(job, "", last_, out);
    }
    return out;
  }

  const Command* command_;
  const std::vector<std::string>& typed_;
  const std::vector<std::string>& jobs_;
  const std::string last_;
  size_t at_ = 0;
};

}  // namespace

Completion Complete(const std::vector<Command>& commands, const std::vector<std::string>& typed,
                    const std::vector<std::string>& jobs) {
  if (typed.empty()) return {};
  return Completer(commands, typed, jobs).Run();
}

std::string FormatCompletion(const Completion& completion) {
  std::string out;
  switch (completion.kind) {
    case Kind::kWords:
      out = "words\n";
      break;
    case Kind::kFiles:
      return "files\n";
    case Kind::kDirectories:
      return "directories\n";
    case Kind::kProgram:
      return absl::StrCat("program ", completion.program, "\n");
  }
  for (const cli::Page::Entry& entry : completion.words) {
    absl::StrAppend(&out, entry.word, "\t", entry.summary, "\n");
  }
  return out;
}

}  // namespace dtrain::reference
