// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/words.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace dtrain::cli {
namespace {

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
        absl::StrCat("unknown flag ", Escape(word, 80), DidYouMean(name, LongNames(flags_), "--")));
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
