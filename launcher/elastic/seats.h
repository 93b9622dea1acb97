// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dtrain/v1/elastic.pb.h"

// Which ranks the workers of an elastic job have. Pure.
namespace dtrain::elastic {

// Of one host, by local rank.
using HostSeats = std::vector<v1::Seat>;

// As Horovod numbers them: host by host in order, at most `most` in all. By host; a host for which
// none is left has no seats. No host has more than hosts::kMaxSlots.
std::vector<HostSeats> Assign(const std::vector<uint32_t>& slots, std::optional<uint32_t> most);

bool Same(const HostSeats& left, const HostSeats& right);

}  // namespace dtrain::elastic
