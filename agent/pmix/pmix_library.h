// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/loop/loop.h"
#include "dtrain/v1/pmix.pb.h"

namespace dtrain::pmix {

// What libpmix asks of us. Called on the loop.
struct Upcalls {
  absl::AnyInvocable<void(v1::PmixUp)> up;
  absl::AnyInvocable<void(uint32_t rank, int code)> abort;
};

// The server in libpmix.so.2, which is opened at run time, where the loader finds it. A process can
// have one. It has threads of its own, whose calls are posted to the loop. Everything else: loop
// thread.
class PmixLibrary {
 public:
  // Opens the library and starts its server. NOT_FOUND: there is no such library; UNIMPLEMENTED: we
  // were built without its headers.
  static absl::StatusOr<std::unique_ptr<PmixLibrary>> Open(loop::Loop& loop,
                                                           const v1::PmixStart& start,
                                                           Upcalls upcalls);
  virtual ~PmixLibrary() = default;

  // Clients may be given to it afterwards.
  virtual absl::Status Register(const v1::PmixJob& job) = 0;
  // Where it listens.
  virtual absl::StatusOr<uint16_t> Port() const = 0;

  virtual void FenceDone(const v1::PmixFenceDone& done) = 0;
  // Another node wants what a rank of this one has put: answered by a PmixFound.
  virtual void Wanted(const v1::PmixWanted& wanted) = 0;
  virtual void Found(const v1::PmixFound& found) = 0;
};

}  // namespace dtrain::pmix
