// SPDX-License-Identifier: Apache-2.0
#include "agent/stage/staging.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/manifest/sha256.h"
#include "common/os/fd.h"

namespace dtrain::staged {
namespace {

// Between two looks at what else there is to do.
constexpr size_t kFilesAtOnce = 32;
constexpr size_t kMostInflated = 1 << 20;
constexpr uint64_t kMostStored = uint64_t{5} << 30;
// Trees of jobs that have ended: how they are named, and for how long they stay.
constexpr char kKept[] = "kept-";
constexpr int64_t kKeptSeconds = int64_t{30} * 86400;
constexpr int kMostOfAName = 100;

absl::StatusOr<std::string> Inflate(const v1::StagePiece& piece) {
  if (piece.inflated_size() > kMostInflated) {
    return absl::DataLossError("a part of it is longer than 1 MiB");
  }
  std::string bytes(piece.inflated_size(), '\0');
  uLongf size = bytes.size();
  if (uncompress(reinterpret_cast<Bytef*>(bytes.data()), &size,
                 reinterpret_cast<const Bytef*>(piece.data().data()),
                 piece.data().size()) != Z_OK ||
      size != bytes.size()) {
    return absl::DataLossError("what came of it cannot be inflated");
  }
  return bytes;
}

}  // namespace

std::string TreesIn(const std::string& user_folder) {
  char host[256] = {};
  (void)gethostname(host, sizeof(host) - 1);
  auto id = os::ReadSmallFile("/etc/machine-id", 64);
  return absl::StrCat(user_folder, "/trees/", host, "-", id.ok() ? id->substr(0, 8) : "");
}

Staging::Staging(loop::Loop& loop, Handlers handlers)
    : loop_(loop), handlers_(std::move(handlers)) {}

Staging::~Staging() { *alive_ = false; }

void Staging::Begin(const v1::StageTree& tree) {
  if (state_ != State::kNew) {
    return Fail(absl::InvalidArgumentError("the launcher sent a second list of files"));
  }
  state_ = State::kLooking;
  if (absl::Status open = Open(tree); !open.ok()) return Fail(open);
  Look();
}

absl::Status Staging::Open(const v1::StageTree& tree) {
  if (manifest::HashOf(tree.manifest()) != tree.sha256()) {
    return absl::DataLossError("the list of files is not the one that was announced");
  }
  sha256_ = tree.sha256();
  auto files = manifest::Parse(tree.manifest());
  if (!files.ok()) return files.status();
  files_ = *std::move(files);
  auto folder = UserFolder();
  if (!folder.ok()) return folder.status();
  folder_ = *std::move(folder);
  auto store = ObjectStore::Open(folder_);
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  const std::string trees = TreesIn(folder_);
  for (const std::string& path : {folder_ + "/trees", trees}) {
    if (absl::Status made = MakeFolder(path); !made.ok()) return made;
  }
  // What shepherds of this user left that were killed together with their agents.
  os::RemoveDeadScratchFolders({trees}, /*of_all_users=*/false, kTreeLimit).IgnoreError();
  os::RemoveOldFolders(trees, kKept, kKeptSeconds, kTreeLimit).IgnoreError();
  auto made = os::ScratchFolder::Make({trees});
  if (!made.ok()) return made.status();
  tree_ = *std::move(made);
  top_.Reset(open(tree_->path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!top_) return PosixError(errno, absl::StrCat("open ", tree_->path()));
  return absl::OkStatus();
}

// A file of which the content is there is made at once.
void Staging::Look() {
  if (state_ != State::kLooking) return;
  for (size_t i = 0; i < kFilesAtOnce && looked_ < files_.size(); ++i, ++looked_) {
    const auto index = static_cast<uint32_t>(looked_);
    const manifest::File& file = files_[index];
    if (const auto same = lacking_.find(file.sha256);
        file.kind != manifest::File::Kind::kLink && same != lacking_.end()) {
      if (files_[same->second[0]].size != file.size) {
        return Fail(absl::InvalidArgumentError("the list of files has one hash with two sizes"));
      }
      same->second.push_back(index);
      continue;
    }
    const absl::Status placed = Place(index);
    if (absl::IsNotFound(placed)) {
      lacking_[file.sha256].push_back(index);
    } else if (!placed.ok()) {
      return Fail(placed);
    }
  }
  if (looked_ == files_.size()) return LookedAll();
  loop_.Post([this, alive = alive_] {
    if (*alive) Look();
  });
}

void Staging::LookedAll() {
  if (lacking_.empty()) return Finish();
  state_ = State::kReceiving;
  std::vector<uint32_t> missing;
  for (const auto& [sha256, files] : lacking_) missing.push_back(files[0]);
  std::sort(missing.begin(), missing.end());
  handlers_.on_missing(std::move(missing));
}

// NOT_FOUND: its content is not in the store.
absl::Status Staging::Place(uint32_t index) {
  const manifest::File& file = files_[index];
  const auto parent = ParentOf(file.path);
  if (!parent.ok()) return parent.status();
  const std::string name = file.path.substr(file.path.rfind('/') + 1);
  absl::Status placed;
  if (file.kind != manifest::File::Kind::kLink) {
    placed = store_->TakeOut(file, *parent, name);
  } else if (symlinkat(file.target.c_str(), *parent, name.c_str()) != 0) {
    placed = PosixError(errno, "make a symbolic link");
  }
  if (placed.ok() || absl::IsNotFound(placed)) return placed;
  return absl::Status(placed.code(), absl::StrCat(Escape(file.path), ": ", placed.message()));
}

// From the top down, following no links. Files come in order, so it is often the one before.
absl::StatusOr<int> Staging::ParentOf(absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return top_.get();
  const absl::string_view folders = path.substr(0, slash);
  if (parent_ && parent_path_ == folders) return parent_.get();
  os::UniqueFd at;
  for (const absl::string_view each : absl::StrSplit(folders, '/')) {
    const std::string name(each);
    const int above = at ? at.get() : top_.get();
    if (mkdirat(above, name.c_str(), 0755) != 0 && errno != EEXIST) {
      return absl::InternalError(
          absl::StrCat("make the folder ", Escape(folders), ": ", PosixErrorText(errno)));
    }
    os::UniqueFd next(openat(above, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next) {
      return absl::InternalError(
          absl::StrCat("open the folder ", Escape(folders), ": ", PosixErrorText(errno)));
    }
    at = std::move(next);
  }
  parent_ = std::move(at);
  parent_path_ = std::string(folders);
  return parent_.get();
}

void Staging::Take(const v1::StagePieces& pieces) {
  if (state_ == State::kFailed) return;  // they were under way
  if (state_ != State::kReceiving) {
    return Fail(absl::InvalidArgumentError("the launcher sent files that were not asked for"));
  }
  for (const v1::StagePiece& piece : pieces.pieces()) {
    absl::Status taken = TakePiece(piece);
    if (taken.ok()) continue;
    if (piece.file() < files_.size()) {
      taken = absl::Status(taken.code(),
                           absl::StrCat(Escape(files_[piece.file()].path), ": ", taken.message()));
    }
    return Fail(taken);
  }
  handlers_.on_taken();
  if (lacking_.empty()) Finish();
}

absl::Status Staging::TakePiece(const v1::StagePiece& piece) {
  if (!incoming_) {
    const auto asked =
        piece.file() < files_.size() ? lacking_.find(files_[piece.file()].sha256) : lacking_.end();
    if (asked == lacking_.end() || asked->second[0] != piece.file()) {
      return absl::InvalidArgumentError("the launcher sent a file that was not asked for");
    }
    auto incoming = store_->Receive(files_[piece.file()]);
    if (!incoming.ok()) return incoming.status();
    incoming_.emplace(*std::move(incoming));
    incoming_file_ = piece.file();
  } else if (piece.file() != incoming_file_) {
    return absl::InvalidArgumentError("the launcher sent it before the end of another one");
  }
  received_any_ = true;
  if (piece.inflated_size() > 0) {
    auto bytes = Inflate(piece);
    if (!bytes.ok()) return bytes.status();
    if (absl::Status added = incoming_->Add(*bytes); !added.ok()) return added;
  } else {
    if (piece.data().empty()) return absl::InvalidArgumentError("a part of it has no bytes");
    if (absl::Status added = incoming_->Add(piece.data()); !added.ok()) return added;
  }
  return incoming_->left() == 0 ? Received(piece.file()) : absl::OkStatus();
}

// What is placed is hashed as it is read back.
absl::Status Staging::Received(uint32_t file) {
  absl::Status kept = incoming_->Finish();
  incoming_.reset();
  if (!kept.ok()) return kept;
  const auto found = lacking_.find(files_[file].sha256);
  const std::vector<uint32_t> files = std::move(found->second);
  lacking_.erase(found);
  for (const uint32_t each : files) {
    absl::Status placed = Place(each);
    if (absl::IsNotFound(placed)) {
      return absl::DataLossError(
          "what was read back of the disk is not what was written: is the disk damaged?");
    }
    if (!placed.ok()) return placed;
  }
  return absl::OkStatus();
}

void Staging::Finish() {
  state_ = State::kDone;
  parent_.Reset();
  handlers_.on_staged(sha256_);
}

void Staging::Fail(const absl::Status& why) {
  if (std::exchange(state_, State::kFailed) == State::kFailed) return;
  incoming_.reset();
  handlers_.on_failed(why);
}

absl::StatusOr<std::string> Staging::Keep(const std::string& name) {
  // An attempt that never ran may have left one, and the next one has its number.
  std::string as = absl::StrCat(kKept, name);
  auto kept = tree_->Keep(as);
  for (int again = 2; absl::IsAlreadyExists(kept.status()) && again <= kMostOfAName; ++again) {
    as = absl::StrCat(kKept, name, ".", again);
    kept = tree_->Keep(as);
  }
  if (absl::Status removed = Remove(); !removed.ok()) return removed;
  if (!kept.ok()) return kept.status();
  return absl::StrCat(folder_, "/trees/*/", as);
}

absl::Status Staging::Remove() {
  if (state_ != State::kDone) state_ = State::kFailed;
  incoming_.reset();
  parent_.Reset();
  top_.Reset();
  absl::Status removed;
  if (tree_) removed = tree_->Remove(kTreeLimit);
  tree_.reset();
  if (store_ && std::exchange(received_any_, false)) removed.Update(store_->Trim(kMostStored));
  return removed;
}

}  // namespace dtrain::staged
