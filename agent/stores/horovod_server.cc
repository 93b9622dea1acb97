// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/horovod_server.h"

#include <memory>
#include <utility>

namespace dtrain::stores {

void HorovodServer::Serve(StreamSocket client, const Admission::Guest& /*guest*/, loop::Task over) {
  reports_.used();
  std::make_shared<HttpSession>(loop_, std::move(client), static_cast<HttpHandler&>(*this),
                                std::move(over))
      ->Start();
}

loop::Task HorovodServer::Handle(HttpRequest request, Reply reply) {
  reply(store_.Handle(request.verb, request.target, std::move(request.body)));
  return nullptr;
}

}  // namespace dtrain::stores
