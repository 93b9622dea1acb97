// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/spawner_wire.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace dtrain::spawn {
namespace {

using spawner::Type;

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("dtrain-spawner sent ", what));
}

template <typename Packet>
std::string BytesOf(const Packet& packet) {
  return std::string(reinterpret_cast<const char*>(&packet), sizeof(packet));
}

template <typename Packet>
bool Read(absl::string_view bytes, Packet* packet) {
  if (bytes.size() != sizeof(*packet)) return false;
  std::memcpy(static_cast<void*>(packet), bytes.data(), bytes.size());
  return true;
}

// Text that ends within its place.
template <size_t N>
std::optional<std::string> TextOf(const char (&text)[N]) {
  const size_t length = strnlen(text, N);
  if (length == N) return std::nullopt;
  return std::string(text, length);
}

std::optional<JobKey> KeyOf(const spawner::Name& name) {
  auto job = TextOf(name.job);
  if (!job || !spawner::IsPlainJob(*job)) return std::nullopt;
  return JobKey{name.uid, *std::move(job), name.attempt};
}

template <size_t N>
bool PathOf(const char (&text)[N], std::string* path) {
  auto found = TextOf(text);
  if (!found || found->empty() || found->front() != '/') return false;
  *path = *std::move(found);
  return true;
}

absl::StatusOr<SpawnerWord> DecodeRefused(absl::string_view bytes) {
  spawner::Refused packet;
  if (!Read(bytes, &packet)) return Wrong("a refusal of a wrong size");
  const auto words = TextOf(packet.words);
  if (!words) return Wrong("a refusal without an end");
  return SpawnerRefused{packet.stage, Escape(*words, sizeof(packet.words))};
}

absl::StatusOr<SpawnerWord> DecodeStarted(absl::string_view bytes) {
  spawner::Spawned packet;
  if (!Read(bytes, &packet)) return Wrong("a start of a wrong size");
  SpawnerStarted out;
  auto key = KeyOf(packet.name);
  auto account = TextOf(packet.account);
  if (!key || !account || !PathOf(packet.link, &out.link) || !PathOf(packet.cgroup, &out.cgroup)) {
    return Wrong("a start without a job, an account or a path");
  }
  out.key = *std::move(key);
  out.account = Escape(*account, sizeof(packet.account));
  return out;
}

absl::StatusOr<SpawnerWord> DecodeJobs(absl::string_view bytes) {
  constexpr size_t kHead = offsetof(spawner::Jobs, entries);
  spawner::Jobs packet;
  if (bytes.size() < kHead || bytes.size() > sizeof(packet)) return Wrong("jobs of a wrong size");
  std::memcpy(static_cast<void*>(&packet), bytes.data(), bytes.size());
  if (packet.count > spawner::kMostEntries || packet.more > 1 ||
      bytes.size() != kHead + packet.count * sizeof(spawner::JobEntry)) {
    return Wrong("another number of jobs than it says");
  }
  SpawnerJobs out;
  out.more = packet.more == 1;
  for (uint32_t i = 0; i < packet.count; ++i) {
    const spawner::JobEntry& entry = packet.entries[i];
    SpawnerJob job;
    auto key = KeyOf(entry.name);
    if (!key || entry.state < spawner::State::kAsking || entry.state > spawner::State::kKilling ||
        !PathOf(entry.link, &job.link) || !PathOf(entry.cgroup, &job.cgroup)) {
      return Wrong("a job without a name, a state or a path");
    }
    job.key = *std::move(key);
    job.state = entry.state;
    job.lease_ms = std::min(entry.lease_ms, spawner::kLongestTime);
    job.grace_ms = std::min(entry.grace_ms, spawner::kLongestTime);
    out.jobs.push_back(std::move(job));
  }
  return out;
}

