// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::migrate {

// The end of `dtrain migrate` at which the job is to be, over our stdin and stdout. Before it is
// told to take the job, the other end's going is the end of it all; afterwards it goes through with
// it. Returns the exit code, for whom it may concern.
int Arrive();

}  // namespace dtrain::migrate
