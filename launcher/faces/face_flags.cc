// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/face_flags.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::faces {
namespace {

using Becomes = FaceFlag::Becomes;

std::string Dashed(absl::string_view name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

size_t CountValues(const FaceFlag& flag) {
  if (flag.values.empty()) return 0;
  return static_cast<size_t>(std::count(flag.values.begin(), flag.values.end(), ' ')) + 1;
}

class Reader {
 public:
  Reader(const std::vector<FaceFlag>& flags, Spelling spelling,
         const std::vector<std::string>& args)
      : flags_(flags), spelling_(spelling), args_(args) {}

  absl::StatusOr<FaceWords> Run() {
    while (next_ < args_.size()) {
      const std::string& word = args_[next_];
      if (word == "--") {
        ++next_;
        break;
      }
      if (word.size() < 2 || word[0] != '-') break;
      ++next_;
      if (absl::Status status = TakeFlag(word); !status.ok()) return status;
    }
    if (spelling_.behind_script) {
      if (absl::Status status = TakeFlagsBehindScript(); !status.ok()) return status;
    }
    words_.command.insert(words_.command.end(), args_.begin() + static_cast<std::ptrdiff_t>(next_),
                          args_.end());
    return std::move(words_);
  }

 private:
  // Up to a "--" or the end.
  absl::Status TakeFlagsBehindScript() {
    while (next_ < args_.size()) {
      const std::string& word = args_[next_++];
      if (word == "--" && !words_.command.empty()) break;
      const bool is_ours = absl::StartsWith(word, "--") && !words_.command.empty() &&
                           Exact(Dashed(word.substr(0, word.find('=')))) != nullptr;
      if (!is_ours) {
        words_.command.push_back(word);
      } else if (absl::Status status = TakeFlag(word); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status TakeFlag(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string spelled = word.substr(0, equals);
    absl::StatusOr<const FaceFlag*> flag = Find(Dashed(spelled));
    if (!flag.ok()) return flag.status();
    if (*flag != nullptr) {
      return Add(**flag, spelled, equals != std::string::npos,
                 equals != std::string::npos ? word.substr(equals + 1) : "");
    }
    // "-p12345"
    if (word[1] != '-' && word.size() > 2) {
      const FaceFlag* letter = Exact(word.substr(0, 2));
      if (letter != nullptr && CountValues(*letter) == 1) {
        return Add(*letter, word.substr(0, 2), true, word.substr(2));
      }
    }
    return TakeOurs(word, spelled);
  }

  const FaceFlag* Exact(const std::string& spelled) const {
    for (const FaceFlag& flag : flags_) {
      for (absl::string_view name : absl::StrSplit(flag.names, ',')) {
        if (name == spelled) return &flag;
        if (spelling_.one_dash && absl::StartsWith(name, "--") && name.substr(1) == spelled) {
          return &flag;
        }
        if (spelling_.one_dash && name[1] != '-' && absl::StrCat("-", name) == spelled) {
          return &flag;
        }
      }
    }
    return nullptr;
  }

  // Null: there is none.
  absl::StatusOr<const FaceFlag*> Find(const std::string& spelled) const {
    const FaceFlag* found = Exact(spelled);
    if (found != nullptr || !spelling_.abbreviations || !absl::StartsWith(spelled, "--") ||
        spelled.size() < 3) {
      return found;
    }
    std::vector<std::string> candidates;
    for (const FaceFlag& flag : flags_) {
      for (absl::string_view name : absl::StrSplit(flag.names, ',')) {
        if (!absl::StartsWith(name, spelled) || found == &flag) continue;
        candidates.emplace_back(name);
        found = &flag;
      }
    }
    if (candidates.size() < 2) return found;
    return absl::InvalidArgumentError(
        absl::StrCat(Escape(spelled, 80), " could be ", absl::StrJoin(candidates, " or ")));
  }

  absl::Status Add(const FaceFlag& flag, const std::string& spelled, bool has_value,
                   const std::string& value) {
    Mention mention{&flag, spelled, {}};
    size_t wanted = CountValues(flag);
    if (has_value && wanted == 0) {
      return absl::InvalidArgumentError(absl::StrCat(Escape(spelled, 80), " takes no value"));
    }
    if (has_value) mention.values.push_back(value);
    while (mention.values.size() < wanted) {
      if (next_ == args_.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            Escape(spelled, 80), wanted > 1 ? " needs more: " : " needs a value: ", spelled, " ",
            flag.values));
      }
      mention.values.push_back(args_[next_++]);
      // Hydra's "-env NAME=VALUE".
      if (flag.values == "NAME VALUE" && absl::StrContains(mention.values[0], '=')) {
        std::pair<std::string, std::string> both =
            absl::StrSplit(mention.values[0], absl::MaxSplits('=', 1));
        mention.values = {both.first, both.second};
      }
    }
    words_.mentions.push_back(std::move(mention));
    return absl::OkStatus();
  }

  absl::Status TakeOurs(const std::string& word, const std::string& spelled) {
    const std::vector<cli::Flag>& ours = cli::LaunchFlags();
    const int index = absl::StartsWith(spelled, "--") ? cli::FindLong(ours, spelled.substr(2)) : -1;
    if (index < 0 || absl::StartsWith(cli::FlagName(ours[static_cast<size_t>(index)]), "help")) {
      return Unknown(spelled);
    }
    Mention mention{nullptr, spelled, {word}};
    if (!ours[static_cast<size_t>(index)].value.empty() && word == spelled) {
      if (next_ == args_.size()) {
        return absl::InvalidArgumentError(absl::StrCat(spelled, " needs a value"));
      }
      mention.values.push_back(args_[next_++]);
    }
    words_.mentions.push_back(std::move(mention));
    return absl::OkStatus();
  }

  absl::Status Unknown(const std::string& spelled) const {
    std::vector<std::string> names = cli::LongNames(cli::LaunchFlags());
    for (const FaceFlag& flag : flags_) names.emplace_back(NameOf(flag));
    const std::string bare(absl::string_view(spelled).substr(spelled.find_first_not_of('-')));
    return absl::InvalidArgumentError(
        absl::StrCat("unknown flag ", Escape(spelled, 80), DidYouMean(Dashed(bare), names, "--")));
  }

  const std::vector<FaceFlag>& flags_;
  const Spelling spelling_;
  const std::vector<std::string>& args_;
  size_t next_ = 0;
  FaceWords words_;
};

}  // namespace

absl::string_view NameOf(const FaceFlag& flag) {
  absl::string_view name = flag.names.substr(0, flag.names.find(','));
  while (absl::ConsumePrefix(&name, "-")) {
  }
  return name;
}

absl::StatusOr<FaceWords> SplitFace(const std::vector<FaceFlag>& flags, Spelling spelling,
                                    const std::vector<std::string>& args) {
  return Reader(flags, spelling, args).Run();
}

}  // namespace dtrain::faces
