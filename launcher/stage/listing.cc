// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/listing.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/manifest/manifest.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"
#include "launcher/stage/ignore.h"

namespace dtrain::stage {
namespace {

constexpr absl::string_view kUsualCaches[] = {".git", ".venv", "venv", "__pycache__",
                                              "node_modules"};
constexpr size_t kMostOfGit = 64 << 20;
constexpr char kIgnoreFile[] = ".dtrainignore";
// Of a tree that somebody did not mean, as "/".
constexpr size_t kMostPaths = 1 << 20;

// git, begun; several run at the same time.
class Git {
 public:
  static absl::StatusOr<Git> Start(const std::string& directory, std::vector<std::string> words) {
    Git git;
    auto out = os::Pipe();
    if (!out.ok()) return out.status();
    auto err = os::Pipe();
    if (!err.ok()) return err.status();
    os::SpawnSpec spec;
    spec.argv = {"git", "-C", directory};
    spec.argv.insert(spec.argv.end(), words.begin(), words.end());
    spec.env = os::OwnEnvironment();
    spec.env.emplace_back("LC_ALL=C");
    spec.env.emplace_back("GIT_OPTIONAL_LOCKS=0");
    spec.stdout_fd = out->second.get();
    spec.stderr_fd = err->second.get();
    auto child = os::Spawn(spec);
    if (!child.ok()) return child.status();
    git.child_ = *std::move(child);
    git.out_ = std::move(out->first);
    git.err_ = std::move(err->first);
    return git;
  }

  // Its output. FAILED_PRECONDITION: it failed, and what it said.
  absl::StatusOr<std::string> Finish() {
    auto text = os::ReadToEnd(out_.get(), "the output of git", kMostOfGit);
    out_.Reset();
    auto error = os::ReadToEnd(err_.get(), "the errors of git", kMostOfGit);
    err_.Reset();
    const auto status = os::WaitAndReap(child_.pidfd.get());
    if (!text.ok()) return text.status();
    if (!status.ok()) return status.status();
    if (status->code == 0 && status->signal == 0) return text;
    return absl::FailedPreconditionError(Escape(error.ok() ? *error : "", 400));
  }

