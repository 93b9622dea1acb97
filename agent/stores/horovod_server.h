// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/stores/horovod_store.h"
#include "agent/stores/http_session.h"
#include "agent/stores/server.h"
#include "dtrain/v1/store.pb.h"

namespace dtrain::stores {

// Horovod's keys, over HTTP. Loop thread.
class HorovodServer : public Server, private HttpHandler {
 public:
  HorovodServer(loop::Loop& loop, const v1::Meeting& meeting, Reports& reports)
      : loop_(loop), reports_(reports), store_(meeting) {}
  void Serve(StreamSocket client, const Admission::Guest& guest, loop::Task over) override;
  size_t most_sessions() const override { return 1024; }

 private:
  size_t most_body() const override { return store_.most_value(); }
  loop::Task Handle(HttpRequest request, Reply reply) override;

  loop::Loop& loop_;
  Reports& reports_;
  HorovodStore store_;
};

}  // namespace dtrain::stores
