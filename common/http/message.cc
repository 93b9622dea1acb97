// SPDX-License-Identifier: Apache-2.0
#include "common/http/message.h"

#include <nlohmann/json.hpp>

namespace dtrain::http {

Response ErrorResponse(int status, absl::string_view message) {
  const nlohmann::json body = {{"error", std::string(message)}};
  Response response;
  response.status = status;
  // Bytes that are no UTF-8 become U+FFFD instead of an exception.
  response.body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return response;
}

}  // namespace dtrain::http
