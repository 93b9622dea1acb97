// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/bootstrap.h"
#include "runtime/base/collective.h"
#include "runtime/base/result.h"

namespace dtrain::runtime {

// A rank that has said that it leaves the job, and how many calls of Run it has made.
struct Leaver {
  int rank = -1;
  uint32_t runs = 0;  // wraps around
};

// A group of ranks and the way their bytes go. Used by one thread at a time, but for Abort.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Runs `what`, whose count may be 0, to its end. A rank that asked for something else makes this
  // fail on every rank with DTRAIN_ERROR_MISMATCH, naming the ranks. After a failure the
  // communicator is broken, and the other ranks notice at once.
  virtual MaybeError Run(const Collective& what, std::chrono::milliseconds timeout,
                         Spent& spent) = 0;

  // Any thread, also while another one is inside Run, which then fails soon with `reason`; so does
  // every other rank of the group.
  virtual void Abort(const Error& reason) = 0;

  // This rank leaves the job: it calls Run no more. A rank that is in a Run which this one does not
  // come to, or begins one, fails at once with DTRAIN_ERROR_MISMATCH, and so does this one's
  // failure(). Runs that this rank has made do not suffer.
  virtual void SayLeaving() {}
  // What has broken the communicator since, on this rank or another. Any thread.
  virtual MaybeError failure() const { return std::nullopt; }

  // While its ranks are in a collective that goes another way, over a device: the loss of one of
  // them is a failure then, as it is within Run. Any thread.
  virtual void SetOccupied(bool /*occupied*/) {}
  // failure(), and what only shows when one looks. Any thread.
  virtual MaybeError Look() { return failure(); }

  // Zeroed memory, aligned to 4096, that Run handles fastest. Not collective; no Run goes on
  // meanwhile. Null: this communicator has nothing better than plain memory.
  virtual Result<void*> Allocate(size_t /*bytes*/) { return nullptr; }
  // Gives back what Allocate returned.
  virtual MaybeError Free(void* /*memory*/) { return std::nullopt; }
};

}  // namespace dtrain::runtime
