// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi_server.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/text.h"

namespace dtrain::shepherd {
namespace {

// The key by which a client learns that it may greet again after its goodbye.
constexpr absl::string_view kRejoinKey = "dtrain_rejoin";

// What a get can answer within one line.
constexpr size_t kLongestValue = kPmiLineMax - sizeof("cmd=get_result rc=0 msg=success value=");

}  // namespace

PmiServer::PmiServer(const v1::JobPart& part)
    : kvs_name_(PmiWord(absl::StrCat(part.job_id(), "_", part.attempt()), kPmiNameMax - 1)),
      world_size_(part.world_size()),
      universe_size_(part.universe_size()),
      process_mapping_(part.process_mapping()) {
  for (const v1::WorkerSpec& worker : part.workers())
    clients_[worker.rank()].program = worker.program();
}

bool PmiServer::SpeaksFrames(uint32_t rank) const { return clients_.at(rank).frames; }

bool PmiServer::HasJoined(uint32_t rank) const { return clients_.at(rank).joins > 0; }

PmiServer::Actions PmiServer::OnMessage(uint32_t rank, absl::string_view message) {
  auto it = clients_.find(rank);
  DTRAIN_CHECK(it != clients_.end());  // connections are made from the same part
  Client& client = it->second;
  if (client.gone || client.dropped) return {};
  if (client.frames) return OnFrame(rank, client, message);
  if (client.spawning) return OnSpawnLine(rank, client, message);
  auto request = ParsePmiLine(message);
  if (!request.ok()) return {Refuse(client, rank, std::string(request.status().message()))};
  return OnRequest(rank, client, *request);
}

PmiServer::Actions PmiServer::OnRequest(uint32_t rank, Client& client, const PmiRequest& request) {
  auto reply = [&](std::string line) { return Actions{Reply{rank, std::move(line)}}; };
  const std::string& command = request.command;
  if (client.left && command != "init") return {};
  if (request.multi_line) {
    if (command != "spawn") {
      return {Refuse(client, rank, absl::StrCat("an unknown mcmd, ", Escape(command, 80)))};
    }
    client.spawning = true;
    client.last_spawn = true;
    return {};
  }
  if (command == "init") return reply(Init(client, request));
  if (command == "get_maxes") {
    return reply(FormatPmiLine("maxes", {{"kvsname_max", absl::StrCat(kPmiNameMax)},
                                         {"keylen_max", absl::StrCat(kPmiKeyMax)},
                                         {"vallen_max", absl::StrCat(kPmiValueMax)}}));
  }
  if (command == "get_appnum")
    return reply(FormatPmiLine("appnum", {{"appnum", absl::StrCat(client.program)}}));
  if (command == "get_my_kvsname") {
    return reply(FormatPmiLine("my_kvsname", {{"kvsname", kvs_name_}}));
  }
  if (command == "get_universe_size") {
    return reply(FormatPmiLine("universe_size", {{"size", absl::StrCat(universe_size_)}}));
  }
  if (command == "put") return reply(Put(request));
  if (command == "get") return reply(Get(request));
  if (command == "barrier_in") return EnterFence(rank, client, FormatPmiLine("barrier_out", {}));
  if (command == "finalize") return Leave(rank, client, FormatPmiLine("finalize_ack", {}));
  if (command == "abort") {
    client.aborted = true;
    // MPICH 4.0 waits for an answer before it exits, and says so on stderr unless it is this one.
    return {Reply{rank, FormatPmiLine("", {})},
            Abort{rank, request.FindInt("exitcode").value_or(1)}};
  }
  // A name service would be the job's, not the node's.
  for (auto [asked, answer] : {std::pair("publish_name", "publish_result"),
                               std::pair("unpublish_name", "unpublish_result"),
                               std::pair("lookup_name", "lookup_result")}) {
    if (command == asked) {
      return reply(FormatPmiLine(answer, {{"rc", "1"}, {"msg", "no_name_service"}}));
    }
  }
  return {Refuse(client, rank, absl::StrCat("an unknown command, ", Escape(command, 80)))};
}

PmiServer::Action PmiServer::Refuse(Client& client, uint32_t rank, std::string why) {
  client.dropped = true;
  client.waiting.clear();
  return Drop{rank, std::move(why)};
}

// Several blocks make one spawn; its reply comes after the last of them.
PmiServer::Actions PmiServer::OnSpawnLine(uint32_t rank, Client& client, absl::string_view line) {
  std::vector<std::string> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
  if (pair[0] == "totspawns") client.last_spawn = false;
  if (pair[0] == "totspawns" && pair.size() == 2) client.spawn_total = pair[1];
  if (pair[0] == "spawnssofar" && pair.size() == 2)
    client.last_spawn = pair[1] == client.spawn_total;
  if (line != "endcmd") return {};
  client.spawning = false;
  if (!client.last_spawn) return {};
  return {Reply{rank, FormatPmiLine("spawn_result", {{"rc", "1"}, {"errcodes", "1"}})}};
}

// The first exchange is by lines in PMI-2, too.
std::string PmiServer::Init(Client& client, const PmiRequest& request) {
  const auto version = request.FindInt("pmi_version");
  if (version == 2) {
    Join(client, true);
    return FormatPmiLine("response_to_init",
                         {{"pmi_version", "2"}, {"pmi_subversion", "0"}, {"rc", "0"}});
  }
  if (version == 1) Join(client, false);
  return FormatPmiLine(
      "response_to_init",
      {{"pmi_version", "1"}, {"pmi_subversion", "1"}, {"rc", version == 1 ? "0" : "-1"}});
}

void PmiServer::Join(Client& client, bool frames) {
  ++client.joins;
  client.left = false;
  client.frames = frames;
  client.fully_joined = false;
}

PmiServer::Actions PmiServer::Leave(uint32_t rank, Client& client, std::string answer) {
  client.left = true;
  client.frames = false;  // it may greet again, by either version
  client.waiting.clear();
  Actions actions{Reply{rank, std::move(answer)}};
  for (Action& more : MaybeEnter()) actions.push_back(std::move(more));
  return actions;
}

PmiServer::Actions PmiServer::EnterFence(uint32_t rank, Client& client, std::string at_release) {
  // A rank that aborts tidies up in its exit handlers, where it would wait for all the others.
  if (client.aborted) return {Reply{rank, std::move(at_release)}};
  client.at_release = std::move(at_release);
  return MaybeEnter();
}

std::string PmiServer::Put(const PmiRequest& request) {
  auto result = [](absl::string_view rc, absl::string_view message) {
    return FormatPmiLine("put_result", {{"rc", rc}, {"msg", message}});
  };
  const std::string* name = request.Find("kvsname");
  const std::string* key = request.Find("key");
  const std::string* value = request.Find("value");
  if (name == nullptr || *name != kvs_name_) return result("-1", "unknown_kvsname");
  if (key == nullptr) return result("-1", "bad_key");
  if (value == nullptr) return result("-1", "no_value");
  if (value->size() > kLongestValue) return result("-1", "value_too_long");
  const char* refused = store_.Put(*key, *value);
  return refused != nullptr ? result("-1", refused) : result("0", "success");
}

std::string PmiServer::Get(const PmiRequest& request) const {
  const std::string* name = request.Find("kvsname");
  const std::string* key = request.Find("key");
  auto missing = [](const std::string& message) {
    return FormatPmiLine("get_result", {{"rc", "-1"}, {"msg", message}, {"value", "unknown"}});
  };
  if (name == nullptr || *name != kvs_name_) return missing("unknown_kvsname");
  if (key == nullptr || key->size() > kPmiKeyMax) return missing("bad_key");
  auto found = [](absl::string_view value) {
    return FormatPmiLine("get_result", {{"rc", "0"}, {"msg", "success"}, {"value", value}});
  };
  if (*key == kRejoinKey) return found("1");
  const std::string* value = Find(*key);
  if (value == nullptr) return missing(absl::StrCat("key_", *key, "_not_found"));
  if (value->size() > kLongestValue || !FitsPmiLine(*value)) {
    return missing("a_PMI-2_value_that_no_line_can_carry");
  }
  return found(*value);
}

const std::string* PmiServer::Find(const std::string& key) const {
  if (key != "PMI_process_mapping") return store_.Find(key);
  return process_mapping_.empty() ? nullptr : &process_mapping_;
}

PmiServer::Actions PmiServer::OnGone(uint32_t rank) {
  auto it = clients_.find(rank);
  DTRAIN_CHECK(it != clients_.end());
  if (std::exchange(it->second.gone, true)) return {};
  it->second.waiting.clear();
  return MaybeEnter();
}

// One that has left is not waited for, unless others have joined again since: then it is late.
bool PmiServer::IsAwaited(const Client& client) const {
  if (client.gone) return false;
  if (!client.left) return true;
  for (const auto& [rank, other] : clients_) {
    if (!other.gone && other.joins > client.joins) return true;
  }
  return false;
}

PmiServer::Actions PmiServer::MaybeEnter() {
  if (entered_) return {};
  bool any = false;
  for (const auto& [rank, client] : clients_) {
    if (!IsAwaited(client)) continue;
    if (client.at_release.empty()) return {};
    any = true;
  }
  if (!any) return {};
  entered_ = true;
  v1::FenceEnter enter;
  enter.set_sequence(sequence_);
  store_.Take(&enter);
  return {std::move(enter)};
}

PmiServer::Actions PmiServer::OnFenceRelease(const v1::FenceRelease& release) {
  if (!entered_ || release.sequence() != sequence_) return {};
  entered_ = false;
  ++sequence_;
  store_.Add(release);
  Actions actions;
  for (auto& [rank, client] : clients_) {
    std::string message = std::exchange(client.at_release, {});
    if (!message.empty() && !client.gone) actions.push_back(Reply{rank, std::move(message)});
  }
  return actions;
}

}  // namespace dtrain::shepherd
