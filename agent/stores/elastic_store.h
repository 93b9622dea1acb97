// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/stores/horovod_store.h"
#include "agent/stores/worker_address.h"
#include "dtrain/v1/elastic.pb.h"

namespace dtrain::stores {

// The door of a host of an elastic Horovod job: what its ranks ask of horovodrun's server, answered
// out of what the launcher has said. Pure.
//
// A round is a set of ranks that have found each other, from one change of hosts to the next. The
// door is shut until the launcher opens the first one, once all its ranks are waiting at their
// doors: Horovod itself gives ranks 30 s to find the others, which a slow import can take. From
// then on only those wait that want their place in the next round, and those that remove a value.
//
// All doors have the same values, except those that only the ranks of one host ask for.
//
// Source: horovod/runner/http/http_server.py, horovod/runner/elastic/rendezvous.py, and their
// client in horovod/common/gloo/{gloo_context,http_store}.cc.
class ElasticStore {
 public:
  // A request that may wait. Not used again.
  using Ticket = uint64_t;
  struct Out {
    std::vector<std::pair<Ticket, HorovodStore::Reply>> replies;
    std::vector<v1::ElasticUp> up;             // for the launcher
    std::vector<v1::ElasticNotice> to_worker;  // to AddressOf(local_rank), which is there
  };

  // `host`: as its ranks name it.
  ElasticStore(std::string host, uint32_t slots);

  // A request over HTTP: `target` begins with the slash.
  Out OnRequest(Ticket ticket, absl::string_view verb, absl::string_view target, std::string body);
  // Its client has gone. Harmless after the reply.
  Out OnGone(Ticket ticket);
  Out OnDown(const v1::ElasticDown& down);
  // What became of a notice.
  Out OnNoticed(v1::ElasticNoticed noticed);

  // Null: it has none, or one that was not understood.
  const WorkerAddress* AddressOf(uint32_t local_rank) const;
  uint64_t round() const { return round_; }
  bool is_shut() const { return round_ == 0; }
  // Requests that wait.
  size_t waiting() const;
  // Of all that is kept, roughly as in memory.
  size_t bytes() const { return values_.bytes() + held_bytes_; }
  size_t most_value() const { return values_.most_value(); }

 private:
  struct Request {
    std::string verb, target, body;
  };
  void Hold(Ticket ticket, Request request, Out& out);
  void Serve(Ticket ticket, Request request, const HorovodStore::Place& place, Out& out);
  void AskForPlace(Ticket ticket, const std::string& slot, Out& out);
  void Register(Ticket ticket, const std::string& slot, absl::string_view address, Out& out);
  void Remove(Ticket ticket, Request request, const HorovodStore::Place& place, Out& out);
  void Open(const v1::ElasticDown& down, Out& out);
  void TellWaiting(Out& out);
  // False: in this round ranks have said as much as they may.
  bool Raise(v1::ElasticUp up, Out& out);

  // Of "HOST:LOCAL_RANK"; slots_: not of this host.
  uint32_t LocalRankOf(absl::string_view slot) const;
  std::string SeatOf(uint32_t local_rank) const;
  bool IsOfThisHost(absl::string_view scope) const;

  const std::string local_scope_;
  const std::string host_;
  const uint32_t slots_;
  uint64_t round_ = 0;
  v1::Seats seats_;
  HorovodStore values_;             // without the scopes that end with the last of their ranks
  std::map<Ticket, Request> held_;  // at the shut door
  size_t held_bytes_ = 0;
  std::map<uint32_t, std::set<Ticket>> askers_;  // for a place in the next round, by local rank
  std::set<uint32_t> asked_;                     // in this round, as was reported
  std::map<uint64_t, Ticket> removals_;          // by the ids that went up
  uint64_t last_removal_ = 0;
  size_t raised_bytes_ = 0;  // in this round
  std::map<uint32_t, WorkerAddress> addresses_;
};

}  // namespace dtrain::stores
