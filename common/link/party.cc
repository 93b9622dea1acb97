// SPDX-License-Identifier: Apache-2.0
#include "common/link/party.h"

#include <cstring>
#include <string>

#include "common/os/fd.h"

namespace dtrain::link {

uint64_t RandomEpoch() {
  uint64_t epoch = 0;
  while (epoch == 0) {
    const std::string bytes = os::RandomBytes(sizeof(epoch));
    std::memcpy(&epoch, bytes.data(), sizeof(epoch));
  }
  return epoch;
}

v1::Party ToProto(const Party& party) {
  v1::Party out;
  out.set_epoch(party.epoch);
  out.set_of(party.of);
  out.set_received(party.received);
  return out;
}

Party FromProto(const v1::Party& party) { return {party.epoch(), party.of(), party.received()}; }

v1::Party OwedBy(const LinkCore& core) { return ToProto(core.Owed()); }

}  // namespace dtrain::link