 private:
  os::Child child_;
  os::UniqueFd out_, err_;
};

// Where git looks for a work tree.
bool IsInWorkTree(std::string directory) {
  for (;;) {
    if (access(absl::StrCat(directory, "/.git").c_str(), F_OK) == 0) return true;
    const size_t slash = directory.rfind('/');
    if (slash == std::string::npos || directory.size() <= 1) return false;
    directory.resize(slash == 0 ? 1 : slash);
    if (directory == "/") return access("/.git", F_OK) == 0;
  }
}

// All files and links below `folder`, which is "" or ends with a slash.
absl::Status Walk(const std::string& directory, const std::string& folder, size_t depth,
                  const IgnoreRules& ignore, bool with_caches, std::vector<std::string>& paths) {
  const std::string path = absl::StrCat(directory, "/", folder);
  if (depth > manifest::kDeepest) {
    return absl::InvalidArgumentError(
        absl::StrCat(Escape(path), " is more than ", manifest::kDeepest,
                     " folders deep; keep it out with --stage-exclude"));
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(path.c_str()), closedir);
  if (listing == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read the folder ", Escape(path), ": ", PosixErrorText(errno)));
  }
  while (const dirent* entry = readdir(listing.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string child = folder + name;
    bool is_folder = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN) {
      struct stat status;
      is_folder = fstatat(dirfd(listing.get()), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                  S_ISDIR(status.st_mode);
    }
    if (!is_folder) {
      if (name == ".git") continue;  // of a submodule
      if (paths.size() >= kMostPaths) {
        return absl::InvalidArgumentError(absl::StrCat(
            Escape(directory), " has more than a million files: is it the right directory?"));
      }
      paths.push_back(child);
      continue;
    }
    const bool is_cache =
        std::find(std::begin(kUsualCaches), std::end(kUsualCaches), name) != std::end(kUsualCaches);
    if (name == ".git" || (is_cache && !with_caches) || ignore.MatchesFolder(child)) continue;
    absl::Status walked = Walk(directory, child + "/", depth + 1, ignore, with_caches, paths);
    if (!walked.ok()) return walked;
  }
  return absl::OkStatus();
}

// Sets `paths` and the commit.
absl::Status AskGit(const std::string& directory, const IgnoreRules& ignore, Listing& listing) {
  const auto failed = [&](const absl::Status& why) {
    return absl::InvalidArgumentError(
        absl::StrCat(Escape(directory), " is in a git work tree, and git does not list its files: ",
                     why.message(), "\nIt must be known what .gitignore keeps out"));
  };
  auto files =
      Git::Start(directory, {"ls-files", "-z", "--cached", "--others", "--exclude-standard"});
  if (!files.ok()) return failed(files.status());
  auto commit = Git::Start(directory, {"rev-parse", "--short=7", "HEAD"});
  auto changes = Git::Start(directory, {"status", "--porcelain", "-z", "--no-renames", "--", "."});
  const auto text = files->Finish();
  const auto head = commit.ok() ? commit->Finish() : commit.status();
  const auto changed = changes.ok() ? changes->Finish() : changes.status();
  if (!text.ok()) return failed(text.status());
  for (absl::string_view path : absl::StrSplit(*text, '\0', absl::SkipEmpty())) {
    // A work tree of its own in this one: its files, as they are.
    struct stat status;
    const std::string name(absl::StripSuffix(path, "/"));
    const bool may_be_tree = absl::EndsWith(path, "/") ||
                             (lstat(absl::StrCat(directory, "/", name).c_str(), &status) == 0 &&
                              S_ISDIR(status.st_mode));
    if (!may_be_tree) {
      listing.paths.push_back(name);
      continue;
    }
    absl::Status walked = Walk(directory, name + "/", 1, ignore, false, listing.paths);
    if (!walked.ok()) return walked;
  }
  listing.git = head.ok() ? std::string(absl::StripSuffix(*head, "\n")) : "no commit";
  if (changed.ok()) {
    const auto count = std::count(changed->begin(), changed->end(), '\0');
    if (count > 0) absl::StrAppend(&listing.git, " + ", count, " changed");
  }
  return absl::OkStatus();
}

absl::StatusOr<IgnoreRules> ReadRules(const std::string& directory,
                                      const std::vector<std::string>& exclude) {
  IgnoreRules rules;
  const std::string path = absl::StrCat(directory, "/", kIgnoreFile);
  auto text = os::ReadSmallFile(path);
  if (text.ok()) {
    rules.AddLines(*text);
  } else if (!absl::IsNotFound(text.status())) {
    return absl::InvalidArgumentError(absl::StrCat("--stage: ", text.status().message()));
  }
  for (const std::string& line : exclude) rules.Add(line);
  return rules;
}

}  // namespace

absl::StatusOr<Listing> ListFiles(const std::string& directory,
                                  const std::vector<std::string>& exclude,
                                  const std::vector<std::string>& include) {
  auto ignore = ReadRules(directory, exclude);
  if (!ignore.ok()) return ignore.status();
  Listing listing;
  absl::Status listed = IsInWorkTree(directory)
                            ? AskGit(directory, *ignore, listing)
                            : Walk(directory, "", 1, *ignore, false, listing.paths);
  if (!listed.ok()) return listed;
  std::erase_if(listing.paths, [&](const std::string& path) { return ignore->Matches(path); });
  if (!include.empty()) {
    IgnoreRules wanted;
    for (const std::string& line : include) wanted.Add(line);
    std::vector<std::string> all;
    listed = Walk(directory, "", 1, IgnoreRules(), true, all);
    if (!listed.ok()) return listed;
    for (std::string& path : all) {
      if (wanted.Matches(path)) listing.paths.push_back(std::move(path));
    }
  }
  std::sort(listing.paths.begin(), listing.paths.end());
  listing.paths.erase(std::unique(listing.paths.begin(), listing.paths.end()), listing.paths.end());
  return listing;
}

}  // namespace dtrain::stage