absl::StatusOr<SpawnerWord> DecodeEnded(absl::string_view bytes) {
  spawner::Ended packet;
  if (!Read(bytes, &packet)) return Wrong("an end of a wrong size");
  auto key = KeyOf(packet.name);
  if (!key) return Wrong("the end of a job without a name");
  return SpawnerEnded{*std::move(key), packet.exit_code, packet.signal};
}

absl::StatusOr<SpawnerWord> DecodeUnkillable(absl::string_view bytes) {
  spawner::Unkillable packet;
  if (!Read(bytes, &packet)) return Wrong("a report of a wrong size");
  auto key = KeyOf(packet.name);
  if (!key || packet.count > spawner::kMostPids) return Wrong("processes of a job without a name");
  SpawnerUnkillable out{*std::move(key), {}};
  for (uint32_t i = 0; i < packet.count; ++i) {
    if (packet.pids[i] != 0) out.pids.push_back(static_cast<pid_t>(packet.pids[i]));
  }
  return out;
}

absl::StatusOr<SpawnerWord> DecodeWord(Type type, absl::string_view bytes) {
  switch (type) {
    case Type::kRefused:
      return DecodeRefused(bytes);
    case Type::kSpawned:
      return DecodeStarted(bytes);
    case Type::kDone:
      if (bytes.size() != sizeof(spawner::Header)) return Wrong("an answer of a wrong size");
      return SpawnerDone{};
    case Type::kJobs:
      return DecodeJobs(bytes);
    case Type::kEnded:
      return DecodeEnded(bytes);
    case Type::kUnkillable:
      return DecodeUnkillable(bytes);
    default:
      return Wrong(absl::StrCat("a packet of the unknown type ", static_cast<int>(type)));
  }
}

}  // namespace

absl::StatusOr<std::string> EncodeSpawn(uint32_t tag, const SpawnAsk& ask) {
  spawner::SpawnRequest packet;
  packet.header.tag = tag;
  packet.attempt = ask.attempt;
  packet.lease_ms = std::min(ask.lease_ms, spawner::kLongestTime);
  packet.grace_ms = std::min(ask.grace_ms, spawner::kLongestTime);
  packet.proof = ask.account.empty() ? spawner::Proof::kConnection : spawner::Proof::kAccount;
  if (!spawner::IsPlainJob(ask.job_id) || !spawner::Put(ask.job_id, packet.job)) {
    return absl::InvalidArgumentError(
        "a job id has 1 to 64 characters: letters, digits, '-' and '_'");
  }
  if (!ask.account.empty() &&
      (!spawner::IsPlainAccount(ask.account) || !spawner::Put(ask.account, packet.account))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name of the account ", Escape(ask.account, 64),
                     " is not one that dtrain-spawner takes: letters, digits and . _ - @ +, 63 at "
                     "most; launch over ssh, or with another account"));
  }
  return BytesOf(packet);
}

std::string EncodeKill(uint32_t tag, const JobKey& key) {
  spawner::KillRequest packet;
  packet.header.tag = tag;
  spawner::Put(key.job_id, packet.name.job);
  packet.name.uid = key.uid;
  packet.name.attempt = key.attempt;
  return BytesOf(packet);
}

std::string EncodePlain(Type type, uint32_t tag) {
  return BytesOf(spawner::Header{spawner::kVersion, type, tag});
}

absl::StatusOr<SpawnerPacket> DecodeSpawnerPacket(absl::string_view bytes, size_t fds) {
  spawner::Header header;
  if (bytes.size() < sizeof(header)) return Wrong("less than a header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version != spawner::kVersion) {
    return Wrong(absl::StrCat("version ", header.version, " of its protocol, not ",
                              spawner::kVersion, ": install both from the same release"));
  }
  if (fds != (header.type == Type::kSpawned ? 2 : 0)) return Wrong("a wrong number of descriptors");
  if (header.type >= Type::kEnded && header.tag != 0) return Wrong("an event that answers");
  auto word = DecodeWord(header.type, bytes);
  if (!word.ok()) return word.status();
  return SpawnerPacket{header.tag, *std::move(word)};
}

}  // namespace dtrain::spawn
