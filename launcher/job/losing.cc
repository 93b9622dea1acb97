// SPDX-License-Identifier: Apache-2.0
// Nodes of a running job that fail, or are heard of no more.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {

bool HasGivenUsUp(const NodeClosed& closed) {
  return absl::IsAborted(closed.why) || (absl::IsNotFound(closed.why) && !closed.started_anew);
}

// Tells one node's trouble. The first ends the job; those that come right behind are told with it.
void JobImpl::LateFault(NodeId id, std::string text, int exit_code) {
  const bool first = verdict.kind == Verdict::Kind::kNone;
  // All nodes were told to start: one that could not either tells so, however late it answers.
  const bool same_start = !ran && At(id).start_sent && !At(id).started;
  const bool more = verdict.kind == Verdict::Kind::kNode &&
                    (now <= verdict_open_until || same_start || IsTold(text));
  if (!first && !more) return;
  AddLateFault(id, std::move(text), exit_code);
  if (more) return;
  verdict_open_until = now + kVerdictSettle;
  // FinishJob writes the message, when all are known: it names thousands of nodes at times.
  Stop({.kind = Verdict::Kind::kNode,
        .exit_code = exit_code,
        .message = "",
        .rank = {},
        .signal = 0});
}

void JobImpl::AddLateFault(NodeId id, std::string text, int exit_code) {
  told_texts.insert(text);
  faults.push_back({Host(id), std::move(text), exit_code});
  tell_late_faults = true;
}

// Of another node: what lies between takes them all, however long each needs to see it.
bool JobImpl::IsTold(const std::string& text) const { return told_texts.count(text) > 0; }

void JobImpl::OnClosed(const Event& event) {
  const auto& closed = std::get<NodeClosed>(event);
  std::string why(closed.why.message());
  if (why.empty()) why = "its agent ended the session";
  if (HasGivenUsUp(closed) && BlameOwnPause()) return LetGo(closed.node);
  if (absl::IsNotFound(closed.why)) {
    // An agent that came back without the job: its shepherd and workers are gone.
    At(closed.node).finished = true;
    return LoseNode(closed.node, Printable(why),
                    closed.started_anew ? kExitNodeLost : kExitAgentLost);
  }
  int exit_code = state == State::kStarting ? kExitStartAgents : kExitNodeLost;
  if (closed.not_authorised) exit_code = kExitNotAuthorised;
  LoseConnection(closed.node, Printable(why), exit_code);
}

void JobImpl::LoseConnection(NodeId id, const std::string& why, int exit_code) {
  std::string text = absl::StrCat("the connection to its agent is lost: ", why);
  if (At(id).finished) {
    absl::StrAppend(&text, "; its workers had ended, but not all of their output has arrived");
  } else {
    absl::StrAppend(&text, "; it ends its workers by itself within ",
                    FormatSeconds(options.lease + options.grace));
  }
  LoseNode(id, std::move(text), exit_code);
}

void JobImpl::LetGo(NodeId id) {
  views[id.value()].gone = true;
  views[id.value()].waiting_for.clear();
  actions.push_back(Disconnect{id});
  FinishIfAllGone();
}

void JobImpl::LoseNode(NodeId id, std::string text, int exit_code) {
  if (still_blamed && At(id).told_to_end) return LetGo(id);
  views[id.value()].gone = true;
  views[id.value()].waiting_for.clear();
  actions.push_back(Disconnect{id});
  text = WithOwnPause(std::move(text));
  if (IsCause(id)) return LostFirst(id, std::move(text), exit_code);
  // A job that is being stopped goes on with the other nodes.
  const bool told =
      verdict.kind != Verdict::Kind::kNone && now > verdict_open_until && !IsTold(text);
  const bool other = verdict.kind != Verdict::Kind::kNone && verdict.kind != Verdict::Kind::kNode;
  if (state == State::kStopping && (told || other)) {
    WarnUser(absl::StrCat(Host(id), ": ", text));
  } else {
    LateFault(id, std::move(text), exit_code);
  }
  FinishIfAllGone();
}

// Of a worker's failure that was told while this node had fallen silent for good: its neighbours
// fail when its workers end or their connections break, before its lease is over.
bool JobImpl::IsCause(NodeId id) {
  return state == State::kStopping && verdict.kind == Verdict::Kind::kWorker &&
         At(id).ranks_left > 0 && At(id).last_heard < verdict_open_until - kVerdictSettle;
}

void JobImpl::LostFirst(NodeId id, std::string text, int exit_code) {
  absl::StrAppend(&text, "; rank ", verdict.rank.value(), " on ",
                  Host(ranks[verdict.rank.value()].node), " failed after that, with exit code ",
                  verdict.exit_code);
  AddLateFault(id, std::move(text), exit_code);
  verdict = {
      .kind = Verdict::Kind::kNode, .exit_code = exit_code, .message = "", .rank = {}, .signal = 0};
  verdict_open_until = now + kVerdictSettle;
  FinishIfAllGone();
}

}  // namespace dtrain::job
