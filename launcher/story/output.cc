// SPDX-License-Identifier: Apache-2.0
#include "launcher/story/output.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/story/story.h"

namespace dtrain::story {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kPiecesPerLook = 16;
constexpr uint64_t kBlock = 64 << 10;
// No job has more ranks: files that say so are not ours.
constexpr uint32_t kMostRanks = 1 << 20;

// Up to `size` bytes at an offset of a stream, from the segment that has it.
std::string BlockAt(const std::string& path, uint64_t offset, uint64_t size) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return "";
  file.seekg(static_cast<std::streamoff>(offset));
  std::string bytes(size, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

uint32_t WholeIn(const Json& json, const char* key) {
  const auto at = json.is_object() ? json.find(key) : json.end();
  if (!json.is_object() || at == json.end() || !at->is_number_unsigned()) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(at->get<uint64_t>(), kMostRanks));
}

void FromJournal(const v1::JournalState& state, output::Layout& layout) {
  layout.hosts.assign(state.attempt().hosts().begin(), state.attempt().hosts().end());
  const uint32_t world = std::max(state.runs().world_size(), state.attempt().world_size());
  layout.ranks.resize(std::min(world, kMostRanks));
  for (const v1::RunningNode& node : state.runs().nodes()) {
    for (const v1::WorkerSpec& worker : node.workers()) {
      if (worker.rank() >= layout.ranks.size()) continue;
      layout.ranks[worker.rank()] = {node.node(), worker.local_rank()};
    }
  }
}

void FromSummary(const std::string& text, output::Layout& layout) {
  const Json summary = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) return;
  layout.ranks.resize(WholeIn(summary, "world_size"));
  if (const auto nodes = summary.find("nodes"); nodes != summary.end() && nodes->is_array()) {
    for (const Json& node : *nodes) {
      const auto host = node.is_object() ? node.find("host") : node.end();
      const bool named = node.is_object() && host != node.end() && host->is_string();
      layout.hosts.push_back(named ? host->get<std::string>() : "?");
    }
  }
  const auto ranks = summary.find("ranks");
  if (ranks == summary.end() || !ranks->is_array()) return;
  std::map<uint32_t, uint32_t> on_node;
  for (const Json& rank : *ranks) {
    const uint32_t number = WholeIn(rank, "rank");
    const uint32_t node = WholeIn(rank, "node");
    if (number < layout.ranks.size()) layout.ranks[number] = {node, on_node[node]++};
  }
}

}  // namespace

uint64_t BeginOfLast(const std::string& folder, const detached::LogStream& stream,
                     const std::vector<detached::LogSegment>& segments, uint64_t lines,
                     uint64_t most_bytes) {
  const uint64_t end = segments.back().end();
  if (lines == 0) return end;
  uint64_t found = 0;
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    const std::string path =
        absl::StrCat(folder, "/", detached::SegmentName(stream, segment->begin));
    for (uint64_t at = segment->size; at > 0;) {
      const uint64_t size = std::min(at, kBlock);
      at -= size;
      const std::string block = BlockAt(path, at, size);
      for (size_t i = block.size(); i > 0; --i) {
        const uint64_t behind = segment->begin + at + i;
        if (block[i - 1] != '\n' || behind == end) continue;
        if (++found == lines) return behind;
      }
      if (end - (segment->begin + at) >= most_bytes) return segment->begin + at;
    }
    const bool is_whole = segment + 1 == segments.rend() || (segment + 1)->end() == segment->begin;
    if (!is_whole) return segment->begin;  // what comes before is gone
  }
  return segments.front().begin;
}

std::vector<uint32_t> AttemptsOf(const detached::JobFolder& job) {
  std::vector<uint32_t> attempts;
  std::error_code error;
  for (fs::directory_iterator it(job.path() + "/logs", error), end; !error && it != end;
       it.increment(error)) {
    uint32_t attempt = 0;
    const std::string name = it->path().filename();
    if (absl::SimpleAtoi(name, &attempt) && absl::StrCat(attempt) == name) {
      attempts.push_back(attempt);
    }
  }
  std::sort(attempts.begin(), attempts.end());
  return attempts;
}

bool HasLayout(const detached::JobFolder& job, uint32_t attempt) {
  if (job.HasSummary()) return true;
  const auto journal = job.ReadJournal();
  if (!journal.ok() || journal->state.attempt().attempt() > attempt) return true;
  const v1::JournalState::Phase phase = journal->state.phase();
  return phase != v1::JournalState::PHASE_ACCEPTED && phase != v1::JournalState::PHASE_BEGUN &&
         journal->state.attempt().attempt() == attempt;
}

output::Layout LayoutOf(const detached::JobFolder& job, uint32_t attempt) {
  output::Layout layout;
  layout.job_id = job.id();
  layout.attempt = attempt;
  const auto journal = job.ReadJournal();
  const std::vector<uint32_t> attempts = AttemptsOf(job);
  if (journal.ok() && journal->state.has_attempt() &&
      journal->state.attempt().attempt() == attempt) {
    FromJournal(journal->state, layout);
  } else if (job.HasSummary() && !attempts.empty() && attempts.back() == attempt) {
    const auto summary = job.ReadSummary();
    if (summary.ok()) FromSummary(*summary, layout);
  }
  const auto streams = detached::ListSegments(job.LogFolder(attempt));
  if (streams.ok() && !streams->empty()) {
    const uint32_t last = std::min(streams->rbegin()->first.rank.value(), kMostRanks - 1);
    if (layout.ranks.size() <= last) layout.ranks.resize(last + 1);
  }
  return layout;
}

absl::Status OutputReader::SkipToLast(uint64_t lines, uint64_t most_bytes) {
  const auto streams = detached::ListSegments(folder_, only_);
  if (!streams.ok()) return streams.status();
  for (const auto& [stream, segments] : *streams) {
    const uint64_t begin = BeginOfLast(folder_, stream, segments, lines, most_bytes);
    readers_.emplace(stream, detached::LogReader(folder_, stream, begin));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> OutputReader::Read(size_t limit, Take take) {
  const auto streams = detached::ListSegments(folder_, only_);
  if (!streams.ok()) return streams.status();
  bool any = false;
  auto at = next_ ? streams->lower_bound(*next_) : streams->begin();
  for (size_t i = 0; i < streams->size(); ++i, ++at) {
    if (at == streams->end()) at = streams->begin();
    const auto& [stream, segments] = *at;
    auto& reader = readers_.try_emplace(stream, detached::LogReader(folder_, stream)).first->second;
    // More than a piece at once: to look at all files costs more than to read one.
    const uint64_t end = segments.back().end();
    for (size_t pieces = 0; pieces < kPiecesPerLook && reader.offset() < end; ++pieces) {
      auto bytes = reader.Next(limit);
      if (!bytes.ok()) return bytes.status();
      if (bytes->empty()) break;
      any = true;
      if (take(stream, *std::move(bytes))) continue;
      const auto following = std::next(at);
      next_ = following == streams->end() ? streams->begin()->first : following->first;
      return true;
    }
  }
  return any;
}

}  // namespace dtrain::story
