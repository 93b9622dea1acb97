// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/collective_name.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/unique_fd.h"
#include "launcher/job/outcome.h"
#include "launcher/report/failure_report.h"

namespace dtrain::report {
namespace {

using Json = nlohmann::ordered_json;

// Viewers show processes and threads; ours are the job, the nodes and the workers.
constexpr int kJobProcess = 1;
constexpr int kFirstNode = 1000;
constexpr int kFirstRank = 1'000'000;
constexpr int kLifeThread = 0;  // of a worker; its lanes come behind it

constexpr int64_t kLastUnix = 4'000'000'000'000'000'000;  // ns; in the year 2096
constexpr int64_t kLongest = 1'000'000'000'000'000'000;   // ns; 31 years

constexpr uint32_t kMarkKind = 16;  // TimelineKind of common/page
constexpr uint32_t kFusionKind = 17;

std::string SpanName(const v1::Span& span) {
  if (span.kind() == kMarkKind) return span.name();
  std::string kind = span.kind() == kFusionKind ? "fusion" : CollectiveName(span.kind());
  return span.name().empty() ? kind : absl::StrCat(kind, " ", span.name());
}

// As JSON; nearly all names need no more than quotes.
void AppendText(absl::string_view text, std::string& out) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  });
  if (plain) {
    absl::StrAppend(&out, "\"", text, "\"");
  } else {
    out += Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

// In microseconds, exactly.
void AppendMicros(int64_t nanos, std::string& out) {
  const uint64_t size = nanos < 0 ? -static_cast<uint64_t>(nanos) : static_cast<uint64_t>(nanos);
  absl::StrAppend(&out, nanos < 0 ? "-" : "", size / 1000, ".",
                  absl::Dec(size % 1000, absl::kZeroPad3));
}

int64_t Nanos(Duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

// A complete event ("X") of Chrome's format.
struct Timeline::Event {
  absl::string_view name;
  int64_t begin;     // ns since the launch
  int64_t duration;  // ns
  int pid;
  int tid;
  absl::string_view args = "";  // a JSON object, or nothing
};

Timeline::Timeline(std::string path, bool only_spans, TimePoint begin, int64_t unix_nanos)
    : path_(std::move(path)),
      only_spans_(only_spans),
      begin_(begin),
      unix_nanos_(unix_nanos),
      file_(nullptr, &std::fclose) {}

Timeline::~Timeline() = default;

int64_t Timeline::At(TimePoint time) const { return Nanos(time - begin_); }

// Opens the file when it is needed first.
bool Timeline::Ready() {
  if (!status_.ok()) return false;
  if (file_ != nullptr) return true;
  os::UniqueFd fd(
      open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666));
  if (fd) file_.reset(fdopen(fd.get(), "w"));
  if (file_ == nullptr) {
    status_ = PosixError(errno, absl::StrCat("write the timeline ", Escape(path_)));
    return false;
  }
  (void)fd.Release();
  std::fputc('[', file_.get());
  NameProcess(kJobProcess, "dtrain launch", 0);
  return status_.ok();
}

// There may be a hundred thousand a second, on cores that the workers need: a JSON document for
// each would take ten times as long.
void Timeline::Write(const Event& event) {
  line_ = first_ ? "\n" : ",\n";
  line_ += R"({"name":)";
  AppendText(event.name, line_);
  line_ += R"(,"ph":"X","ts":)";
  AppendMicros(event.begin, line_);
  line_ += R"(,"dur":)";
  AppendMicros(event.duration, line_);
  absl::StrAppend(&line_, R"(,"pid":)", event.pid, R"(,"tid":)", event.tid);
  if (!event.args.empty()) absl::StrAppend(&line_, R"(,"args":)", event.args);
  line_ += '}';
  first_ = false;
  if (std::fwrite(line_.data(), 1, line_.size(), file_.get()) == line_.size() || !status_.ok()) {
    return;
  }
  status_ = PosixError(errno, absl::StrCat("write the timeline ", Escape(path_)));
}

void Timeline::NameProcess(int pid, const std::string& name, int sort) {
  for (const Json& json : {Json{{"name", "process_name"},
                                {"ph", "M"},
                                {"pid", pid},
                                {"tid", 0},
                                {"args", {{"name", name}}}},
                           Json{{"name", "process_sort_index"},
                                {"ph", "M"},
                                {"pid", pid},
                                {"tid", 0},
                                {"args", {{"sort_index", sort}}}}}) {
    const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    std::fprintf(file_.get(), "%s%s", first_ ? "\n" : ",\n", text.c_str());
    first_ = false;
  }
}

void Timeline::NameThread(int pid, int tid, const std::string& name) {
  const Json json = {
      {"name", "thread_name"}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
  std::fprintf(file_.get(), ",\n%s", json.dump().c_str());
}

int Timeline::RankProcess(uint32_t rank, const std::string& host) {
  const int pid = kFirstRank + static_cast<int>(rank);
  if (!std::exchange(named_[pid], true)) {
    NameProcess(pid, absl::StrCat("rank ", rank, " (", host, ")"), pid);
    NameThread(pid, kLifeThread, "process");
    NameThread(pid, kLifeThread + 1, "program");
    NameThread(pid, kLifeThread + 2, "engine");
  }
  return pid;
}

void Timeline::NodeReached(NodeId node, const std::string& host, absl::string_view part,
                           TimePoint now) {
  const auto [it, fresh] = node_at_.emplace(node.value(), begin_);
  const TimePoint since = std::exchange(it->second, now);
  auto write = [this, node, host, name = std::string(part), since, now] {
    if (!Ready()) return;
    const int pid = kFirstNode + static_cast<int>(node.value());
    if (!std::exchange(named_[pid], true)) NameProcess(pid, absl::StrCat("node ", host), pid);
    Write({name, At(since), Nanos(now - since), pid, 0});
  };
  if (only_spans_ && file_ == nullptr) {
    held_back_.push_back(std::move(write));
  } else {
    write();
  }
}

void Timeline::AddSpans(const std::string& host, int64_t ahead_nanos, const v1::Spans& spans) {
  dropped_[spans.rank()] = spans.dropped();
  if (spans.spans_size() == 0 || !Ready()) return;
  for (const auto& write : std::exchange(held_back_, {})) write();
  const int pid = RankProcess(spans.rank(), host);
  for (const v1::Span& span : spans.spans()) {
    const int tid = kLifeThread + 1 + static_cast<int>(std::min(span.lane(), 1u));
    // The numbers are the worker's: any there may be.
    const int64_t begin =
        std::clamp<int64_t>(span.begin_unix_nanos(), 0, kLastUnix) - ahead_nanos - unix_nanos_;
    const int64_t duration = std::clamp<int64_t>(span.duration_nanos(), 0, kLongest);
    std::string args;
    if (span.kind() != kMarkKind) {
      args = absl::StrCat(R"({"number":)", span.number(), R"(,"bytes":)", span.bytes(), "}");
    }
    Write({SpanName(span), begin, duration, pid, tid, args});
    // The parts lie inside it, one behind the other.
    int64_t at = begin;
    for (const auto& [name, nanos] :
         {std::pair("negotiate", span.negotiate_nanos()), std::pair("wait", span.wait_nanos()),
          std::pair("transfer", span.transfer_nanos()), std::pair("reduce", span.reduce_nanos())}) {
      const int64_t length = std::min(nanos, begin + duration - at);
      if (length <= 0) continue;
      Write({name, at, length, pid, tid});
      at += length;
    }
  }
}

absl::Status Timeline::Finish(const JobFacts& facts, TimePoint now) {
  if (only_spans_ && file_ == nullptr) return status_;
  if (!Ready()) return status_;
  for (const job::PhaseTime& phase : facts.phases) {
    if (phase.state == job::State::kFinished) continue;
    const TimePoint end = phase.end == kNever ? now : phase.end;
    Write({PhaseName(phase.state), At(phase.begin), Nanos(end - phase.begin), kJobProcess, 0});
  }
  for (const job::RankEnd& rank : facts.ranks) {
    if (!rank.ended) continue;
    const int pid = RankProcess(rank.rank.value(), HostOf(facts, rank.node));
    const int64_t end =
        rank.exit.unix_nanos() - facts.nodes[rank.node.value()].clock_ahead_nanos - unix_nanos_;
    const int64_t length = rank.exit.monotonic_nanos();
    Json args = {{"pid", rank.exit.pid()}, {"end", DescribeEnd(rank.exit)}};
    const auto dropped = dropped_.find(rank.rank.value());
    if (dropped != dropped_.end() && dropped->second > 0) args["dropped_spans"] = dropped->second;
    Write({"worker", end - length, length, pid, kLifeThread,
           args.dump(-1, ' ', false, Json::error_handler_t::replace)});
  }
  std::fputs("\n]\n", file_.get());
  if (std::fclose(file_.release()) != 0 && status_.ok()) {
    status_ = PosixError(errno, absl::StrCat("write the timeline ", Escape(path_)));
  }
  uint64_t lost = 0;
  for (const auto& [rank, count] : dropped_) lost += count;
  if (status_.ok() && lost > 0) {
    return absl::DataLossError(absl::StrCat(
        "the timeline ", Escape(path_), " lacks ", lost,
        " spans that the workers made faster than they could be taken (see dropped_spans)"));
  }
  return status_;
}

}  // namespace dtrain::report
