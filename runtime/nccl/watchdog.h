// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <memory>
#include <vector>

namespace dtrain::runtime {

// Something that the watchdog looks after, on its thread.
class Watched {
 public:
  virtual ~Watched() = default;
  // What may end the wait for the next look, besides the time.
  virtual void AddTo(std::vector<pollfd>& entries) = 0;
  virtual void Look() = 0;
};

// One thread per process, which blocks all signals and looks after everything added ten times a
// second. It exists while there is something to look after, and does not keep the process from
// exiting. All functions: any thread.
class Watchdog {
 public:
  // False: no thread could be had.
  static bool Add(std::shared_ptr<Watched> watched);
  // After it, Look is not called and not running; but it does not wait longer than ten seconds for
  // a Look that hangs in the driver.
  static void Remove(const Watched* watched);
  // Look soon.
  static void Wake();
};

}  // namespace dtrain::runtime
