// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/collective_name.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/output_file.h"
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
constexpr uint32_t kLastRank = 1'000'000'000;
constexpr int kLifeThread = 0;  // of a worker; its lanes come behind it

constexpr int64_t kLastUnix = 4'000'000'000'000'000'000;  // ns; in the year 2096
constexpr int64_t kLongest = 1'000'000'000'000'000'000;   // ns; 31 years

// As in common/page.
constexpr uint32_t kMarkKind = 16;
constexpr uint32_t kFusionKind = 17;

constexpr uint32_t kLongestName = 40;

constexpr size_t kMuchText = 256 << 10;  // is written before more is made

// A rank there may be, in each column a value for each span, and the names are there.
bool IsSound(const v1::Spans& spans) {
  const int n = spans.kind_size();
  uint64_t name_bytes = 0;
  for (const uint32_t bytes : spans.name_bytes()) {
    if (bytes > kLongestName) return false;
    name_bytes += bytes;
  }
  return spans.rank() <= kLastRank && spans.lane_size() == n && spans.number_step_size() == n &&
         spans.bytes_size() == n && spans.begin_step_size() == n &&
         spans.duration_nanos_size() == n && spans.negotiate_nanos_size() == n &&
         spans.wait_nanos_size() == n && spans.transfer_nanos_size() == n &&
         spans.reduce_nanos_size() == n && spans.name_bytes_size() == n &&
         name_bytes == spans.names().size();
}

