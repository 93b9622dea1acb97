// SPDX-License-Identifier: Apache-2.0
#include "agent/auth/refusal_log.h"

#include <chrono>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace dtrain::auth {
namespace {

constexpr std::chrono::minutes kOnce{1};
// About 100 KiB. More peers than this are a scan or an attack, and one line says so.
constexpr size_t kPeers = 1024;
// Under attack a look through all of them for each refusal would be one more load.
constexpr std::chrono::seconds kSweep{1};
constexpr absl::string_view kOthers = "(many peers)";

}  // namespace

std::optional<std::string> RefusalLog::Line(TimePoint now, absl::string_view peer,
                                            absl::string_view why) {
  return Bound(now, peer, absl::StrCat("refused ", Escape(peer), ": ", Escape(why, 1000)));
}

std::optional<std::string> RefusalLog::Bound(TimePoint now, absl::string_view peer,
                                             std::string line) {
  auto found = peers_.find(peer);
  if (found == peers_.end() && peers_.size() >= kPeers) {
    if (now >= next_sweep_) Forget(now);
    if (peers_.size() >= kPeers) found = peers_.find(kOthers);
  }
  if (found != peers_.end() && now < found->second.told + kOnce) {
    ++found->second.kept_back;
    return std::nullopt;
  }
  if (found == peers_.end()) {
    found = peers_.try_emplace(std::string(peers_.size() >= kPeers ? kOthers : peer)).first;
  }
  const size_t before = found->second.kept_back;
  found->second = {now, 0};
  if (before > 0) {
    absl::StrAppend(&line, " (and ", before, " more of ",
                    found->first == kOthers ? "many peers" : "it", " since the last line)");
  }
  return line;
}

// Those whose minute is over. How many of theirs were kept back is then not told any more.
void RefusalLog::Forget(TimePoint now) {
  next_sweep_ = now + kSweep;
  for (auto it = peers_.begin(); it != peers_.end();) {
    const bool over = now >= it->second.told + kOnce;
    it = over ? peers_.erase(it) : std::next(it);
  }
}

}  // namespace dtrain::auth
