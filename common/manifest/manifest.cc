// SPDX-License-Identifier: Apache-2.0
#include "common/manifest/manifest.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "common/manifest/sha256.h"

namespace dtrain::manifest {
namespace {

constexpr size_t kLongestPath = 4000;
constexpr size_t kLongestName = 255;
constexpr uint64_t kLargest = uint64_t{1} << 50;
// How many links the kernel follows on one path.
constexpr int kMostFollowed = 40;
// Limits the time of CheckLinks to some tenths of a second, in bytes of the paths that it looks up.
// 40000 ordinary links take a tenth of it.
constexpr size_t kMostWork = 256 << 20;
constexpr size_t kWorkPerName = 64;

absl::Status Bad(absl::string_view what, absl::string_view path) {
  return absl::InvalidArgumentError(absl::StrCat(Escape(path), " ", what));
}

// Sorted, none twice, none below a file or link.
absl::Status CheckTree(const std::vector<File>& files) {
  if (files.size() > kMostFiles) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tree has ", files.size(), " files, and may have ", kMostFiles));
  }
  absl::flat_hash_set<absl::string_view> paths;
  paths.reserve(files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    if (i > 0 && files[i - 1].path == files[i].path) return Bad("is there twice", files[i].path);
    if (i > 0 && files[i - 1].path > files[i].path) return Bad("is out of order", files[i].path);
    paths.insert(files[i].path);
  }
  for (const File& file : files) {
    const absl::string_view path = file.path;
    for (size_t at = path.find('/'); at != path.npos; at = path.find('/', at + 1)) {
      if (paths.contains(path.substr(0, at))) {
        return Bad("lies below something that is not a folder", path);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status BadLink(absl::string_view what, absl::string_view path, absl::string_view target) {
  return Bad(absl::StrCat("is ", what, " (to ", Escape(target), ")"), path);
}

void CutName(std::string& path) {
  const size_t slash = path.rfind('/');
  path.resize(slash == path.npos ? 0 : slash);
}

// Follows each link as the kernel does in a tree of these files: ".." after a link goes up from the
// link's target. A missing name counts as a folder, because a worker may create it.
absl::Status CheckLinks(const std::vector<File>& files) {
  absl::flat_hash_map<absl::string_view, absl::string_view> targets;
  for (const File& file : files) {
    if (file.kind == File::Kind::kLink) targets.emplace(file.path, file.target);
  }
  size_t work = 0;
  for (const File& file : files) {
    if (file.kind != File::Kind::kLink) continue;
    std::string at = file.path;
    CutName(at);
    std::vector<absl::string_view> ahead = {file.target};  // the last one comes first
    for (int followed = 1; !ahead.empty() && followed <= kMostFollowed;) {
      const absl::string_view name = ahead.back().substr(0, ahead.back().find('/'));
      ahead.back().remove_prefix(std::min(name.size() + 1, ahead.back().size()));
      if (ahead.back().empty()) ahead.pop_back();
      work += at.size() + kWorkPerName;
      if (work > kMostWork) {
        return absl::InvalidArgumentError("the symbolic links of the tree take too long to follow");
      }
      if (name.empty() || name == ".") continue;
      if (name == "..") {
        if (at.empty()) return BadLink("a symbolic link out of the tree", file.path, file.target);
        CutName(at);
        continue;
      }
      absl::StrAppend(&at, at.empty() ? "" : "/", name);
      const auto link = at.size() > kLongestPath ? targets.end() : targets.find(at);
      if (link == targets.end()) continue;
      ++followed;
      CutName(at);
      ahead.push_back(link->second);
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const File& file) {
  if (absl::Status path = CheckPath(file.path); !path.ok()) return path;
  if (file.kind == File::Kind::kLink) return CheckLink(file.path, file.target);
  if (file.sha256.size() != kHashBytes || file.size > kLargest) {
    return Bad("has no hash or an impossible size", file.path);
  }
  return absl::OkStatus();
}

// Cuts off what stands before the next `end`.
std::optional<absl::string_view> Take(absl::string_view& text, char end) {
  const size_t at = text.find(end);
  if (at == text.npos) return std::nullopt;
  const absl::string_view taken = text.substr(0, at);
  text.remove_prefix(at + 1);
  return taken;
}

std::optional<File> TakeFile(absl::string_view& text) {
  File file;
  const auto kind = Take(text, ' ');
  if (kind == "l") {
    file.kind = File::Kind::kLink;
    const auto path = Take(text, '\0');
    const auto target = Take(text, '\0');
    if (!path || !target) return std::nullopt;
    file.path = std::string(*path);
    file.target = std::string(*target);
    return file;
  }
  if (kind != "f" && kind != "x") return std::nullopt;
  if (kind == "x") file.kind = File::Kind::kProgram;
  const auto size = Take(text, ' ');
  const auto hash = Take(text, ' ');
  const auto path = Take(text, '\0');
  // Only digits: what else SimpleAtoi takes would be another text for the same tree.
  if (!size || !hash || !path || size->empty() ||
      size->find_first_not_of("0123456789") != size->npos ||
      (size->size() > 1 && size->front() == '0') || !absl::SimpleAtoi(*size, &file.size) ||
      hash->size() != 2 * kHashBytes || hash->find_first_not_of("0123456789abcdef") != hash->npos) {
    return std::nullopt;
  }
  file.sha256 = absl::HexStringToBytes(*hash);
  file.path = std::string(*path);
  return file;
}

}  // namespace

absl::Status CheckPath(absl::string_view path) {
  if (path.empty()) return absl::InvalidArgumentError("a file without a path");
  if (path.size() > kLongestPath) return Bad("is too long for a path", path);
  if (path.find('\0') != path.npos) return Bad("has a NUL in its path", path);
  size_t names = 0;
  for (const absl::string_view name : absl::StrSplit(path, '/')) {
    if (name.empty() || name == "." || name == "..") {
      return Bad("is not a path within the tree", path);
    }
    if (name.size() > kLongestName) return Bad("has a name of more than 255 bytes", path);
    if (++names > kDeepest)
      return Bad(absl::StrCat("is more than ", kDeepest, " folders deep"), path);
  }
  return absl::OkStatus();
}

absl::Status CheckLink(absl::string_view path, absl::string_view target) {
  if (target.empty() || target.size() > kLongestPath || target.find('\0') != target.npos) {
    return Bad("is a symbolic link to nothing", path);
  }
  if (target[0] == '/') return BadLink("an absolute symbolic link", path, target);
  auto depth = std::count(path.begin(), path.end(), '/');
  for (const absl::string_view name : absl::StrSplit(target, '/')) {
    if (name.empty() || name == ".") continue;
    depth += name == ".." ? -1 : 1;
    if (depth < 0) return BadLink("a symbolic link out of the tree", path, target);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Format(std::vector<File>& files) {
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.path < b.path; });
  if (absl::Status tree = CheckTree(files); !tree.ok()) return tree;
  std::string text;
  for (const File& file : files) {
    if (absl::Status good = Check(file); !good.ok()) return good;
    if (file.kind == File::Kind::kLink) {
      absl::StrAppend(&text, "l ", file.path);
      text.push_back('\0');
      absl::StrAppend(&text, file.target);
    } else {
      absl::StrAppend(&text, file.kind == File::Kind::kProgram ? "x " : "f ", file.size, " ",
                      absl::BytesToHexString(file.sha256), " ", file.path);
    }
    text.push_back('\0');
  }
  if (absl::Status links = CheckLinks(files); !links.ok()) return links;
  if (text.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the list of ", files.size(), " files is longer than 16 MiB"));
  }
  return text;
}

absl::StatusOr<std::vector<File>> Parse(absl::string_view text) {
  if (text.size() > kMostBytes) {
    return absl::InvalidArgumentError("the list of files is longer than 16 MiB");
  }
  std::vector<File> files;
  while (!text.empty()) {
    std::optional<File> file = TakeFile(text);
    if (!file) return absl::InvalidArgumentError("the list of files cannot be read");
    if (absl::Status good = Check(*file); !good.ok()) return good;
    if (files.size() >= kMostFiles) {
      return absl::InvalidArgumentError(absl::StrCat("a tree may have ", kMostFiles, " files"));
    }
    files.push_back(*std::move(file));
  }
  if (absl::Status tree = CheckTree(files); !tree.ok()) return tree;
  if (absl::Status links = CheckLinks(files); !links.ok()) return links;
  return files;
}

}  // namespace dtrain::manifest
