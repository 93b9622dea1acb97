// SPDX-License-Identifier: Apache-2.0
// Two clients of PyTorch's store, as dtrain serves it, who speak in turns. The first byte says how
// much of the rest is the first client's; the second, how large the pieces are and who begins.
#include <algorithm>
#include <map>
#include <string>

#include "agent/stores/tcp_store.h"
#include "agent/stores/tcp_wire.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::stores::TcpParser;
using dtrain::stores::TcpStore;

struct Client {
  TcpParser parser;
  absl::string_view left;
  bool open = true;
};

// As a connection does it.
void Say(TcpStore& store, std::map<uint64_t, Client>& clients, uint64_t id, size_t size) {
  Client& client = clients.at(id);
  absl::string_view now = client.left.substr(0, size);
  client.left.remove_prefix(now.size());
  while (client.open) {
    const size_t before = now.size();
    auto next = client.parser.Next(now);
    DTRAIN_CHECK(now.size() <= before);
    absl::Status status = next.status();
    if (next.ok() && !*next) {
      DTRAIN_CHECK(now.empty());
      DTRAIN_CHECK(client.parser.buffered() <= dtrain::stores::kMostTcpRequest);
      return;
    }
    if (next.ok()) {
      TcpStore::Outcome outcome = store.Handle(id, **next);
      for (const TcpStore::Reply& reply : outcome.replies) {
        DTRAIN_CHECK(clients.contains(reply.to) && !reply.bytes->empty());
      }
      status = outcome.refused;
    }
    if (status.ok()) continue;
    dtrain::fuzz::ExpectPrintable(status);
    client.open = false;
    store.Leave(id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const absl::string_view all = dtrain::fuzz::Text(data + 2, size - 2);
  const size_t split = std::min<size_t>(data[0], all.size());
  TcpStore store;
  std::map<uint64_t, Client> clients;
  clients[1].left = all.substr(0, split);
  clients[2].left = all.substr(split);
  const size_t piece = data[1] / 2 + 1u;
  bool second = (data[1] & 1) != 0;
  while (!clients[1].left.empty() || !clients[2].left.empty()) {
    Say(store, clients, second ? 2 : 1, piece);
    second = !second;
  }
  for (const uint64_t id : {1, 2}) {
    if (clients[id].open) store.Leave(id);
  }
  DTRAIN_CHECK(store.waiting() == 0);
  return 0;
}
