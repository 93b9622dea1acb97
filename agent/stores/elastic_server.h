// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "agent/stores/elastic_store.h"
#include "agent/stores/http_session.h"
#include "agent/stores/server.h"
#include "dtrain/v1/elastic.pb.h"
#include "dtrain/v1/store.pb.h"

namespace dtrain::stores {

// The door of a host of an elastic Horovod job, over HTTP, and the notices to its ranks. Loop
// thread.
class ElasticServer : public Server, private HttpHandler {
 public:
  ElasticServer(loop::Loop& loop, const v1::ElasticDoor& door, Reports& reports);
  void Serve(StreamSocket client, const Admission::Guest& guest, loop::Task over) override;
  // A rank has one connection at a time, and some have just ended.
  size_t most_sessions() const override { return 1024; }
  bool OnDown(const v1::ElasticDown& down) override;

 private:
  size_t most_body() const override { return store_.most_value(); }
  loop::Task Handle(HttpRequest request, Reply reply) override;
  void Carry(ElasticStore::Out out);

  loop::Loop& loop_;
  Reports& reports_;
  ElasticStore store_;
  ElasticStore::Ticket last_ticket_ = 0;
  std::map<ElasticStore::Ticket, Reply> waiting_;
};

}  // namespace dtrain::stores
