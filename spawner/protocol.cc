// SPDX-License-Identifier: Apache-2.0
#include "spawner/protocol.h"

#include <algorithm>
#include <cstring>

namespace dtrain::spawner {
namespace {

static_assert(sizeof(Jobs) <= kLongestPacket);

bool IsAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// Whether there is a zero, and nothing else behind it.
template <size_t N>
bool IsPadded(const char (&text)[N]) {
  const char* end = std::find(text, text + N, '\0');
  return end != text + N && std::all_of(end, text + N, [](char c) { return c == '\0'; });
}

std::string CheckSpawn(const SpawnRequest& spawn, size_t fds) {
  if (!IsPadded(spawn.job) || !IsPlainJob(spawn.job)) return "the job's name is not plain";
  if (spawn.lease_ms > kLongestTime || spawn.grace_ms > kLongestTime)
    return "lease or grace is too long";
  if (spawn.memory != 0 || spawn.none != 0) return "limits are not supported";
  if (!IsPadded(spawn.account)) return "the account's name is not padded";
  if (spawn.proof == Proof::kConnection) {
    if (spawn.account[0] != '\0') return "a connection comes without an account";
    return fds == 1 ? "" : "a connection is one descriptor";
  }
  if (spawn.proof != Proof::kAccount) return "unknown proof";
  if (!IsPlainAccount(spawn.account)) return "the account's name is not plain";
  return fds == 0 ? "" : "an account comes without descriptors";
}

}  // namespace

std::string Parse(std::string_view packet, size_t fds, Request* request) {
  *request = Request();
  const auto take = [&](auto* out) {
    if (packet.size() != sizeof(*out)) return false;
    std::memcpy(out, packet.data(), sizeof(*out));
    return true;
  };
  Header& header = request->header;
  if (packet.size() < sizeof(Header)) return "shorter than a header";
  std::memcpy(&header, packet.data(), sizeof(Header));
  if (header.version != kVersion) return "unknown version";
  switch (header.type) {
    case Type::kSpawn:
      return take(&request->spawn) ? CheckSpawn(request->spawn, fds) : "wrong size";
    case Type::kKill: {
      if (!take(&request->kill)) return "wrong size";
      const Name& name = request->kill.name;
      if (!IsPadded(name.job) || !IsPlainJob(name.job)) return "the job's name is not plain";
      break;
    }
    case Type::kAlive:
    case Type::kList:
      if (packet.size() != sizeof(Header)) return "wrong size";
      break;
    default:
      return "unknown type";
  }
  return fds == 0 ? "" : "descriptors that nobody asked for";
}

bool IsPlainJob(std::string_view job) {
  return !job.empty() && job.size() <= 64 && std::all_of(job.begin(), job.end(), [](char c) {
    return IsAlnum(c) || c == '-' || c == '_';
  });
}

bool IsPlainAccount(std::string_view account) {
  const auto plain = [](char c) { return IsAlnum(c) || (c != '\0' && std::strchr("._-@+", c)); };
  return !account.empty() && account.size() < 64 && account[0] != '.' && account[0] != '-' &&
         std::all_of(account.begin(), account.end(), plain);
}

bool Put(std::string_view text, char* to, size_t size) {
  const bool fits = text.size() < size;
  std::memset(to, 0, size);
  std::memcpy(to, text.data(), fits ? text.size() : size - 1);
  return fits;
}

std::string Escape(std::string_view text, size_t most) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    if (out.size() + 4 > most) return out + "...";
    if (c >= ' ' && c <= '~' && c != '\\') {
      out += c;
    } else {
      out += {'\\', 'x', kDigits[(c >> 4) & 15], kDigits[c & 15]};
    }
  }
  return out;
}

}  // namespace dtrain::spawner
