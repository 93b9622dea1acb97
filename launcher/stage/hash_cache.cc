// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/hash_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/manifest/sha256.h"
#include "common/os/fd.h"
#include "common/os/unique_fd.h"

namespace dtrain::stage {
namespace {

constexpr int64_t kYoung = 2'000'000'000;
constexpr size_t kRecord = 5 * sizeof(uint64_t) + manifest::kHashBytes;
constexpr size_t kMostOfFile = 64 << 20;

int64_t Nanos(const timespec& time) {
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

HashCache::Key HashCache::KeyOf(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size),
          Nanos(status.st_mtim), Nanos(status.st_ctim)};
}

// Records, and the hash of all of them.
HashCache::HashCache(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  auto text = os::ReadSmallFile(path_, kMostOfFile);
  if (!text.ok() || text->size() < manifest::kHashBytes) return;
  const absl::string_view records =
      absl::string_view(*text).substr(0, text->size() - manifest::kHashBytes);
  if (records.size() % kRecord != 0 ||
      manifest::HashOf(records) != absl::string_view(*text).substr(records.size())) {
    return;
  }
  old_.reserve(records.size() / kRecord);
  for (size_t at = 0; at < records.size(); at += kRecord) {
    std::array<uint64_t, 5> n;
    std::memcpy(n.data(), records.data() + at, sizeof(n));
    old_.emplace(Key(n[0], n[1], n[2], static_cast<int64_t>(n[3]), static_cast<int64_t>(n[4])),
                 std::string(records.substr(at + sizeof(n), manifest::kHashBytes)));
  }
}

std::optional<std::string> HashCache::Find(const struct stat& status) const {
  const auto found = old_.find(KeyOf(status));
  if (found == old_.end()) return std::nullopt;
  used_.insert(*found);
  return found->second;
}

void HashCache::Add(const struct stat& status, std::string sha256, int64_t read_at) {
  if (std::max(Nanos(status.st_mtim), Nanos(status.st_ctim)) > read_at - kYoung) return;
  used_[KeyOf(status)] = std::move(sha256);
  changed_ = true;
}

void HashCache::Save() {
  if (path_.empty() || (!changed_ && used_.size() == old_.size())) return;
  std::string text;
  for (const auto& [key, sha256] : used_) {
    const std::array<uint64_t, 5> n = {std::get<0>(key), std::get<1>(key), std::get<2>(key),
                                       static_cast<uint64_t>(std::get<3>(key)),
                                       static_cast<uint64_t>(std::get<4>(key))};
    text.append(reinterpret_cast<const char*>(n.data()), sizeof(n));
    text += sha256;
  }
  text += manifest::HashOf(text);
  const std::string temporary = absl::StrCat(path_, ".", os::RandomHex(4));
  os::UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return;
  const ssize_t written = write(file.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size()) ||
      rename(temporary.c_str(), path_.c_str()) != 0) {
    (void)unlink(temporary.c_str());
  }
}

}  // namespace dtrain::stage
