// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "common/loop/loop.h"

namespace dtrain {

// As loop::NameOf, but "dtrain stop (root, node0)" of that command on this host.
std::string NameSender(const loop::SignalWatch::Sender& sender);

}  // namespace dtrain
