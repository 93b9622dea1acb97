// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi2_requests.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/text.h"

namespace dtrain::shepherd {
namespace {

bool IsKeyChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
}

// The specification pads on the left, as MPICH does; Slurm's client pads on the right.
std::optional<size_t> BodySize(absl::string_view header) {
  while (!header.empty() && header.front() == ' ') header.remove_prefix(1);
  while (!header.empty() && header.back() == ' ') header.remove_suffix(1);
  size_t size = 0;
  if (!std::all_of(header.begin(), header.end(),
                   [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }) ||
      !absl::SimpleAtoi(header, &size) || size == 0 || size > kPmi2BodyMax) {
    return std::nullopt;
  }
  return size;
}

// Takes a value and its ';' off the front of `body`. False if there is no value.
bool TakeValue(absl::string_view* body, std::string* value) {
  while (true) {
    const size_t end = body->find(';');
    if (end == absl::string_view::npos) return false;
    const bool doubled = end + 1 < body->size() && (*body)[end + 1] == ';';
    value->append(body->data(), doubled ? end + 1 : end);
    body->remove_prefix(doubled ? end + 2 : end + 1);
    if (!doubled) return true;
  }
}

}  // namespace

size_t Pmi2FrameSize(absl::string_view bytes) {
  if (bytes.size() < kPmi2HeaderSize) return 0;
  const auto body = BodySize(bytes.substr(0, kPmi2HeaderSize));
  if (!body) return kPmi2HeaderSize;
  return bytes.size() < kPmi2HeaderSize + *body ? 0 : kPmi2HeaderSize + *body;
}

absl::StatusOr<PmiRequest> ParsePmi2Frame(absl::string_view frame) {
  auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(why, ": \"", Escape(frame, 80), "\""));
  };
  const auto size = BodySize(frame.substr(0, kPmi2HeaderSize));
  if (!size) return bad("a frame whose length is not a number from 1 to 65536");
  absl::string_view body = frame.substr(std::min(frame.size(), kPmi2HeaderSize));
  if (body.size() != *size) return bad("a frame of another length than it says");
  PmiRequest request;
  while (!body.empty()) {
    const size_t length =
        static_cast<size_t>(std::find_if_not(body.begin(), body.end(), IsKeyChar) - body.begin());
    if (length == 0 || length > kPmiKeyMax) return bad("a frame with a bad key");
    std::string key(body.substr(0, length));
    std::string value;
    body.remove_prefix(length);
    // The reason comes last, and MPICH doubles no ';' in it.
    if (request.command == "abort" && (key == "message" || key == "msg")) break;
    if (!body.empty() && body.front() == '=') {
      body.remove_prefix(1);
    } else if (body.empty() || body.front() != ';') {
      return bad("a frame with a bad key");
    }
    if (!TakeValue(&body, &value)) return bad("a frame that does not end with ';'");
    if (!request.command.empty()) {
      request.arguments.emplace_back(std::move(key), std::move(value));
    } else if (key == "cmd" && !value.empty()) {
      request.command = std::move(value);
    } else {
      return bad("a frame with no command at the front");
    }
  }
  return request;
}

std::string FormatPmi2Frame(absl::string_view command, const Pmi2Fields& fields) {
  std::string body = absl::StrCat("cmd=", command, ";");
  for (const auto& [key, value] : fields) {
    absl::StrAppend(&body, key, "=", absl::StrReplaceAll(value, {{";", ";;"}}), ";");
  }
  return absl::StrFormat("%*d%s", int{kPmi2HeaderSize}, body.size(), body);
}

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

PmiActions Answer(uint32_t rank, const PmiRequest& request, Pmi2Fields fields = {}) {
  return {PmiReply{rank, Respond(request, "0", std::move(fields))}};
}

PmiActions RefuseIt(uint32_t rank, const PmiRequest& request, absl::string_view why) {
  return {PmiReply{rank, Respond(request, kRefused, {{"errmsg", std::string(why)}})}};
}

