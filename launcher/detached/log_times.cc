// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/log_times.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "common/os/fd.h"

namespace dtrain::detached {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kEnd = std::numeric_limits<uint64_t>::max();
constexpr size_t kTimeRecord = 20;  // offset, time, and rank with stream; little-endian
// With each so many bytes of records, they are made half as often.
constexpr uint64_t kTimesLevel = 512 << 10;
constexpr uint64_t kMostLevels = 16;
constexpr int64_t kFirstGap = 100'000'000;
constexpr size_t kMostTimes = (kMostLevels + 1) * kTimesLevel;

void PutNumber(uint64_t number, size_t bytes, std::string* out) {
  for (size_t i = 0; i < bytes; ++i) out->push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

uint64_t TakeNumber(absl::string_view from, size_t bytes) {
  uint64_t number = 0;
  for (size_t i = bytes; i-- > 0;) number = number << 8 | static_cast<unsigned char>(from[i]);
  return number;
}

}  // namespace

std::string TimesFile(const std::string& log_folder) { return log_folder + ".times"; }

uint64_t TimesBytes(const std::string& log_folder) {
  std::error_code error;
  const uint64_t size = fs::file_size(TimesFile(log_folder), error);
  return error ? 0 : size;
}

void AddTimes(const std::string& log_folder, absl::string_view records) {
  if (records.empty()) return;
  // Of one that a full disk or a crash has cut.
  const uint64_t rest = TimesBytes(log_folder) % kTimeRecord;
  std::error_code error;
  if (rest != 0) fs::resize_file(TimesFile(log_folder), TimesBytes(log_folder) - rest, error);
  std::ofstream file(TimesFile(log_folder), std::ios::binary | std::ios::app);
  file.write(records.data(), static_cast<std::streamsize>(records.size()));
}

std::string TimesWriter::Note(const LogStream& stream, uint64_t offset, int64_t unix_nanos) {
  const uint64_t level = bytes_ / kTimesLevel;
  if (level >= kMostLevels) return "";
  const auto last = noted_.find(stream);
  const auto of_rank = last_of_.find(stream.rank.value());
  const bool changed = of_rank == last_of_.end() || of_rank->second != stream;
  const bool is_due = last == noted_.end() || unix_nanos - last->second >= kFirstGap << level ||
                      unix_nanos < last->second;
  if (!is_due && (!changed || level > 0)) return "";
  noted_[stream] = unix_nanos;
  last_of_.insert_or_assign(stream.rank.value(), stream);
  std::string record;
  PutNumber(offset, 8, &record);
  PutNumber(static_cast<uint64_t>(unix_nanos), 8, &record);
  PutNumber(uint64_t{stream.rank.value()} << 1 | (stream.is_stderr ? 1 : 0), 4, &record);
  bytes_ += record.size();
  return record;
}

LogTimes LogTimes::Parse(absl::string_view records) {
  LogTimes times;
  for (uint64_t place = 0; records.size() >= kTimeRecord;
       ++place, records.remove_prefix(kTimeRecord)) {
    const uint64_t id = TakeNumber(records.substr(16), 4);
    const Mark mark{TakeNumber(records, 8), static_cast<int64_t>(TakeNumber(records.substr(8), 8)),
                    place};
    std::vector<Mark>& marks = times.marks_[{Rank(static_cast<uint32_t>(id >> 1)), (id & 1) != 0}];
    // What a new launcher was sent again had come before.
    if (marks.empty() || marks.back().offset < mark.offset) marks.push_back(mark);
  }
  return times;
}

LogTimes LogTimes::Read(const std::string& log_folder) {
  const auto bytes = os::ReadSmallFile(TimesFile(log_folder), kMostTimes);
  return Parse(bytes.ok() ? *bytes : absl::string_view());
}

LogTimes::Run LogTimes::RunAt(const LogStream& stream, const std::vector<Mark>& marks,
                              size_t i) const {
  return {stream, marks[i].offset, i + 1 < marks.size() ? marks[i + 1].offset : kEnd,
          marks[i].unix_nanos};
}

std::vector<LogTimes::Run> LogTimes::RunsOf(Rank rank) const {
  std::vector<std::pair<uint64_t, Run>> placed;
  for (const bool is_stderr : {false, true}) {
    const LogStream stream{rank, is_stderr};
    const auto at = marks_.find(stream);
    const std::vector<Mark> none;
    const std::vector<Mark>& marks = at == marks_.end() ? none : at->second;
    // What came before the first record.
    const uint64_t first = marks.empty() ? kEnd : marks[0].offset;
    if (first > 0) placed.push_back({0, {stream, 0, first, 0}});
    for (size_t i = 0; i < marks.size(); ++i) {
      placed.push_back({marks[i].place + 1, RunAt(stream, marks, i)});
    }
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Run> runs;
  runs.reserve(placed.size());
  for (auto& [place, run] : placed) runs.push_back(run);
  return runs;
}

LogTimes::Run LogTimes::At(const LogStream& stream, uint64_t offset) const {
  const auto at = marks_.find(stream);
  if (at == marks_.end()) return {stream, 0, kEnd, 0};
  const std::vector<Mark>& marks = at->second;
  const auto behind =
      std::upper_bound(marks.begin(), marks.end(), offset,
                       [](uint64_t value, const Mark& mark) { return value < mark.offset; });
  if (behind == marks.begin()) return {stream, 0, marks[0].offset, 0};
  return RunAt(stream, marks, static_cast<size_t>(behind - marks.begin()) - 1);
}

uint64_t LogTimes::FirstSince(const LogStream& stream, int64_t unix_nanos) const {
  const auto at = marks_.find(stream);
  if (at == marks_.end()) return kEnd;
  for (const Mark& mark : at->second) {
    if (mark.unix_nanos >= unix_nanos) return mark.offset;
  }
  return kEnd;
}

}  // namespace dtrain::detached
