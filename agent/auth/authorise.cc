// SPDX-License-Identifier: Apache-2.0
#include "agent/auth/authorise.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"

namespace dtrain::auth {
namespace {

constexpr Rule kRules[] = {
    {"/dtrain.v1.Agent/Session", Right::kStart, "launch on this node"},
    {"/dtrain.v1.Agent/Logs", Right::kOwn, "read the output"},
    {"/dtrain.v1.Agent/NodeStatus", Right::kLook, "see the node"},
    {"/dtrain.v1.Agent/ReadLog", Right::kOwn, "read the output"},
    {"/dtrain.v1.Agent/StopJob", Right::kOwn, "end it"},
    {"GET /healthz", Right::kNone, "ask whether the agent is alive"},
    {"GET /metrics", Right::kLook, "read the metrics"},
    {"GET /v1/jobs", Right::kLook, "list the jobs"},
    {"GET /v1/jobs/{id}", Right::kSee, "see the state"},
    {"GET /v1/jobs/{id}/ranks", Right::kSee, "see the state"},
    {"GET /v1/jobs/{id}/ranks/{rank}", Right::kSee, "see the state"},
    {"GET /v1/jobs/{id}/ranks/{rank}/log", Right::kOwn, "read the output"},
    {"GET /v1/node", Right::kLook, "see the node"},
    {"GET /v1/nodes", Right::kLook, "see the nodes"},
};

const Rule* Find(absl::string_view method) {
  for (const Rule& rule : kRules) {
    if (rule.method == method) return &rule;
  }
  return nullptr;
}

bool Matches(absl::string_view pattern, absl::string_view path) {
  const std::vector<absl::string_view> wanted = absl::StrSplit(pattern, '/');
  const std::vector<absl::string_view> given = absl::StrSplit(path, '/');
  if (wanted.size() != given.size()) return false;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const bool any = absl::StartsWith(wanted[i], "{");
    if (any ? given[i].empty() : wanted[i] != given[i]) return false;
  }
  return true;
}

bool Owns(const Identity& identity, const Job* job) {
  return job != nullptr && identity.account.has_value() && identity.account->uid == job->uid;
}

bool May(const Identity& identity, Right right, const Job* job) {
  const bool admin = identity.role == Role::kAdmin;
  switch (right) {
    case Right::kNone:
    case Right::kLook:
      return true;
    case Right::kSee:
      return admin || identity.role == Role::kObserver || Owns(identity, job);
    case Right::kOwn:
      return admin || (identity.role == Role::kUser && Owns(identity, job));
    case Right::kStart:
      if (job != nullptr && !Owns(identity, job)) return false;
      return identity.role != Role::kObserver && identity.account.has_value();
    case Right::kAdmin:
      return admin;
  }
  return false;
}

// What would help.
std::string Advice(const Identity& identity, Right right, const Job* job) {
  if (right == Right::kAdmin) return "; only an admin may";
  if (job != nullptr) {
    return absl::StrCat("; ask ", Escape(job->owner), " or an admin",
                        identity.no_account.empty() ? "" : " (", identity.no_account,
                        identity.no_account.empty() ? "" : ")");
  }
  if (!identity.no_account.empty()) return absl::StrCat(": ", identity.no_account);
  return ": you have no such job";
}

std::string OfJob(const Job* job) {
  if (job == nullptr) return "";
  return absl::StrCat(" of job ", Escape(job->id), ", which is ", Escape(job->owner), "'s");
}

}  // namespace

absl::Span<const Rule> Rules() { return kRules; }

absl::string_view RouteOf(absl::string_view http_method, absl::string_view path) {
  // A HEAD asks for nothing that a GET does not tell.
  if (http_method == "HEAD") http_method = "GET";
  for (const Rule& rule : kRules) {
    absl::string_view pattern = rule.method;
    if (absl::ConsumePrefix(&pattern, http_method) && absl::ConsumePrefix(&pattern, " ") &&
        Matches(pattern, path)) {
      return rule.method;
    }
  }
  return "";
}

absl::Status Authorise(const Identity& identity, absl::string_view method, const Job* job) {
  const Rule* rule = Find(method);
  if (rule == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat(Describe(identity), " may not call ", Escape(method), ": no one may"));
  }
  if (May(identity, rule->right, job)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(Describe(identity), " may not ", rule->doing,
                                                  OfJob(job), Advice(identity, rule->right, job)));
}

absl::StatusOr<std::optional<size_t>> Choose(const Identity& identity, absl::string_view method,
                                             absl::Span<const Job> jobs) {
  std::vector<size_t> may;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (Owns(identity, &jobs[i])) return i;
    if (Authorise(identity, method, &jobs[i]).ok()) may.push_back(i);
  }
  if (may.size() > 1) {
    std::vector<std::string> owners;
    for (const size_t i : may) owners.push_back(Escape(jobs[i].owner));
    return absl::FailedPreconditionError(
        absl::StrCat("several users have a job ", Escape(jobs[may[0]].id),
                     " here; name its owner: ", absl::StrJoin(owners, ", ")));
  }
  if (!may.empty()) return may[0];
  if (!jobs.empty()) return size_t{0};
  return std::nullopt;
}

absl::Status AuthoriseStranger(absl::string_view method) {
  const Rule* rule = Find(method);
  if (rule != nullptr && rule->right == Right::kNone) return absl::OkStatus();
  return absl::UnauthenticatedError("not authenticated: present a certificate or token");
}

std::string AuditLine(const Identity& identity, absl::string_view method, const Job* job,
                      const absl::Status& decision) {
  const auto word = [](absl::string_view key, absl::string_view value) {
    // No value ends its quotes: who looks through the log must not be told what did not happen.
    std::string text = Escape(value);
    for (char& c : text) {
      if (c == '"') c = '\'';
    }
    return absl::StrCat(" ", key, "=\"", text, "\"");
  };
  std::string out = absl::StrCat("audit: ", decision.ok() ? "allowed" : "denied");
  absl::StrAppend(&out, word("who", absl::StrCat(RoleName(identity.role), ":", identity.name)));
  if (identity.account.has_value()) {
    absl::StrAppend(&out, word("account", identity.account->name),
                    word("uid", absl::StrCat(identity.account->uid)));
  }
  absl::StrAppend(&out, word("proof", identity.proof), word("peer", identity.peer),
                  word("method", method));
  if (job != nullptr) {
    absl::StrAppend(&out, word("job", job->id), word("owner", job->owner));
  }
  return out;
}

}  // namespace dtrain::auth
