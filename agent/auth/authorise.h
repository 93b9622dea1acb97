// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agent/auth/identity.h"

// Who may do what: one table of all methods, and what is not in it nobody may.
namespace dtrain::auth {

// What a method takes.
enum class Right {
  kNone,   // no identity: whether the process is alive
  kLook,   // anyone of the cluster: the state of the node
  kSee,    // a job's state: its owner, observers, admins
  kOwn,    // a job's output and its end: its owner, admins
  kStart,  // starting one, or taking up one's own again: users with an account
  kAdmin,
};

struct Rule {
  absl::string_view method;  // "/dtrain.v1.Agent/Logs", "GET /v1/jobs/{id}"
  Right right;
  absl::string_view doing;  // completes "alice may not ..."
};

absl::Span<const Rule> Rules();

// "GET /v1/jobs/{id}" for a GET or HEAD of /v1/jobs/dtrain-1f; empty when there is no such route.
absl::string_view RouteOf(absl::string_view http_method, absl::string_view path);

// The job that is asked about. Nullptr where a job is expected means that there is none of that
// name: then only those may ask who may about everyone's.
struct Job {
  std::string id;
  std::string owner;  // account
  uint32_t uid = 0;   // of the owner; this is what counts
};

// OK, or PERMISSION_DENIED with who asked for what and whose job it is. `method` as in Rules();
// one that is not there is denied to all.
absl::Status Authorise(const Identity& identity, absl::string_view method, const Job* job);

// `jobs` have one id and different owners. Returns the one that `identity` means: its own; else the
// only one that `method` lets it ask about; else any, for which Authorise then refuses it. Nullopt
// if `jobs` is empty. FAILED_PRECONDITION, with the owners, if it may ask about several.
absl::StatusOr<std::optional<size_t>> Choose(const Identity& identity, absl::string_view method,
                                             absl::Span<const Job> jobs);

// For who has not proven to be anybody: UNAUTHENTICATED for all but Right::kNone.
absl::Status AuthoriseStranger(absl::string_view method);

// A line for the log of what was asked and decided, of words `key="value"`.
std::string AuditLine(const Identity& identity, absl::string_view method, const Job* job,
                      const absl::Status& decision);

}  // namespace dtrain::auth
