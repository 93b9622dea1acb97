// SPDX-License-Identifier: Apache-2.0
#include "launcher/history/rerun.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/words.h"

namespace dtrain::history {

absl::StatusOr<std::vector<std::string>> WordsToRerun(const std::vector<std::string>& words,
                                                      bool foreground) {
  if (words.empty()) return absl::InvalidArgumentError("the job's command line is not known");
  // Another launcher's command line has no flags of ours.
  if (words[0] != "launch") return words;
  const std::vector<cli::Flag>& flags = cli::LaunchFlags();
  const auto split = cli::SplitWords(flags, {words.begin() + 1, words.end()});
  if (!split.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job's command line is not one of this "
                     "version: ",
                     split.status().message()));
  }
  std::vector<std::string> out = {"launch"};
  bool detaches = foreground || cli::FindLong(flags, "detach") < 0;
  for (size_t i = 0; i < split->flags.size(); ++i) {
    const std::string& word = split->flags[i];
    const int flag = cli::FindLong(flags, absl::string_view(word).substr(2));
    const bool has_value = flag >= 0 && !flags[static_cast<size_t>(flag)].value.empty();
    const size_t last = has_value ? i + 1 : i;
    // A launcher that was on another machine is on this one already.
    if (word != "--key" && word != "--launcher-on") {
      out.insert(out.end(), split->flags.begin() + static_cast<ptrdiff_t>(i),
                 split->flags.begin() + static_cast<ptrdiff_t>(last + 1));
    }
    detaches = detaches || word == "--detach";
    i = last;
  }
  if (!detaches) out.emplace_back("--detach");
  // Behind "--" a ":" would be the program's own word.
  if (!split->command.empty() && split->further.empty()) out.emplace_back("--");
  out.insert(out.end(), split->command.begin(), split->command.end());
  if (!split->further.empty()) out.emplace_back(":");
  out.insert(out.end(), split->further.begin(), split->further.end());
  return out;
}

}  // namespace dtrain::history
