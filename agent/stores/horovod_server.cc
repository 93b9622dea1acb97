// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/horovod_server.h"

#include <memory>
#include <utility>

#include "agent/stores/http_session.h"

namespace dtrain::stores {

void HorovodServer::Serve(StreamSocket client, const Admission::Guest& /*guest*/, loop::Task over) {
  reports_.used();
  std::make_shared<HttpSession>(loop_, std::move(client), store_, std::move(over))->Start();
}

}  // namespace dtrain::stores
