// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "launcher/journal/records.h"
#include "launcher/journal/replay.h"

namespace dtrain::journal {

using v1::JournalRecord;
using v1::JournalState;

inline bool Same(const JournalState& a, const JournalState& b) {
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

// Records by their few words.
inline JournalRecord AcceptedRecord() {
  JournalRecord record;
  record.mutable_accepted()->mutable_by()->set_host("login");
  return record;
}
inline JournalRecord Generation(uint64_t generation) {
  JournalRecord record;
  record.mutable_generation_taken()->set_generation(generation);
  return record;
}
inline JournalRecord Begins(uint32_t attempt, uint64_t generation,
                            const std::vector<std::string>& hosts = {"a", "b"},
                            uint32_t world_size = 4) {
  JournalRecord record;
  v1::AttemptBegins& begins = *record.mutable_attempt_begins();
  begins.set_attempt(attempt);
  begins.set_generation(generation);
  begins.set_world_size(world_size);
  for (const std::string& host : hosts) begins.add_hosts(host);
  return record;
}
inline JournalRecord Runs(uint32_t attempt) {
  JournalRecord record;
  record.mutable_attempt_runs()->set_attempt(attempt);
  return record;
}
inline JournalRecord Fact(uint32_t attempt, uint32_t node) {
  JournalRecord record;
  v1::NodeFact& fact = *record.mutable_node_fact();
  fact.set_attempt(attempt);
  fact.set_node(node);
  return record;
}
inline JournalRecord Exit(uint32_t attempt, uint32_t node, uint32_t rank, int code = 0) {
  JournalRecord record = Fact(attempt, node);
  v1::WorkerExit& exit = *record.mutable_node_fact()->mutable_exit();
  exit.set_rank(rank);
  exit.set_pid(100 + rank);
  exit.set_exit_code(code);
  return record;
}
inline JournalRecord Finished(uint32_t attempt, uint32_t node) {
  JournalRecord record = Fact(attempt, node);
  record.mutable_node_fact()->mutable_finished();
  return record;
}
inline JournalRecord Failure(uint32_t attempt, uint32_t node, const std::string& why) {
  JournalRecord record = Fact(attempt, node);
  record.mutable_node_fact()->mutable_failure()->set_message(why);
  return record;
}
inline JournalRecord Lost(uint32_t attempt, uint32_t node) {
  JournalRecord record = Fact(attempt, node);
  record.mutable_node_fact()->mutable_lost()->set_why("silent");
  return record;
}
inline JournalRecord Stop(const std::string& by = "alice") {
  JournalRecord record;
  record.mutable_stop_asked()->set_by(by);
  return record;
}
inline JournalRecord Limit() {
  JournalRecord record;
  record.mutable_time_limit()->set_unix_nanos(1);
  return record;
}
inline JournalRecord Restart(uint32_t attempt, const std::vector<std::string>& left_out = {},
                             bool again = false) {
  JournalRecord record;
  record.mutable_restart_decided()->set_again(again);
  record.mutable_restart_decided()->set_attempt(attempt);
  record.mutable_restart_decided()->set_cause("rank 3 exited with 7");
  for (const std::string& host : left_out) record.mutable_restart_decided()->add_left_out(host);
  return record;
}
inline JournalRecord ScalesUp(uint32_t attempt) {
  JournalRecord record;
  record.mutable_scale_up()->set_attempt(attempt);
  record.mutable_scale_up()->set_why("restarting with 2 nodes: b is back");
  record.mutable_scale_up()->add_hosts("b");
  return record;
}
inline JournalRecord Safe(uint32_t attempt, uint32_t rank, uint64_t offset,
                          bool is_stderr = false) {
  JournalRecord record;
  record.mutable_logs_safe()->set_attempt(attempt);
  v1::LogPosition& at = *record.mutable_logs_safe()->mutable_positions()->add_streams();
  at.set_rank(rank);
  at.set_stream(is_stderr ? v1::STREAM_KIND_STDERR : v1::STREAM_KIND_STDOUT);
  at.set_offset(offset);
  return record;
}
inline JournalRecord Lacks(const std::string& file, uint64_t bytes, const std::string& why) {
  JournalRecord record;
  record.mutable_output_lost()->set_why(why);
  v1::FileLoss& loss = *record.mutable_output_lost()->add_files();
  loss.set_name(file);
  loss.set_bytes(bytes);
  return record;
}
inline JournalRecord Verdict(int code = 0) {
  JournalRecord record;
  record.mutable_verdict()->set_exit_code(code);
  return record;
}
inline JournalRecord HookBegins() {
  JournalRecord record;
  record.mutable_hook_begins();
  return record;
}
inline JournalRecord HookEnds(int code = 0) {
  JournalRecord record;
  record.mutable_hook_ends()->set_exit_code(code);
  return record;
}
inline JournalRecord Ended() {
  JournalRecord record;
  record.mutable_ended();
  return record;
}

// A job with a crash, a restart, another launcher and an end.
inline std::vector<JournalRecord> Story() {
  return {AcceptedRecord(),
          Generation(1),
          Begins(0, 1),
          Runs(0),
          Safe(0, 0, 100),
          Safe(0, 3, 7, true),
          Lacks("b", 7, "full"),
          Exit(0, 1, 3, 7),
          Restart(0, {"c"}),
          Finished(0, 0),
          Generation(2),
          Lost(0, 1),
          Begins(1, 2, {"a"}, 2),
          Failure(1, 0, "no such program"),
          Restart(1, {"c"}, true),
          Begins(1, 2, {"a"}, 2),
          Runs(1),
          Safe(1, 0, 5),
          Exit(1, 0, 0),
          Stop(),
          Exit(1, 0, 1, 143),
          Verdict(130),
          Finished(1, 0),
          HookBegins(),
          Generation(3),
          HookBegins(),
          HookEnds(1),
          Ended()};
}

inline void ExpectApplies(const JournalRecord& record, JournalState& state) {
  const absl::Status applied = Apply(record, state);
  ASSERT_TRUE(applied.ok()) << applied << "\n" << record.DebugString();
}

inline JournalState StateAfter(const std::vector<JournalRecord>& records) {
  JournalState state;
  for (const JournalRecord& record : records) ExpectApplies(record, state);
  return state;
}

// A journal with these, each synced by itself, or all at once.
inline std::string Written(const std::vector<JournalRecord>& records, bool each_synced = true) {
  std::string bytes;
  EXPECT_TRUE(AppendRecord(Header("job-1", "1.0"), true, &bytes).ok());
  bool first = true;
  for (const JournalRecord& record : records) {
    EXPECT_TRUE(AppendRecord(record, each_synced || first, &bytes).ok());
    first = false;
  }
  return bytes;
}

}  // namespace dtrain::journal