// Null: it is not there.
PmiActions AnswerValue(uint32_t rank, const PmiRequest& request, const std::string* value) {
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

PmiActions Pmi2Requests::OnFrame(uint32_t rank, PmiClient& client, absl::string_view frame) {
  struct Command {
    absl::string_view name;
    PmiActions (Pmi2Requests::*carry_out)(uint32_t rank, PmiClient& client,
                                          const PmiRequest& request);
  };
  static constexpr Command kCommands[] = {
      {"fullinit", &Pmi2Requests::Fullinit},
      {"job-getid", &Pmi2Requests::JobGetid},
      {"kvs-put", &Pmi2Requests::KvsPut},
      {"kvs-get", &Pmi2Requests::KvsGet},
      {"kvs-fence", &Pmi2Requests::KvsFence},
      {"info-getjobattr", &Pmi2Requests::GetJobAttribute},
      {"info-putnodeattr", &Pmi2Requests::PutNodeAttribute},
      {"info-getnodeattr", &Pmi2Requests::GetNodeAttribute},
      {"name-publish", &Pmi2Requests::NoNameService},
      {"name-unpublish", &Pmi2Requests::NoNameService},
      {"name-lookup", &Pmi2Requests::NoNameService},
      {"spawn", &Pmi2Requests::NotSupported},
      {"job-connect", &Pmi2Requests::NotSupported},
      {"job-disconnect", &Pmi2Requests::NotSupported},
      {"ring", &Pmi2Requests::NotSupported},  // Slurm's own: PMIX_Ring
      {"abort", &Pmi2Requests::AbortAll},
      {"finalize", &Pmi2Requests::Finalize},
  };
  auto request = ParsePmi2Frame(frame);
  if (!request.ok())
    return {PmiGroup::Refuse(client, rank, std::string(request.status().message()))};
  const std::string name = Escape(request->command, 80);
  const std::string* thread = request->Find("thrid");
  if (thread != nullptr && thread->size() > kThreadNameMax) {
    return {PmiGroup::Refuse(client, rank, absl::StrCat("too long a thrid with ", name))};
  }
  const auto* command = std::find_if(std::begin(kCommands), std::end(kCommands),
                                     [&](const Command& c) { return c.name == request->command; });
  if (command == std::end(kCommands)) {
    return {PmiGroup::Refuse(client, rank, absl::StrCat("an unknown command, ", name))};
  }
  if (!client.fully_joined && command->name != "fullinit" && command->name != "abort") {
    return {PmiGroup::Refuse(client, rank, absl::StrCat(name, " before fullinit"))};
  }
  return (this->*command->carry_out)(rank, client, *request);
}

// The rank is that of the connection, whatever the client has read in its environment.
PmiActions Pmi2Requests::Fullinit(uint32_t rank, PmiClient& client, const PmiRequest& request) {
  client.fully_joined = true;
  return Answer(rank, request,
                {{"pmi-version", "2"},
                 {"pmi-subversion", "0"},
                 {"rank", absl::StrCat(rank)},
                 {"size", absl::StrCat(group_.world_size())},
                 {"appnum", absl::StrCat(client.program)},
                 {"debugged", "FALSE"},
                 {"pmiverbose", "FALSE"}});
}

PmiActions Pmi2Requests::JobGetid(uint32_t rank, PmiClient&, const PmiRequest& request) {
  return Answer(rank, request, {{"jobid", group_.kvs_name()}});
}

PmiActions Pmi2Requests::KvsPut(uint32_t rank, PmiClient&, const PmiRequest& request) {
  const std::string* key = request.Find("key");
  const std::string* value = request.Find("value");
  if (key == nullptr) return RefuseIt(rank, request, "bad_key");
  if (value == nullptr) return RefuseIt(rank, request, "no_value");
  const char* refused = group_.Put(*key, *value);
  return refused != nullptr ? RefuseIt(rank, request, refused) : Answer(rank, request);
}

// srcid, the rank that may have put it, is a hint that we do not need.
PmiActions Pmi2Requests::KvsGet(uint32_t rank, PmiClient&, const PmiRequest& request) {
  const std::string* job = request.Find("jobid");
  if (job != nullptr && !job->empty() && *job != group_.kvs_name()) {
    return RefuseIt(rank, request, "unknown_jobid");
  }
  const std::string* key = KeyOf(request);
  if (key == nullptr) return RefuseIt(rank, request, "bad_key");
  return AnswerValue(rank, request, group_.Find(*key));
}

PmiActions Pmi2Requests::KvsFence(uint32_t rank, PmiClient& client, const PmiRequest& request) {
  if (!client.at_release.empty()) return RefuseIt(rank, request, "in_the_fence_already");
  return group_.EnterFence(rank, client, Respond(request, "0", {}));
}

PmiActions Pmi2Requests::GetJobAttribute(uint32_t rank, PmiClient&, const PmiRequest& request) {
  const std::string* key = request.Find("key");
  if (key == nullptr) return RefuseIt(rank, request, "bad_key");
  std::string value;
  if (*key == "PMI_process_mapping") value = group_.process_mapping();
  if (*key == "universeSize") value = absl::StrCat(group_.universe_size());
  if (*key == "hasNameServ") value = "FALSE";
  return AnswerValue(rank, request, value.empty() ? nullptr : &value);
}

PmiActions Pmi2Requests::PutNodeAttribute(uint32_t rank, PmiClient&, const PmiRequest& request) {
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
  PmiActions actions = Answer(rank, request);
  for (auto& [waiting_rank, other] : group_.clients()) {
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

PmiActions Pmi2Requests::GetNodeAttribute(uint32_t rank, PmiClient& client,
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
PmiActions Pmi2Requests::NoNameService(uint32_t rank, PmiClient&, const PmiRequest& request) {
  return RefuseIt(rank, request, "no_name_service");
}

PmiActions Pmi2Requests::NotSupported(uint32_t rank, PmiClient&, const PmiRequest& request) {
  return RefuseIt(rank, request, "not_supported");
}

// There is no answer. Slurm's client leaves the code to the exit that follows, MPICH's names it;
// PMI2_Abort with flag 0 (isworld=FALSE) concerns the caller alone, which exits with 0.
PmiActions Pmi2Requests::AbortAll(uint32_t rank, PmiClient& client, const PmiRequest& request) {
  client.aborted = true;
  if (Is(request.Find("isworld"), "FALSE")) return {};
  return {PmiAbort{rank, request.FindInt("exitcode")}};
}

PmiActions Pmi2Requests::Finalize(uint32_t rank, PmiClient& client, const PmiRequest& request) {
  return group_.Leave(rank, client, Respond(request, "0", {}));
}

}  // namespace dtrain::shepherd
