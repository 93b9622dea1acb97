// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/agent_jobs.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/view/node_view.h"
#include "launcher/detached/job_names.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

bool Lives(const v1::JobOnNode& job) { return job.state() != v1::JobOnNode::STATE_FINISHED; }

uint32_t AttemptOf(const v1::JobOnNode& job) {
  return job.has_elastic() ? job.elastic().attempt() : job.attempt();
}

// An elastic job knows of no other hosts than those that it has now.
void CountElastic(const AgentJob& job, Json& view) {
  std::set<std::string> hosts;
  int64_t ranks = 0;
  for (const JobPart& part : job.parts) {
    if (!Lives(part.job)) continue;
    hosts.insert(part.host);
    ranks += part.job.world_size();
  }
  view["nodes"] = hosts.size();
  view["world_size"] = ranks;
}

// What most concerns people: that of the part that still has something to do.
const JobPart& Telling(const AgentJob& job) {
  auto living = std::find_if(job.parts.begin(), job.parts.end(),
                             [](const JobPart& part) { return Lives(part.job); });
  return living == job.parts.end() ? job.parts[0] : *living;
}

}  // namespace

bool AgentJob::lives() const {
  return std::any_of(parts.begin(), parts.end(),
                     [](const JobPart& part) { return Lives(part.job); });
}

bool AgentJob::in_name() const {
  return std::all_of(parts.begin(), parts.end(),
                     [](const JobPart& part) { return part.job.in_name(); });
}

std::vector<AgentJob> JobsOf(const std::vector<Told>& told) {
  std::map<std::pair<std::string, std::string>, AgentJob> jobs;
  for (const Told& one : told) {
    for (const v1::JobOnNode& job : one.report.jobs()) {
      AgentJob& all = jobs[{job.job_id(), job.owner()}];
      const uint32_t attempt = AttemptOf(job);
      if (attempt < all.attempt) continue;
      if (attempt > all.attempt) all.parts.clear();
      all.id = job.job_id();
      all.owner = job.owner();
      all.attempt = attempt;
      all.parts.push_back({one.node, one.host, job, one.report.now_unix_nanos()});
    }
  }
  std::vector<AgentJob> out;
  for (auto& [key, job] : jobs) {
    std::stable_sort(job.parts.begin(), job.parts.end(), [](const JobPart& a, const JobPart& b) {
      const auto place = [](const JobPart& part) {
        const bool has_none = part.job.world_size() == 0;  // a spare, or it joins still
        return std::tuple(has_none, part.job.node_rank(), part.job.elastic().first_number(),
                          part.node);
      };
      return place(a) < place(b);
    });
    out.push_back(std::move(job));
  }
  return out;
}

absl::StatusOr<std::optional<AgentJob>> Named(std::vector<AgentJob> jobs, absl::string_view name) {
  const auto with_owner = [](const AgentJob& job) { return absl::StrCat(job.owner, "/", job.id); };
  const auto exactly = [&](const AgentJob& job) {
    return job.id == name || with_owner(job) == name;
  };
  const auto prefer = [&](absl::FunctionRef<bool(const AgentJob&)> what) {
    if (std::any_of(jobs.begin(), jobs.end(), what)) std::erase_if(jobs, std::not_fn(what));
  };
  const bool any = name.empty();
  std::erase_if(jobs, [&](const AgentJob& job) {
    return !any && !exactly(job) && !detached::BeginsWith(job.id, name);
  });
  prefer(exactly);
  prefer([](const AgentJob& job) { return !job.in_name(); });
  if (jobs.empty()) return std::nullopt;
  const bool one_id = std::all_of(jobs.begin(), jobs.end(),
                                  [&](const AgentJob& job) { return job.id == jobs[0].id; });
  std::vector<std::string> names;
  for (const AgentJob& job : jobs) names.push_back(one_id ? with_owner(job) : job.id);
  if (!any && !exactly(jobs[0])) {
    if (absl::Status fits = detached::CheckBeginning(name, names); !fits.ok()) return fits;
  }
  if (jobs.size() == 1) return std::move(jobs[0]);
  return absl::InvalidArgumentError(
      absl::StrCat("several jobs are running; name one of them: ", absl::StrJoin(names, ", ")));
}

Json AgentJobView(const AgentJob& job) {
  const JobPart& telling = Telling(job);
  Json view = view::JobView(telling.job, telling.host, telling.now_unix_nanos);
  for (const char* of_one_node : {"host", "node_rank", "gpus", "cpus"}) view.erase(of_one_node);
  view["phase"] = view["state"];
  if (telling.job.has_elastic() && view.contains("nodes")) CountElastic(job, view);
  Json parts = Json::array();
  std::map<std::string, int64_t> ranks;
  for (const JobPart& part : job.parts) {
    parts.push_back(view::JobView(part.job, part.host, part.now_unix_nanos));
    if (!parts.back().contains("ranks")) continue;
    for (const auto& [state, count] : parts.back()["ranks"].items()) {
      ranks[state] += count.get<int64_t>();
    }
  }
  if (!ranks.empty()) view["ranks"] = ranks;
  std::set<std::string> hosts;
  for (const JobPart& part : job.parts) hosts.insert(part.host);
  view["on"] = absl::StrCat(
      job.parts[0].host, hosts.size() > 1 ? absl::StrCat(" and ", hosts.size() - 1, " more") : "");
  view["parts"] = std::move(parts);
  return view;
}

Json AgentJobPage(const AgentJob& job) {
  Json nodes = Json::array();
  Json ranks = Json::array();
  for (const JobPart& part : job.parts) {
    nodes.push_back(view::JobView(part.job, part.host, part.now_unix_nanos));
    for (const v1::RankOnNode& rank : part.job.ranks()) {
      ranks.push_back(view::RankView(rank, part.host));
    }
  }
  std::stable_sort(ranks.begin(), ranks.end(), [](const Json& a, const Json& b) {
    return a["rank"].get<int64_t>() < b["rank"].get<int64_t>();
  });
  return {{"job", AgentJobView(job)}, {"ranks", std::move(ranks)}, {"nodes", std::move(nodes)}};
}

}  // namespace dtrain::status