int64_t Nanos(Duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

// Its numbers are the worker's: any there may be, but for times, which lie within centuries.
struct Timeline::Span {
  absl::string_view name;
  uint32_t kind;
  absl::string_view track;
  TraceEvent::Transfer transfer;
  int64_t begin;     // ns since the launch
  int64_t duration;  // ns
  std::array<int64_t, 4> parts;
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
  const std::string what = absl::StrCat("write the timeline ", Escape(path_));
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  os::UniqueFd fd;
  if (const auto named = os::DescriptorOf(path_)) {
    fd.Reset(fcntl(*named, F_DUPFD_CLOEXEC, 3));
  } else {
    const absl::StatusOr<os::FilePlace> place = os::PlaceOfFile(path_, what);
    status_ = place.status();
    if (!status_.ok()) return false;
    fd.Reset(openat(place->folder.get(), place->name.c_str(), kFlags | O_NOFOLLOW, 0666));
    if (fd) status_ = os::CheckMaker(place->folder.get(), fd.get(), what);
    if (!status_.ok()) return false;
  }
  if (fd) file_.reset(fdopen(fd.get(), "w"));
  if (file_ == nullptr) {
    status_ = PosixError(errno, what);
    return false;
  }
  (void)fd.Release();
  std::setvbuf(file_.get(), nullptr, _IONBF, 0);  // what is there to be written goes in one piece
  Put("[");
  NameProcess(kJobProcess, "dtrain launch", 0);
  return status_.ok();
}

void Timeline::Write(const TraceEvent& event) {
  text_.Append(event);
  if (text_.text().size() >= kMuchText) Flush();
}

void Timeline::Write(const Json& event) {
  text_.Append(event.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Should the launcher be killed, what it was told is in the file.
void Timeline::Flush() {
  Put(text_.text());
  text_.Clear();
}

void Timeline::Put(absl::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() || !status_.ok()) return;
  status_ = PosixError(errno, absl::StrCat("write the timeline ", Escape(path_)));
}

void Timeline::NameProcess(int pid, const std::string& name, int sort) {
  Write(Json{
      {"name", "process_name"}, {"ph", "M"}, {"pid", pid}, {"tid", 0}, {"args", {{"name", name}}}});
  Write(Json{{"name", "process_sort_index"},
             {"ph", "M"},
             {"pid", pid},
             {"tid", 0},
             {"args", {{"sort_index", sort}}}});
}

void Timeline::NameThread(int pid, int tid, const std::string& name) {
  Write(Json{{"name", "thread_name"},
             {"ph", "M"},
             {"pid", pid},
             {"tid", tid},
             {"args", {{"name", name}}}});
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
    Write(TraceEvent{QuotedName(name), At(since), Nanos(now - since), TrackText(pid, 0)});
    Flush();
  };
  if (only_spans_ && file_ == nullptr) {
    held_back_.push_back(std::move(write));
  } else {
    write();
  }
}

void Timeline::AddSpans(const std::string& host, int64_t ahead_nanos, const std::string& spans) {
  if (!spans_.ParseFromString(spans) || !IsSound(spans_)) {
    unreadable_.insert(host);
    return;
  }
  dropped_[spans_.rank()] = spans_.dropped();
  if (spans_.kind_size() == 0 || !Ready()) return;
  for (const auto& write : std::exchange(held_back_, {})) write();
  const int pid = RankProcess(spans_.rank(), host);
  const std::string tracks[] = {TrackText(pid, kLifeThread + 1), TrackText(pid, kLifeThread + 2)};
  const uint32_t* kind = spans_.kind().data();
  const uint32_t* lane = spans_.lane().data();
  const int64_t* number_step = spans_.number_step().data();
  const uint64_t* bytes = spans_.bytes().data();
  const int64_t* begin_step = spans_.begin_step().data();
  const int64_t* duration = spans_.duration_nanos().data();
  const int64_t* negotiate = spans_.negotiate_nanos().data();
  const int64_t* wait = spans_.wait_nanos().data();
  const int64_t* transfer = spans_.transfer_nanos().data();
  const int64_t* reduce = spans_.reduce_nanos().data();
  const uint32_t* name_bytes = spans_.name_bytes().data();
  absl::string_view names = spans_.names();
  uint64_t number = 0;
  uint64_t begin = 0;
  for (int i = 0; i < spans_.kind_size(); ++i) {
    number += static_cast<uint64_t>(number_step[i]);
    begin += static_cast<uint64_t>(begin_step[i]);
    Span span;
    span.name = names.substr(0, name_bytes[i]);
    names.remove_prefix(name_bytes[i]);
    span.kind = kind[i];
    span.track = tracks[std::min(lane[i], 1u)];
    span.transfer = {number, bytes[i]};
    span.begin =
        std::clamp<int64_t>(static_cast<int64_t>(begin), 0, kLastUnix) - ahead_nanos - unix_nanos_;
    span.duration = std::clamp<int64_t>(duration[i], 0, kLongest);
    span.parts = {negotiate[i], wait[i], transfer[i], reduce[i]};
    WriteSpan(span);
  }
  Flush();
}

void Timeline::WriteSpan(const Span& span) {
  std::string name;
  if (span.kind == kMarkKind) {
    name = QuotedName(span.name);
  } else {
    name = span.kind == kFusionKind ? "fusion" : CollectiveName(span.kind);
    if (!span.name.empty()) absl::StrAppend(&name, " ", span.name);
    name = QuotedName(name);
  }
  TraceEvent event{name, span.begin, span.duration, span.track};
  if (span.kind != kMarkKind) event.transfer = span.transfer;
  Write(event);
  // The parts lie inside it, one behind the other.
  constexpr absl::string_view kParts[] = {R"("negotiate")", R"("wait")", R"("transfer")",
                                          R"("reduce")"};
  int64_t at = span.begin;
  for (size_t i = 0; i < std::size(kParts); ++i) {
    const int64_t length = std::min(span.parts[i], span.begin + span.duration - at);
    if (length <= 0) continue;
    Write(TraceEvent{kParts[i], at, length, span.track});
    at += length;
  }
}

absl::Status Timeline::Finish(const JobFacts& facts, TimePoint now) {
  if (only_spans_ && file_ == nullptr) return Lack();
  if (!Ready()) return status_;
  for (const job::PhaseTime& phase : facts.phases) {
    if (phase.state == job::State::kFinished) continue;
    const TimePoint end = phase.end == kNever ? now : phase.end;
    Write(TraceEvent{QuotedName(PhaseName(phase.state)), At(phase.begin), Nanos(end - phase.begin),
                     TrackText(kJobProcess, 0)});
  }
  for (const job::RankEnd& rank : facts.ranks) {
    if (!rank.ended) continue;
    const int pid = RankProcess(rank.rank.value(), HostOf(facts, rank.node));
    const int64_t end = rank.ended_unix_nanos - unix_nanos_;
    const int64_t length = rank.exit.monotonic_nanos();
    Json args = {{"pid", rank.exit.pid()}, {"end", DescribeEnd(rank.exit)}};
    const auto dropped = dropped_.find(rank.rank.value());
    if (dropped != dropped_.end() && dropped->second > 0) args["dropped_spans"] = dropped->second;
    const std::string text = args.dump(-1, ' ', false, Json::error_handler_t::replace);
    Write(TraceEvent{R"("worker")", end - length, length, TrackText(pid, kLifeThread), std::nullopt,
                     text});
  }
  Flush();
  Put("\n]\n");
  if (std::fclose(file_.release()) != 0 && status_.ok()) {
    status_ = PosixError(errno, absl::StrCat("write the timeline ", Escape(path_)));
  }
  return Lack();
}

absl::Status Timeline::Lack() const {
  if (!status_.ok()) return status_;
  if (!unreadable_.empty()) {
    return absl::DataLossError(absl::StrCat("the timeline ", Escape(path_), " lacks spans of ",
                                            absl::StrJoin(unreadable_, ", "),
                                            ": their data cannot be read"));
  }
  uint64_t lost = 0;
  for (const auto& [rank, count] : dropped_) lost += count;
  if (lost == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the timeline ", Escape(path_), " is missing ", lost,
                   " spans, which the workers produced faster than dtrain could collect them (see "
                   "dropped_spans)"));
}

}  // namespace dtrain::report
