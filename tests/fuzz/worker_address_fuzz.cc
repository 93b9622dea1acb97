// SPDX-License-Identifier: Apache-2.0
// What a worker of an elastic Horovod job puts at /worker_addresses. The first byte says whether
// the rest is base64, as it comes, or the pickle in it.
#include <string>

#include "absl/strings/escaping.h"
#include "agent/stores/worker_address.h"
#include "tests/fuzz/expect.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view rest = dtrain::fuzz::Text(data + 1, size - 1);
  const auto address = dtrain::stores::ReadWorkerAddress(data[0] == '=' ? std::string(rest)
                                                                        : absl::Base64Escape(rest));
  if (!address.ok()) {
    dtrain::fuzz::ExpectPrintable(address.status());
    return 0;
  }
  DTRAIN_CHECK(!address->key.empty() && address->key.size() <= rest.size());
  DTRAIN_CHECK(!address->places.empty() && address->places.size() <= 64);
  for (const auto& place : address->places) {
    DTRAIN_CHECK(!place.ip.empty() && place.ip.size() <= 64 && place.port > 0);
  }
  return 0;
}
