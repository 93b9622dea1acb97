// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/manifest/manifest.h"
#include "common/manifest/sha256.h"
#include "common/os/unique_fd.h"

namespace dtrain::staged {

// Where this process's user keeps what jobs have brought: XDG_CACHE_HOME or HOME/.cache, and in it
// dtrain/stage. FAILED_PRECONDITION: neither is set.
absl::StatusOr<std::string> UserFolder();

// Makes a folder of UserFolder(), or one in it, where there is none. PERMISSION_DENIED: others can
// change the one that is there, or put another in its place.
absl::Status MakeFolder(const std::string& path);

// Contents of files by their SHA-256, in a folder of the user. Several processes, also of several
// machines, may use one at the same time. Nothing in it is believed: each content is hashed again
// as it is taken out, and removed if it differs. So nothing has to be synced to disk.
class ObjectStore {
 public:
  // Makes the folder, for its user only.
  static absl::StatusOr<ObjectStore> Open(const std::string& folder);

  // Makes the file `name` in the folder `parent` with the content of `file`, checked. NOT_FOUND: it
  // is not in the store, or was damaged and no longer is.
  absl::Status TakeOut(const manifest::File& file, int parent, const std::string& name);

  // A content that comes in pieces. Without Finish nothing of it stays.
  class Incoming {
   public:
    Incoming(Incoming&&) = default;
    Incoming& operator=(Incoming&&) = delete;
    ~Incoming();
    absl::Status Add(absl::string_view bytes);
    uint64_t left() const { return size_ - have_; }
    // DATA_LOSS: these are not the bytes that were announced.
    absl::Status Finish();

   private:
    friend class ObjectStore;
    Incoming() = default;
    os::UniqueFd folder_;
    std::string temporary_, name_, sha256_;
    os::UniqueFd out_;
    uint64_t size_ = 0, have_ = 0;
    std::unique_ptr<manifest::Sha256> hash_;
  };
  absl::StatusOr<Incoming> Receive(const manifest::File& file);

  // Removes what was used least recently until no more than `most` bytes are there, and what
  // processes left that were killed as they received.
  absl::Status Trim(uint64_t most);

 private:
  ObjectStore() = default;
  absl::StatusOr<os::UniqueFd> FolderOf(absl::string_view sha256, bool make) const;

  std::string path_;
  os::UniqueFd objects_;
};

}  // namespace dtrain::staged
