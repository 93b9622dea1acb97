// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/node_warnings.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "absl/strings/str_cat.h"
#include "launcher/job/outcome.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {
namespace {

constexpr Duration kWarningSettle = std::chrono::milliseconds(200);

}  // namespace

void NodeWarnings::OnWarning(const Event& event) {
  const v1::Warning& warning = WarningOf(event);
  std::string text = Printable(warning.message());
  if (warning.detail()) details_.insert(text);
  waiting_.emplace_back(SenderOf(event), std::move(text));
  if (tell_at_ == kNever) tell_at_ = cluster_.now() + kWarningSettle;
}

void NodeWarnings::Tell() {
  tell_at_ = kNever;
  std::vector<std::string> texts;
  std::map<std::string, std::vector<std::string>> hosts_of;
  // As the hostfile has them, not as they happened to answer.
  std::stable_sort(waiting_.begin(), waiting_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [node, text] : std::exchange(waiting_, {})) {
    std::vector<std::string>& saying = hosts_of[text];
    if (saying.empty()) texts.push_back(text);
    if (saying.empty() || saying.back() != cluster_.host(node)) {
      saying.push_back(cluster_.host(node));
    }
  }
  for (const std::string& text : texts) {
    out_.Warn(absl::StrCat(rendezvous::FormatHosts(hosts_of[text]), ": ", text),
              details_.contains(text));
  }
}

void NodeWarnings::OnDeadline() {
  if (cluster_.now() >= tell_at_) Tell();
}

}  // namespace dtrain::job
