// SPDX-License-Identifier: Apache-2.0
// A packet of an agent's, and behind its first byte, how many descriptors came with it.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "spawner/policy.h"
#include "spawner/protocol.h"
#include "tests/fuzz/expect.h"

using dtrain::spawner::Request;
using dtrain::spawner::Type;

namespace {

void ExpectPlain(const std::string& text) {
  DTRAIN_CHECK(std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }));
}

template <size_t N>
void ExpectPathPart(const char (&text)[N]) {
  const std::string_view name(text, strnlen(text, N));
  DTRAIN_CHECK(!name.empty() && name.size() < N && name.find('/') == name.npos && name[0] != '.');
  ExpectPlain(std::string(name));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t fds = data[0] % 4;
  const std::string_view packet(reinterpret_cast<const char*>(data) + 1, size - 1);
  Request request;
  const std::string wrong = dtrain::spawner::Parse(packet, fds, &request);
  ExpectPlain(wrong);
  if (packet.size() >= sizeof(request.header)) {
    DTRAIN_CHECK(std::memcmp(&request.header, packet.data(), sizeof(request.header)) == 0);
  }
  if (wrong.empty()) {
    DTRAIN_CHECK(fds <= 1);
    if (request.header.type == Type::kSpawn) {
      ExpectPathPart(request.spawn.job);
      if (fds == 0) ExpectPathPart(request.spawn.account);
    }
    if (request.header.type == Type::kKill) ExpectPathPart(request.kill.name.job);
  }
  ExpectPlain(dtrain::spawner::Escape(packet));
  // And as a configuration.
  dtrain::spawner::Policy policy;
  const std::string mistake = dtrain::spawner::ParsePolicy(packet, &policy);
  ExpectPlain(mistake);
  if (mistake.empty()) DTRAIN_CHECK(policy.min_uid > 0);
  return 0;
}
