// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/detached/journal_file.h"

namespace dtrain::detached {

// A longer journal is compacted.
inline constexpr uint64_t kCompactAbove = 16 << 20;
inline constexpr Duration kJournalRetry = std::chrono::seconds(1);

// The journal of a running job. A thread writes and syncs it: all records together that came while
// the last sync ran. Loop thread. Destroying it drops what is not written.
class Journal {
 public:
  // Called when nothing can be written, with the reason, and with OK once it can be again.
  using OnTrouble = absl::AnyInvocable<void(absl::Status)>;

  // `opened` as JournalFile::Open returns it.
  Journal(loop::Loop& loop, std::pair<JournalFile, journal::Contents> opened, std::string build,
          OnTrouble on_trouble, uint64_t compact_above = kCompactAbove);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Calls `synced` on the loop once a crash of the machine cannot undo the record, in the order of
  // the calls: only then may it be acknowledged or acted on. Where the disk is full or broken that
  // is later; it is tried again each second. Errors of journal::CheckRecord and journal::Apply:
  // nothing happens then.
  absl::Status Append(v1::JournalRecord record, loop::Task synced);
  // The same for all that was given to Append until now.
  void Flush(loop::Task synced);

  // With all that was given to Append.
  const v1::JournalState& state() const { return state_; }
  // Since when nothing can be written, and why.
  std::optional<absl::Time> trouble_since() const { return trouble_since_; }
  const absl::Status& trouble() const { return trouble_; }

 private:
  struct Item {
    std::optional<v1::JournalRecord> record;  // none: it is in the file, which is to be synced
    loop::Task synced;
  };
  struct Work {
    std::string frames;
    bool replace = false;
    // Then:
    bool replaced = false;
    uint64_t size = 0;
    absl::Status status;
  };

  void Wake();
  void Start();
  Work Encode();
  void Run(Work work);
  void OnDone(Work work);
  void OnFailure(const Work& work);

  loop::Loop& loop_;
  const std::string build_;
  OnTrouble on_trouble_;
  const std::string job_id_;
  v1::JournalState state_;
  const bool compactable_;  // nothing in it that we do not know
  const uint64_t most_bytes_;
  uint64_t compact_above_;
  uint64_t size_;
  std::deque<Item> queue_;
  std::deque<Item> batch_;  // that the thread has
  bool woken_ = false;
  bool running_ = false;
  bool waiting_ = false;  // for retry_
  std::optional<absl::Time> trouble_since_;
  absl::Status trouble_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  loop::Timer retry_;
  std::shared_ptr<JournalFile> file_;  // while running_ the thread's alone
  loop::BlockingPool thread_{1};
};

}  // namespace dtrain::detached
