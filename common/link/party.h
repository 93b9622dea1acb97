// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "common/link/link_core.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::link {

// Of somebody who may forget what was said.
uint64_t RandomEpoch();

v1::Party ToProto(const Party& party);
Party FromProto(const v1::Party& party);
// What `core`, whose connection is gone or was never there, tells its peer.
v1::Party OwedBy(const LinkCore& core);

}  // namespace dtrain::link
