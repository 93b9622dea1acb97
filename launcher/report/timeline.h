// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "launcher/report/facts.h"
#include "launcher/report/trace_text.h"

namespace dtrain::report {

// Writes one trace of the whole job, as chrome://tracing and Perfetto read it (Chrome's JSON array
// form): the job's phases, each node's way through the launch, each worker's life, and the spans
// that libdtrain tells. All times on the launcher's clock, microseconds since the launch. Goes to
// the file at once, so it costs no memory and a cut one can still be read. Loop thread.
class Timeline {
 public:
  // `begin` and `unix_nanos` are the same moment. The file is made with the first event; with
  // `only_spans` only when a worker has told a span.
  Timeline(std::string path, bool only_spans, TimePoint begin, int64_t unix_nanos);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Node `node` has ended this part of its way; the next one begins.
  void NodeReached(NodeId node, const std::string& host, absl::string_view part, TimePoint now);
  // `ahead_nanos`: the node's clock before ours. `spans`: v1::Spans, serialized.
  void AddSpans(const std::string& host, int64_t ahead_nanos, const std::string& spans);
  // The rest, from the end of the job. Returns what went wrong with the file, once and for all.
  absl::Status Finish(const JobFacts& facts, TimePoint now);

 private:
  struct Span;
  bool Ready();
  void Write(const TraceEvent& event);
  void Write(const nlohmann::ordered_json& event);
  void WriteSpan(const Span& span);
  void Flush();
  void Put(absl::string_view text);
  void NameProcess(int pid, const std::string& name, int sort);
  void NameThread(int pid, int tid, const std::string& name);
  int RankProcess(uint32_t rank, const std::string& host);
  int64_t At(TimePoint time) const;  // ns since the launch
  absl::Status Lack() const;         // what went wrong, or what is not in the file

  const std::string path_;
  const bool only_spans_;
  const TimePoint begin_;
  const int64_t unix_nanos_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  absl::Status status_;
  TraceText text_;                                // of events, not in the file yet
  v1::Spans spans_;                               // of AddSpans: its memory is used again
  std::map<uint32_t, TimePoint> node_at_;         // where its present part began
  std::vector<std::function<void()>> held_back_;  // with only_spans_: until the first span
  std::map<int, bool> named_;
  std::map<uint32_t, uint64_t> dropped_;  // by rank
  std::set<std::string> unreadable_;      // hosts that sent what is no spans
};

}  // namespace dtrain::report
