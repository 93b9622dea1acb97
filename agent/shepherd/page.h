// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "common/page/worker_page.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The shepherd's side of the page it shares with one worker. Reads what libdtrain left there; a
// worker that writes nonsense gets nonsense reported about itself, and nothing else happens. Loop
// thread.
class Page {
 public:
  // In anonymous memory, with room for `capacity` timeline records (0: no timeline).
  static absl::StatusOr<Page> Make(uint32_t capacity);
  Page() = default;
  Page(Page&& other) noexcept;
  Page& operator=(Page&& other) noexcept;
  ~Page();

  // The descriptor for the worker; ours closes with it, the mapping stays.
  os::UniqueFd TakeFd() { return std::move(fd_); }

  // nullopt: the worker never called dtrain_init. `rank` is left to the caller.
  std::optional<v1::RankProgress> Read() const;
  // Records that wait to be taken, as the worker says.
  uint64_t spans() const;
  // Adds up to `most` records to `spans`, times turned into those of the node's clock, and gives
  // their room back to the worker. True when there were any.
  bool TakeSpans(uint32_t most, v1::Spans& spans);

 private:
  void Unmap();

  os::UniqueFd fd_;
  WorkerPage* page_ = nullptr;
  size_t size_ = 0;
  int64_t from_unix_ns_ = 0;  // taken once: spans must not overlap because a clock was set
  uint32_t capacity_ = 0;     // what we made it; the page's own word may have been changed
};

}  // namespace dtrain::shepherd
