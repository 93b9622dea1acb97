// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/elastic_server.h"

#include <memory>
#include <utility>

#include "agent/stores/notifier.h"

namespace dtrain::stores {

ElasticServer::ElasticServer(loop::Loop& loop, const v1::ElasticDoor& door, Reports& reports)
    : loop_(loop), reports_(reports), store_(door.host(), door.slots()) {}

void ElasticServer::Serve(StreamSocket client, const Admission::Guest& /*guest*/, loop::Task over) {
  reports_.used();
  std::make_shared<HttpSession>(loop_, std::move(client), static_cast<HttpHandler&>(*this),
                                std::move(over))
      ->Start();
}

loop::Task ElasticServer::Handle(HttpRequest request, Reply reply) {
  const ElasticStore::Ticket ticket = ++last_ticket_;
  waiting_[ticket] = std::move(reply);
  Carry(store_.OnRequest(ticket, request.verb, request.target, std::move(request.body)));
  if (!waiting_.contains(ticket)) return nullptr;
  return [this, ticket] {
    waiting_.erase(ticket);
    Carry(store_.OnGone(ticket));
  };
}

bool ElasticServer::OnDown(const v1::ElasticDown& down) {
  Carry(store_.OnDown(down));
  return true;
}

// The launcher hears first what ranks may only do after it: a put before the next request.
void ElasticServer::Carry(ElasticStore::Out out) {
  for (const v1::ElasticUp& up : out.up) reports_.elastic(up);
  for (auto& [ticket, answer] : out.replies) {
    if (auto waits = waiting_.extract(ticket)) waits.mapped()(std::move(answer));
  }
  for (const v1::ElasticNotice& notice : out.to_worker) {
    std::make_shared<Notifier>(
        loop_, *store_.AddressOf(notice.local_rank()), notice,
        [this](v1::ElasticNoticed noticed) { Carry(store_.OnNoticed(std::move(noticed))); })
        ->Start();
  }
}

}  // namespace dtrain::stores
