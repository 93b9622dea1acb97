// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi1_requests.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"

namespace dtrain::shepherd {
namespace {

// The key by which a client learns that it may greet again after its goodbye.
constexpr absl::string_view kRejoinKey = "dtrain_rejoin";

// What a get can answer within one line.
constexpr size_t kLongestValue = kPmiLineMax - sizeof("cmd=get_result rc=0 msg=success value=");

}  // namespace

PmiActions Pmi1Requests::OnLine(uint32_t rank, PmiClient& client, absl::string_view line) {
  if (client.spawning) return OnSpawnLine(rank, client, line);
  auto request = ParsePmiLine(line);
  if (!request.ok()) {
    // MPICH from 4.2 on says why it aborts, in as many lines as there are.
    if (client.aborted) return {};
    return {PmiGroup::Refuse(client, rank, std::string(request.status().message()))};
  }
  return OnRequest(rank, client, *request);
}

PmiActions Pmi1Requests::OnRequest(uint32_t rank, PmiClient& client, const PmiRequest& request) {
  auto reply = [&](std::string line) { return PmiActions{PmiReply{rank, std::move(line)}}; };
  const std::string& command = request.command;
  if (client.left && command != "init") return {};
  if (request.multi_line) {
    if (command != "spawn") {
      return {
          PmiGroup::Refuse(client, rank, absl::StrCat("an unknown mcmd, ", Escape(command, 80)))};
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
    return reply(FormatPmiLine("my_kvsname", {{"kvsname", group_.kvs_name()}}));
  }
  if (command == "get_universe_size") {
    return reply(FormatPmiLine("universe_size", {{"size", absl::StrCat(group_.universe_size())}}));
  }
  if (command == "put") return reply(Put(request));
  if (command == "get") return reply(Get(client, request));
  if (command == "barrier_in")
    return group_.EnterFence(rank, client, FormatPmiLine("barrier_out", {}));
  if (command == "finalize") return group_.Leave(rank, client, FormatPmiLine("finalize_ack", {}));
  if (command == "abort") {
    client.aborted = true;
    // MPICH 4.0 waits for an answer before it exits, and says so on stderr unless it is this one.
    return {PmiReply{rank, FormatPmiLine("", {})},
            PmiAbort{rank, request.FindInt("exitcode").value_or(1)}};
  }
  // A name service would be the job's, not the node's.
  for (auto [asked, answer] : {std::pair("publish_name", "publish_result"),
                               std::pair("unpublish_name", "unpublish_result"),
                               std::pair("lookup_name", "lookup_result")}) {
    if (command == asked) {
      return reply(FormatPmiLine(answer, {{"rc", "1"}, {"msg", "no_name_service"}}));
    }
  }
  return {
      PmiGroup::Refuse(client, rank, absl::StrCat("an unknown command, ", Escape(command, 80)))};
}

// Several blocks make one spawn; its reply comes after the last of them.
PmiActions Pmi1Requests::OnSpawnLine(uint32_t rank, PmiClient& client, absl::string_view line) {
  std::vector<std::string> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
  if (pair[0] == "totspawns") client.last_spawn = false;
  if (pair[0] == "totspawns" && pair.size() == 2) client.spawn_total = pair[1];
  if (pair[0] == "spawnssofar" && pair.size() == 2)
    client.last_spawn = pair[1] == client.spawn_total;
  if (line != "endcmd") return {};
  client.spawning = false;
  if (!client.last_spawn) return {};
  return {PmiReply{rank, FormatPmiLine("spawn_result", {{"rc", "1"}, {"errcodes", "1"}})}};
}

// The first exchange is by lines in PMI-2, too.
std::string Pmi1Requests::Init(PmiClient& client, const PmiRequest& request) {
  const auto version = request.FindInt("pmi_version");
  if (version == 2) {
    PmiGroup::Join(client, true);
    return FormatPmiLine("response_to_init",
                         {{"pmi_version", "2"}, {"pmi_subversion", "0"}, {"rc", "0"}});
  }
  if (version == 1) PmiGroup::Join(client, false);
  return FormatPmiLine(
      "response_to_init",
      {{"pmi_version", "1"}, {"pmi_subversion", "1"}, {"rc", version == 1 ? "0" : "-1"}});
}

std::string Pmi1Requests::Put(const PmiRequest& request) {
  auto result = [](absl::string_view rc, absl::string_view message) {
    return FormatPmiLine("put_result", {{"rc", rc}, {"msg", message}});
  };
  const std::string* name = request.Find("kvsname");
  const std::string* key = request.Find("key");
  const std::string* value = request.Find("value");
  if (name == nullptr || *name != group_.kvs_name()) return result("-1", "unknown_kvsname");
  if (key == nullptr) return result("-1", "bad_key");
  if (value == nullptr) return result("-1", "no_value");
  if (value->size() > kLongestValue) return result("-1", "value_too_long");
  const char* refused = group_.Put(*key, *value);
  return refused != nullptr ? result("-1", refused) : result("0", "success");
}

std::string Pmi1Requests::Get(PmiClient& client, const PmiRequest& request) const {
  const std::string* name = request.Find("kvsname");
  const std::string* key = request.Find("key");
  auto missing = [](const std::string& message) {
    return FormatPmiLine("get_result", {{"rc", "-1"}, {"msg", message}, {"value", "unknown"}});
  };
  if (name == nullptr || *name != group_.kvs_name()) return missing("unknown_kvsname");
  if (key == nullptr || key->size() > kPmiKeyMax) return missing("bad_key");
  auto found = [](absl::string_view value) {
    return FormatPmiLine("get_result", {{"rc", "0"}, {"msg", "success"}, {"value", value}});
  };
  if (*key == kRejoinKey) {
    client.is_dtrain = true;
    return found("1");
  }
  const std::string* value = group_.Find(*key);
  if (value == nullptr) return missing(absl::StrCat("key_", *key, "_not_found"));
  if (value->size() > kLongestValue || !FitsPmiLine(*value)) {
    return missing("a_PMI-2_value_that_no_line_can_carry");
  }
  return found(*value);
}

}  // namespace dtrain::shepherd
