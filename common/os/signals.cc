// SPDX-License-Identifier: Apache-2.0
#include "common/os/signals.h"

#include <signal.h>

namespace dtrain::os {

void FailWritesWithoutSignals() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

std::vector<int> NotIgnored(std::vector<int> signals) {
  std::erase_if(signals, [](int number) {
    struct sigaction now;
    return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
  });
  return signals;
}

}  // namespace dtrain::os
