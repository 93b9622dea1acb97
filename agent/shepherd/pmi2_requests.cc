// SPDX-License-Identifier: Apache-2.0
// PMI-2's commands, as MPICH's and Slurm's clients send them.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/shepherd/pmi2_frame.h"
#include "agent/shepherd/pmi_server.h"
#include "common/base/text.h"

namespace dtrain::shepherd {
namespace {

// Room for the node attributes of all workers of a node.
constexpr size_t kNodeAttributesMax = 1 << 20;
// Threads of one client that wait for node attributes at the same time.
constexpr size_t kMostWaiting = 64;
// A client's name for one of its threads; they send an address.
constexpr size_t kThreadNameMax = 64;
// PMI2_ERR_OTHER; clients only look whether it is 0.
constexpr absl::string_view kRefused = "14";

std::string Respond(const PmiRequest& request, absl::string_view rc, Pmi2Fields fields) {
  fields.insert(fields.begin(), {"rc", std::string(rc)});
  const std::string* thread = request.Find("thrid");
  if (thread != nullptr) fields.insert(fields.begin(), {"thrid", *thread});
  return FormatPmi2Frame(absl::StrCat(request.command, "-response"), fields);
}

PmiServer::Actions Answer(uint32_t rank, const PmiRequest& request, Pmi2Fields fields = {}) {
  return {PmiServer::Reply{rank, Respond(request, "0", std::move(fields))}};
}

PmiServer::Actions RefuseIt(uint32_t rank, const PmiRequest& request, absl::string_view why) {
  return {PmiServer::Reply{rank, Respond(request, kRefused, {{"errmsg", std::string(why)}})}};
}

// Null: it is not there.
PmiServer::Actions AnswerValue(uint32_t rank, const PmiRequest& request, const std::string* value) {
  if (value == nullptr) return Answer(rank, request, {{"found", "FALSE"}});
  return Answer(rank, request, {{"found", "TRUE"}, {"value", *value}});
}

// Null when it cannot be one.
const std::string* KeyOf(const PmiRequest& request) {
  const std::string* key = request.Find("key");
  return key == nullptr || key->empty() || key->size() > kPmiKeyMax ? nullptr : key;
}

bool Is(const std::string* value, absl::string_view word) {
  return value != nullptr && absl::EqualsIgnoreCase(*value, word);
}

}  // namespace

PmiServer::Actions PmiServer::OnFrame(uint32_t rank, Client& client, absl::string_view frame) {
  struct Command {
    absl::string_view name;
    Actions (PmiServer::*carry_out)(uint32_t rank, Client& client, const PmiRequest& request);
  };
  static constexpr Command kCommands[] = {
      {"fullinit", &PmiServer::Fullinit},
      {"job-getid", &PmiServer::JobGetid},
      {"kvs-put", &PmiServer::KvsPut},
      {"kvs-get", &PmiServer::KvsGet},
      {"kvs-fence", &PmiServer::KvsFence},
      {"info-getjobattr", &PmiServer::GetJobAttribute},
      {"info-putnodeattr", &PmiServer::PutNodeAttribute},
      {"info-getnodeattr", &PmiServer::GetNodeAttribute},
      {"name-publish", &PmiServer::NoNameService},
      {"name-unpublish", &PmiServer::NoNameService},
      {"name-lookup", &PmiServer::NoNameService},
      {"spawn", &PmiServer::NotSupported},
      {"job-connect", &PmiServer::NotSupported},
      {"job-disconnect", &PmiServer::NotSupported},
      {"ring", &PmiServer::NotSupported},  // Slurm's own: PMIX_Ring
      {"abort", &PmiServer::AbortAll},
      {"finalize", &PmiServer::Finalize},
  };
  auto request = ParsePmi2Frame(frame);
  if (!request.ok()) return {Refuse(client, rank, std::string(request.status().message()))};
  const std::string name = Escape(request->command, 80);
  const std::string* thread = request->Find("thrid");
  if (thread != nullptr && thread->size() > kThreadNameMax) {
    return {Refuse(client, rank, absl::StrCat("too long a thrid with ", name))};
  }
  const auto* command = std::find_if(std::begin(kCommands), std::end(kCommands),
                                     [&](const Command& c) { return c.name == request->command; });
  if (command == std::end(kCommands)) {
    return {Refuse(client, rank, absl::StrCat("an unknown command, ", name))};
  }
  if (!client.fully_joined && command->name != "fullinit" && command->name != "abort") {
    return {Refuse(client, rank, absl::StrCat(name, " before fullinit"))};
  }
  return (this->*command->carry_out)(rank, client, *request);
}

// The rank is that of the connection, whatever the client has read in its environment.
PmiServer::Actions PmiServer::Fullinit(uint32_t rank, Client& client, const PmiRequest& request) {
  client.fully_joined = true;
  return Answer(rank, request,
                {{"pmi-version", "2"},
                 {"pmi-subversion", "0"},
                 {"rank", absl::StrCat(rank)},
                 {"size", absl::StrCat(world_size_)},
                 {"appnum", absl::StrCat(client.program)},
                 {"debugged", "FALSE"},
                 {"pmiverbose", "FALSE"}});
}

PmiServer::Actions PmiServer::JobGetid(uint32_t rank, Client&, const PmiRequest& request) {
  return Answer(rank, request, {{"jobid", kvs_name_}});
}

PmiServer::Actions PmiServer::KvsPut(uint32_t rank, Client&, const PmiRequest& request) {
  const std::string* key = request.Find("key");
  const std::string* value = request.Find("value");
  if (key == nullptr) return RefuseIt(rank, request, "bad_key");
  if (value == nullptr) return RefuseIt(rank, request, "no_value");
  const char* refused = store_.Put(*key, *value);
  return refused != nullptr ? RefuseIt(rank, request, refused) : Answer(rank, request);
}

// srcid, the rank that may have put it, is a hint that we do not need.
PmiServer::Actions PmiServer::KvsGet(uint32_t rank, Client&, const PmiRequest& request) {
  const std::string* job = request.Find("jobid");
  if (job != nullptr && !job->empty() && *job != kvs_name_) {
    return RefuseIt(rank, request, "unknown_jobid");
  }
  const std::string* key = KeyOf(request);
  if (key == nullptr) return RefuseIt(rank, request, "bad_key");
  return AnswerValue(rank, request, Find(*key));
}

PmiServer::Actions PmiServer::KvsFence(uint32_t rank, Client& client, const PmiRequest& request) {
  if (!client.at_release.empty()) return RefuseIt(rank, request, "in_the_fence_already");
  return EnterFence(rank, client, Respond(request, "0", {}));
}

PmiServer::Actions PmiServer::GetJobAttribute(uint32_t rank, Client&, const PmiRequest& request) {
  const std::string* key = request.Find("key");
  if (key == nullptr) return RefuseIt(rank, request, "bad_key");
  std::string value;
  if (*key == "PMI_process_mapping") value = process_mapping_;
  if (*key == "universeSize") value = absl::StrCat(universe_size_);
  if (*key == "hasNameServ") value = "FALSE";
  return AnswerValue(rank, request, value.empty() ? nullptr : &value);
}

PmiServer::Actions PmiServer::PutNodeAttribute(uint32_t rank, Client&, const PmiRequest& request) {
  const std::string* key = KeyOf(request);
  const std::string* value = request.Find("value");
  if (key == nullptr) return RefuseIt(rank, request, "bad_key");
  if (value == nullptr) return RefuseIt(rank, request, "no_value");
  if (value->size() > kPmiValueMax) return RefuseIt(rank, request, "value_too_long");
  const auto old = node_attributes_.find(*key);
  const size_t freed = old == node_attributes_.end() ? 0 : key->size() + old->second.size();
  const size_t bytes = node_attribute_bytes_ - freed + key->size() + value->size();
  if (bytes > kNodeAttributesMax) return RefuseIt(rank, request, "no_room");
  node_attribute_bytes_ = bytes;
  node_attributes_[*key] = *value;
  Actions actions = Answer(rank, request);
  for (auto& [waiting_rank, other] : clients_) {
    auto& waiting = other.waiting;
    const auto first =
        std::stable_partition(waiting.begin(), waiting.end(),
                              [&](const PmiRequest& r) { return *r.Find("key") != *key; });
    for (auto it = first; it != waiting.end(); ++it) {
      actions.push_back(std::move(AnswerValue(waiting_rank, *it, value).front()));
    }
    waiting.erase(first, waiting.end());
  }
  return actions;
}

PmiServer::Actions PmiServer::GetNodeAttribute(uint32_t rank, Client& client,
                                               const PmiRequest& request) {
  const std::string* key = KeyOf(request);
  if (key == nullptr) return RefuseIt(rank, request, "bad_key");
  const auto it = node_attributes_.find(*key);
  if (it != node_attributes_.end()) return AnswerValue(rank, request, &it->second);
  if (!Is(request.Find("wait"), "TRUE")) return AnswerValue(rank, request, nullptr);
  if (client.waiting.size() == kMostWaiting) return RefuseIt(rank, request, "too_many_wait");
  PmiRequest kept;  // only what the answer needs
  kept.command = request.command;
  kept.arguments.emplace_back("key", *key);
  const std::string* thread = request.Find("thrid");
  if (thread != nullptr) kept.arguments.emplace_back("thrid", *thread);
  client.waiting.push_back(std::move(kept));
  return {};
}

// It would be the job's, not the node's.
PmiServer::Actions PmiServer::NoNameService(uint32_t rank, Client&, const PmiRequest& request) {
  return RefuseIt(rank, request, "no_name_service");
}

PmiServer::Actions PmiServer::NotSupported(uint32_t rank, Client&, const PmiRequest& request) {
  return RefuseIt(rank, request, "not_supported");
}

// There is no answer. Slurm's client leaves the code to the exit that follows, MPICH's names it;
// PMI2_Abort with flag 0 (isworld=FALSE) concerns the caller alone, which exits with 0.
PmiServer::Actions PmiServer::AbortAll(uint32_t rank, Client& client, const PmiRequest& request) {
  client.aborted = true;
  if (Is(request.Find("isworld"), "FALSE")) return {};
  return {Abort{rank, request.FindInt("exitcode")}};
}

PmiServer::Actions PmiServer::Finalize(uint32_t rank, Client& client, const PmiRequest& request) {
  return Leave(rank, client, Respond(request, "0", {}));
}

}  // namespace dtrain::shepherd
