// SPDX-License-Identifier: Apache-2.0
// Lines of two workers to the PMI server of their node, the only one of the job. A line that starts
// with '1' comes from rank 1, one with '!' says that rank 0 has ended. To a rank that has greeted
// by PMI-2 it is the body of a frame, or with '#' the frame itself.
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/shepherd/pmi2_requests.h"
#include "agent/shepherd/pmi_line.h"
#include "agent/shepherd/pmi_service.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::shepherd::PmiServer;

void ExpectMessage(absl::string_view line) {
  if (line == "cmd=\n") return;  // the answer to an abort, as MPICH wants it
  if (line.front() == ' ') {
    DTRAIN_CHECK(dtrain::shepherd::Pmi2FrameSize(line) == line.size());
    auto response = dtrain::shepherd::ParsePmi2Frame(line);
    DTRAIN_CHECK(response.ok() && response->FindInt("rc").has_value());
    return;
  }
  DTRAIN_CHECK(line.size() <= dtrain::shepherd::kPmiLineMax);
  DTRAIN_CHECK(!line.empty() && line.find('\n') == line.size() - 1);
  DTRAIN_CHECK(dtrain::shepherd::ParsePmiLine(line.substr(0, line.size() - 1)).ok());
}

void Carry(PmiServer& server, const PmiServer::Actions& actions) {
  for (const PmiServer::Action& action : actions) {
    if (const auto* reply = std::get_if<PmiServer::Reply>(&action)) ExpectMessage(reply->message);
    const auto* enter = std::get_if<dtrain::v1::FenceEnter>(&action);
    if (enter == nullptr) continue;
    // As it travels: what a worker has put must survive the wire.
    dtrain::v1::FenceRelease release;
    DTRAIN_CHECK(release.ParseFromString(enter->SerializeAsString()));
    for (const auto& more : server.OnFenceRelease(release)) {
      ExpectMessage(std::get<PmiServer::Reply>(more).message);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dtrain::v1::JobPart part;
  part.set_job_id("j");
  part.set_universe_size(2);
  part.set_process_mapping("(vector,(0,1,2))");
  part.add_workers()->set_rank(0);
  part.add_workers()->set_rank(1);
  PmiServer server(part);
  for (absl::string_view line : absl::StrSplit(dtrain::fuzz::Text(data, size), '\n')) {
    if (line == "!") {
      Carry(server, server.OnGone(0));
      continue;
    }
    uint32_t rank = absl::ConsumePrefix(&line, "1") ? 1 : 0;
    if (!server.SpeaksFrames(rank)) {
      auto request = dtrain::shepherd::ParsePmiLine(line);
      if (request.ok()) DTRAIN_CHECK(!request->command.empty());
      Carry(server, server.OnMessage(rank, line));
      continue;
    }
    const bool whole = absl::ConsumePrefix(&line, "#");
    const std::string frame =
        whole ? std::string(line) : absl::StrFormat("%6d%s", line.size(), line);
    auto request = dtrain::shepherd::ParsePmi2Frame(frame);
    // What the connection takes for a frame and what the parser does are the same.
    DTRAIN_CHECK(!request.ok() || dtrain::shepherd::Pmi2FrameSize(frame) == frame.size());
    if (request.ok()) DTRAIN_CHECK(!request->command.empty());
    Carry(server, server.OnMessage(rank, frame));
  }
  return 0;
}
