// SPDX-License-Identifier: Apache-2.0
// Answers of agents to those who only ask (NodeReport, LogPiece, StopJobReply), as `dtrain nodes`,
// `ps`, `status` and `logs` show them.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/view/node_metrics.h"
#include "common/view/node_view.h"
#include "launcher/status/agent_jobs.h"
#include "launcher/status/log_reading.h"
#include "launcher/status/tables.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/messages.h"

namespace {

using namespace dtrain::status;  // NOLINT: everything here is about it
using Json = nlohmann::ordered_json;
using dtrain::fuzz::Script;

// What nodes say must not reach a terminal as it is.
void ExpectForTerminal(const std::string& text) {
  for (char c : text) DTRAIN_CHECK(c == '\n' || (static_cast<unsigned char>(c) >= ' ' && c != 127));
}

void ExpectWritable(const Json& json) {
  DTRAIN_CHECK(!json.dump(2, ' ', false, Json::error_handler_t::replace).empty());
}

class Commands {
 public:
  explicit Commands(bool follow) : follow_(follow), reading_({}, follow) {}

  void Do(const Script::Step& step) {
    const auto size = static_cast<int>(step.message.size());
    if ((step.what & 3) == 0) {
      dtrain::v1::LogPiece piece;
      if (piece.ParseFromArray(step.message.data(), size)) Read(std::move(piece));
    } else if ((step.what & 3) == 1) {
      dtrain::v1::StopJobReply reply;
      if (reply.ParseFromArray(step.message.data(), size)) ExpectWritable(reply.was_running());
    } else {
      const size_t node = step.what >> 2 & 3;
      Told told{node, "node" + std::to_string(node), {}};
      if (told.report.ParseFromArray(step.message.data(), size)) told_.push_back(std::move(told));
    }
  }

  void Show() const {
    Json nodes = Json::array();
    for (const Told& told : told_) {
      nodes.push_back(dtrain::view::NodeView(told.report, told.host));
      DTRAIN_CHECK(!dtrain::view::NodeMetrics(told.report, told.host, true).empty());
    }
    ExpectWritable(nodes);
    ExpectForTerminal(NodesPage(nodes));
    Json list = Json::array();
    for (const AgentJob& job : JobsOf(told_)) {
      DTRAIN_CHECK(!job.parts.empty());
      list.push_back(AgentJobView(job));
      const Json page = AgentJobPage(job);
      ExpectWritable(page);
      ExpectForTerminal(JobPage(page));
    }
    ExpectWritable(list);
    ExpectForTerminal(NodeJobsTable(list));
  }

 private:
  void Read(dtrain::v1::LogPiece piece) {
    const uint64_t asked = reading_.request().offset();
    const uint64_t size = piece.size();
    const std::string data = piece.data();
    const auto step = reading_.OnPiece(std::move(piece));
    if (!step.ok()) return dtrain::fuzz::ExpectPrintable(step.status());
    // No byte twice, and no question that brings nothing for ever.
    const uint64_t next = reading_.request().offset();
    DTRAIN_CHECK(next >= asked + data.size());
    DTRAIN_CHECK(step->then != LogReading::Then::kAsk || (next > asked && next < size));
    if (step->then == LogReading::Then::kEnd) reading_ = LogReading({}, follow_);
  }

  bool follow_;
  LogReading reading_;
  std::vector<Told> told_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Commands commands((data[0] & 1) != 0);
  Script script(dtrain::fuzz::Text(data + 1, size - 1));
  Script::Step step;
  while (script.Next(step)) commands.Do(step);
  commands.Show();
  return 0;
}
