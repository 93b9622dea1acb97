// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "dtrain/v1/journal.pb.h"

namespace dtrain::detached {

// This process, as others find it again: host, boot, process id, start time, and the time now.
v1::Launcher Ourselves();

// Whether it is a process that runs on this machine now.
bool IsHere(const v1::Launcher& process);

bool IsSameProcess(const v1::Launcher& a, const v1::Launcher& b);

}  // namespace dtrain::detached
