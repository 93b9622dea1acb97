// SPDX-License-Identifier: Apache-2.0
#include "agent/session/inquiries.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/auth/authorise.h"
#include "agent/inventory/limits.h"
#include "agent/session/withheld_gpus.h"
#include "common/base/text.h"

namespace dtrain::session {
namespace {

constexpr char kStopMethod[] = "/dtrain.v1.Agent/StopJob";
// Whose rule says who may see a job in whole.
constexpr char kSeeMethod[] = "GET /v1/jobs/{id}";
constexpr size_t kMostWaiting = 32;

template <typename Request>
AskedFor Asked(const Request& request) {
  return {request.job_id(), request.attempt(), request.owner()};
}

// With the number that its session has for the rank. One that it has not is refused later.
v1::ReadLogRequest InSession(const Session& session, v1::ReadLogRequest request) {
  request.set_rank(request.rank() - session.hello().elastic().first_number());
  return request;
}

}  // namespace

void Inquiries::ReportNode(const auth::Identity& peer, absl::string_view method,
                           absl::AnyInvocable<void(absl::StatusOr<v1::NodeReport>)> done) {
  if (absl::Status may = roster_.Check(peer, method, nullptr, nullptr); !may.ok()) {
    return done(std::move(may));
  }
  Callers& callers = CallersOf(peer);
  if (callers.waiting.size() >= kMostWaiting) {
    return done(absl::ResourceExhaustedError(
        absl::StrCat(kMostWaiting, " questions of ", Escape(peer.name, 64),
                     " about this node wait for their answer, as many as one user may have")));
  }
  callers.waiting.push_back(std::move(done));
  if (callers.waiting.size() > 1) return;
  if (callers.time.due() <= agent_.loop.Now()) return Answer(callers);
  if (callers.timer == nullptr) callers.timer = std::make_unique<loop::Timer>(agent_.loop);
  callers.timer->At(callers.time.due(), [this, &callers] { Answer(callers); });
}

// Forgets all that need not be known any more.
Inquiries::Callers& Inquiries::CallersOf(const auth::Identity& peer) {
  const TimePoint now = agent_.loop.Now();
  std::erase_if(callers_, [now](const auto& entry) {
    return entry.second.waiting.empty() && entry.second.time.due() <= now;
  });
  // What decides on what a report may say.
  const std::string who = absl::StrCat(auth::RoleName(peer.role), " ", peer.name, " ",
                                       peer.account ? absl::StrCat(peer.account->uid) : "");
  return callers_.try_emplace(who, Callers{peer}).first->second;
}

absl::Status Inquiries::MayAskOfJobs(const Callers& callers) const {
  const Duration wait = callers.time.answered_from() - agent_.loop.Now();
  if (wait <= Duration::zero()) return absl::OkStatus();
  const auto wait_ms = std::chrono::ceil<std::chrono::milliseconds>(wait);
  return absl::ResourceExhaustedError(
      absl::StrCat("questions of ", Escape(callers.peer.name, 64),
                   " have taken as much of this agent's time as one user's may; ask again in ",
                   wait_ms.count(), " ms"));
}

void Inquiries::Answer(Callers& callers) {
  agent_.readers.status([this, &callers](v1::Inventory inventory) {
    const TimePoint begin = agent_.loop.Now();
    const v1::NodeReport report = MakeReport(callers.peer, std::move(inventory));
    std::vector<OnReport> waiting = std::exchange(callers.waiting, {});
    // To send it costs about as much as to make it.
    const Duration cost = (agent_.loop.Now() - begin) * (1 + waiting.size());
    callers.time.Take(begin, cost);
    for (OnReport& done : waiting) done(report);
  });
}

v1::NodeReport Inquiries::MakeReport(const auth::Identity& peer, v1::Inventory inventory) {
  v1::NodeReport report;
  if (about_ != nullptr) report = about_();
  report.set_now_unix_nanos(absl::GetCurrentTimeNanos());
  const bool is_user = peer.role == auth::Role::kUser && peer.account.has_value();
  report.set_quarantine(quarantine_.Why(
      agent_.loop.Now(), is_user ? std::optional<uid_t>(peer.account->uid) : std::nullopt));
  // A resident agent's own privileges are not its users'.
  for (std::string& warning :
       inventory::WarningsOf(inventory::ReadLockedMemory(agent_.readers.roots, /*pid=*/0,
                                                         /*of_users=*/agent_.self.resumable))) {
    inventory.add_warnings(std::move(warning));
  }
  if (agent_.self.resumable)
    Mark(agent_.reservations, agent_.state_directory, /*session=*/nullptr, inventory);
  *report.mutable_inventory() = std::move(inventory);
  for (v1::JobOnNode& job : JobsFor(peer)) *report.add_jobs() = std::move(job);
  return report;
}

std::vector<v1::JobOnNode> Inquiries::JobsFor(const auth::Identity& peer) const {
  std::vector<v1::JobOnNode> out;
  for (const auto& session : roster_.all()) {
    if (session == nullptr || session->hello().job_id().empty() || IsSurvey(*session)) continue;
    const auth::Job job = JobOf(*session);
    const bool may = auth::Authorise(peer, kSeeMethod, &job).ok();
    out.push_back(may ? session->Describe() : session->DescribeInName());
  }
  return out;
}

void Inquiries::ListJobs(
    const auth::Identity& peer, absl::string_view method,
    absl::FunctionRef<void(const absl::StatusOr<std::vector<v1::JobOnNode>>&)> done) {
  if (absl::Status may = roster_.Check(peer, method, nullptr, nullptr); !may.ok()) {
    return done(std::move(may));
  }
  Callers& callers = CallersOf(peer);
  if (absl::Status may = MayAskOfJobs(callers); !may.ok()) return done(std::move(may));
  const TimePoint begin = agent_.loop.Now();
  done(JobsFor(peer));
  callers.time.Take(begin, agent_.loop.Now() - begin);
}

void Inquiries::DescribeJob(const auth::Identity& peer, absl::string_view method,
                            absl::string_view job_id, absl::string_view owner,
                            absl::FunctionRef<void(const absl::StatusOr<v1::JobOnNode>&)> done) {
  const TimePoint begin = agent_.loop.Now();
  auto session = roster_.FindFor(peer, method, {job_id, std::nullopt, owner});
  if (!session.ok()) return done(session.status());
  Callers& callers = CallersOf(peer);
  if (absl::Status may = MayAskOfJobs(callers); !may.ok()) return done(std::move(may));
  done((*session)->Describe());
  callers.time.Take(begin, agent_.loop.Now() - begin);
}

void Inquiries::ReadLog(const auth::Identity& peer, absl::string_view method,
                        const v1::ReadLogRequest& request, LogRelay::OnRead done) {
  auto session = roster_.FindFor(peer, method, Asked(request));
  if (!session.ok()) return done(session.status());
  (*session)->logs().Read(InSession(**session, request), std::move(done));
}

absl::StatusOr<std::shared_ptr<LogSource>> Inquiries::FollowLog(const auth::Identity& peer,
                                                                absl::string_view method,
                                                                const v1::ReadLogRequest& request,
                                                                LogSource::Handlers handlers) {
  auto session = roster_.FindFor(peer, method, Asked(request));
  if (!session.ok()) return session.status();
  return (*session)->logs().Follow(InSession(**session, request), std::move(handlers));
}

absl::StatusOr<v1::StopJobReply> Inquiries::StopJob(const auth::Identity& peer,
                                                    const v1::StopJobRequest& request) {
  auto session = roster_.FindFor(peer, kStopMethod, Asked(request));
  if (!session.ok()) return session.status();
  const auth::Job job = JobOf(**session);
  roster_.Audit(peer, kStopMethod, job, (*session)->stop_asked());
  v1::StopJobReply reply;
  reply.set_was_running(
      (*session)->StopBy(absl::StrCat("the job was stopped here by ", auth::Describe(peer))));
  return reply;
}

}  // namespace dtrain::session
