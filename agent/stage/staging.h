// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/stage/object_store.h"
#include "common/loop/loop.h"
#include "common/manifest/manifest.h"
#include "common/os/scratch_folder.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::staged {

// Of the tree of a job: it may be as deep as a manifest, and has what the workers wrote.
inline constexpr os::RemovalLimit kTreeLimit = {40, 100000};

// Where in UserFolder() this machine has the trees of jobs. Of two machines that share a home each
// has its own: it removes those of processes that have ended.
std::string TreesIn(const std::string& user_folder);

// Makes the tree of one job out of what a launcher says: of what the store has, and of what comes.
// All of that is checked: paths stay within the tree, contents are those announced. Works in small
// portions on the loop thread.
class Staging {
 public:
  struct Handlers {
    absl::AnyInvocable<void(std::vector<uint32_t> files)> on_missing;  // as StageMissing
    absl::AnyInvocable<void()> on_taken;                               // one StagePieces
    absl::AnyInvocable<void(const std::string& sha256)> on_staged;
    // It cannot be done: what was tried and why not. Once, and nothing after it.
    absl::AnyInvocable<void(absl::Status)> on_failed;
  };
  Staging(loop::Loop& loop, Handlers handlers);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void Begin(const v1::StageTree& tree);
  void Take(const v1::StagePieces& pieces);
  bool is_done() const { return state_ == State::kDone; }
  // Of the tree, absolute; once it is done.
  const std::string& path() const { return tree_->path(); }
  // The tree, and of the store what is too much.
  absl::Status Remove();
  // The same, but the tree stays, for 30 days; where such trees of that name are, on any machine of
  // a home. It is_done().
  absl::StatusOr<std::string> Keep(const std::string& name);

 private:
  enum class State { kNew, kLooking, kReceiving, kDone, kFailed };

  absl::Status Open(const v1::StageTree& tree);
  void Look();
  void LookedAll();
  absl::Status Place(uint32_t file);
  absl::StatusOr<int> ParentOf(absl::string_view path);
  absl::Status TakePiece(const v1::StagePiece& piece);
  absl::Status Received(uint32_t file);
  void Finish();
  void Fail(const absl::Status& why);

  loop::Loop& loop_;
  Handlers handlers_;
  State state_ = State::kNew;
  std::string sha256_;
  std::vector<manifest::File> files_;
  std::string folder_;  // of the user
  std::optional<ObjectStore> store_;
  std::optional<os::ScratchFolder> tree_;
  os::UniqueFd top_;
  std::string parent_path_;  // of the file that was placed last
  os::UniqueFd parent_;
  size_t looked_ = 0;
  // The files with each content that is not there.
  absl::flat_hash_map<std::string, std::vector<uint32_t>> lacking_;
  std::optional<ObjectStore::Incoming> incoming_;
  uint32_t incoming_file_ = 0;
  bool received_any_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::staged
