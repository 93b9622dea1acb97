// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/listing.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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

// A work tree may come from another user, with its .git (an unpacked archive), and git runs
// commands that the repository's configuration names. These settings turn off those that our calls
// reach; none of our calls starts a pager, editor or diff driver. For filters see FilterFlags.
// - core.fsmonitor: empty, because git before 2.36 runs a program named "false".
// - safe.bareRepository: a subfolder that looks like a bare repository, which any clone may
// contain.
// - GIT_ALLOW_PROTOCOL: a partial clone fetches missing objects, by commands of its own.
constexpr const char* kHarmless[] = {"core.fsmonitor=", "core.hooksPath=/dev/null",
                                     "safe.bareRepository=explicit"};
constexpr const char* kSettings[] = {"LC_ALL=C", "GIT_OPTIONAL_LOCKS=0", "GIT_ALLOW_PROTOCOL=none"};
// The only variables for git that we pass on: in a hook, others name another repository.
constexpr absl::string_view kKeptOfGit[] = {"GIT_CONFIG_",
                                            "GIT_DISCOVERY_ACROSS_FILESYSTEM=", "GIT_EXEC_PATH="};

std::vector<std::string> EnvironmentOfGit(const std::vector<std::string>& more) {
  std::vector<std::string> env = os::OwnEnvironment();
  std::erase_if(env, [](absl::string_view entry) {
    if (absl::StartsWith(entry, "LC_ALL=")) return true;
    return absl::StartsWith(entry, "GIT_") &&
           std::none_of(std::begin(kKeptOfGit), std::end(kKeptOfGit),
                        [&](absl::string_view kept) { return absl::StartsWith(entry, kept); });
  });
  env.insert(env.end(), std::begin(kSettings), std::end(kSettings));
  env.insert(env.end(), more.begin(), more.end());
  return env;
}

// git, begun; several run at the same time.
class Git {
 public:
  static absl::StatusOr<Git> Start(const std::string& directory,
                                   const std::vector<std::string>& env,
                                   const std::vector<std::string>& words) {
    Git git;
    auto out = os::Pipe();
    if (!out.ok()) return out.status();
    auto err = os::Pipe();
    if (!err.ok()) return err.status();
    os::SpawnSpec spec;
    spec.argv = {"git", "-C", directory};
    for (const char* setting : kHarmless) spec.argv.insert(spec.argv.end(), {"-c", setting});
    spec.argv.insert(spec.argv.end(), words.begin(), words.end());
    spec.env = EnvironmentOfGit(env);
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

// The top of the work tree that `directory`, a real path, lies in, as git finds it; empty: none.
std::string TopOf(std::string directory) {
  for (;;) {
    if (access(absl::StrCat(directory, "/.git").c_str(), F_OK) == 0) return directory;
    const size_t slash = directory.rfind('/');
    if (slash == std::string::npos || directory.size() <= 1) return "";
    directory.resize(slash == 0 ? 1 : slash);
  }
}

// As git judges it: what the caller of sudo owns counts as root's.
bool IsOurs(const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return false;
  if (status.st_uid == geteuid()) return true;
  const char* caller = geteuid() == 0 ? getenv("SUDO_UID") : nullptr;
  uid_t uid = 0;
  return caller != nullptr && absl::SimpleAtoi(caller, &uid) && status.st_uid == uid;
}

std::string RealPath(const std::string& path) {
  const std::unique_ptr<char, decltype(&free)> real(realpath(path.c_str(), nullptr), free);
  return real == nullptr ? path : real.get();
}

// Whether safe.directory in the configuration of the user or system has `top`. git before 2.35.2
// does not check that itself.
bool IsNamedSafe(const std::string& top) {
  auto git = Git::Start("/", {"GIT_DIR=/dev/null"},
                        {"config", "-z", "--type=path", "--get-all", "safe.directory"});
  const auto text = git.ok() ? git->Finish() : git.status();
  if (!text.ok()) return false;
  bool is_safe = false;
  std::vector<std::string> values = absl::StrSplit(*text, '\0');
  values.pop_back();  // each ends with a NUL
  for (const std::string& value : values) {
    if (value.empty()) {
      is_safe = false;  // an empty value clears the list
    } else if (value == "*" || RealPath(value) == top ||
               (absl::EndsWith(value, "/*") &&
                absl::StartsWith(top, value.substr(0, value.size() - 1)))) {
      is_safe = true;
    }
  }
  return is_safe;
}

// Another user may plant a .git above our folder, such as in /tmp. git uses it before 2.35.2, and
// fails since. If `directory` is not ours either, git decides.
bool IsPlanted(const std::string& top, const std::string& directory) {
  return top != directory && IsOurs(directory) &&
         !(IsOurs(top) && IsOurs(absl::StrCat(top, "/.git"))) && !IsNamedSafe(top);
}

// Adds the files and links below `folder`, which is "" or ends with a slash: all but the usual
// caches and what `rules` match or, with `only`, those that they match.
absl::Status Walk(const std::string& directory, const std::string& folder, size_t depth,
                  const IgnoreRules& rules, bool only, std::vector<std::string>& paths) {
  const std::string path = absl::StrCat(directory, "/", folder);
  const auto refuse = [&](const std::string& why) {
    if (only && !rules.Matches(folder)) return absl::OkStatus();  // nobody asked for it
    return absl::InvalidArgumentError(why);
  };
  if (depth > manifest::kDeepest) {
    return refuse(absl::StrCat(Escape(path), " is more than ", manifest::kDeepest,
                               " folders deep; keep it out with --stage-exclude"));
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(path.c_str()), closedir);
  if (listing == nullptr) {
    return refuse(
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
      if (only && !rules.Matches(child)) continue;
      if (paths.size() >= kMostPaths) {
        return absl::InvalidArgumentError(absl::StrCat(
            Escape(directory), " has more than a million files: is it the right directory?"));
      }
      paths.push_back(child);
      continue;
    }
    const bool is_cache =
        std::find(std::begin(kUsualCaches), std::end(kUsualCaches), name) != std::end(kUsualCaches);
    if (name == ".git" || (!only && (is_cache || rules.MatchesFolder(child)))) continue;
    absl::Status walked = Walk(directory, child + "/", depth + 1, rules, only, paths);
    if (!walked.ok()) return walked;
  }
  return absl::OkStatus();
}

// Flags that turn off all filters in `config`, the keys of `git config --list`: `git status` runs
// them to compare files with the index. NOT_FOUND: one cannot be turned off.
absl::StatusOr<std::vector<std::string>> FilterFlags(absl::string_view config) {
  std::vector<std::string> flags;
  for (absl::string_view key : absl::StrSplit(config, '\0', absl::SkipEmpty())) {
    if (!absl::StartsWith(key, "filter.")) continue;
    // In a flag, the value would begin there.
    if (absl::StrContains(key, "=")) return absl::NotFoundError(key);
    const bool is_command = absl::EndsWith(key, ".clean") || absl::EndsWith(key, ".process");
    if (!is_command && !absl::EndsWith(key, ".required")) continue;
    flags.insert(flags.end(), {"-c", absl::StrCat(key, is_command ? "=" : "=false")});
  }
  return flags;
}

// "1a2b3c4 + 2 changed"
std::string CommitOf(const std::string& directory, const std::vector<std::string>& env) {
  auto commit = Git::Start(directory, env, {"rev-parse", "--short=7", "HEAD"});
  auto config = Git::Start(directory, env, {"config", "-z", "--list", "--name-only"});
  const auto head = commit.ok() ? commit->Finish() : commit.status();
  const auto settings = config.ok() ? config->Finish() : config.status();
  std::string text = head.ok() ? std::string(absl::StripSuffix(*head, "\n")) : "no commit";
  auto words = settings.ok() ? FilterFlags(*settings) : settings.status();
  if (!words.ok()) return text;
  // Not within submodules, which have filters of their own.
  words->insert(words->end(), {"status", "--porcelain", "-z", "--no-renames",
                               "--ignore-submodules=dirty", "--", "."});
  auto status = Git::Start(directory, env, *words);
  const auto changed = status.ok() ? status->Finish() : status.status();
  if (!changed.ok()) return text;
  const auto count = std::count(changed->begin(), changed->end(), '\0');
  if (count > 0) absl::StrAppend(&text, " + ", count, " changed");
  return text;
}

// Sets `paths` and the commit. `top`: of the work tree.
absl::Status AskGit(const std::string& directory, const std::string& top, const IgnoreRules& ignore,
                    Listing& listing) {
  const auto failed = [&](const absl::Status& why) {
    return absl::InvalidArgumentError(
        absl::StrCat(Escape(directory), " is in a git work tree, and git does not list its files: ",
                     why.message(), "\nIt must be known what .gitignore keeps out"));
  };
  // If git rejects the .git that we found, it must not use one further up.
  const std::vector<std::string> env = {
      absl::StrCat("GIT_CEILING_DIRECTORIES=", top.substr(0, std::max<size_t>(top.rfind('/'), 1)))};
  auto files =
      Git::Start(directory, env, {"ls-files", "-z", "--cached", "--others", "--exclude-standard"});
  if (!files.ok()) return failed(files.status());
  const auto text = files->Finish();
  if (!text.ok()) return failed(text.status());
  listing.git = CommitOf(directory, env);
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
    // A link may have replaced a folder of the index.
    if (!OpenFolderOf(directory, name).ok()) continue;
    absl::Status walked = Walk(directory, name + "/", 1, ignore, false, listing.paths);
    if (!walked.ok()) return walked;
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

absl::StatusOr<os::UniqueFd> OpenFolderOf(const std::string& directory, absl::string_view path) {
  os::UniqueFd folder(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::vector<std::string> names = absl::StrSplit(path, '/');
  names.pop_back();
  for (const std::string& name : names) {
    if (!folder) break;
    folder.Reset(openat(folder.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  }
  if (folder) return folder;
  if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return absl::NotFoundError(path);
  return absl::InternalError(PosixErrorText(errno));
}

absl::StatusOr<Listing> ListFiles(const std::string& directory,
                                  const std::vector<std::string>& exclude,
                                  const std::vector<std::string>& include) {
  auto ignore = ReadRules(directory, exclude);
  if (!ignore.ok()) return ignore.status();
  Listing listing;
  const std::string real = RealPath(directory);
  std::string top = TopOf(real);
  if (!top.empty() && IsPlanted(top, real)) {
    listing.warning =
        absl::StrCat("ignoring the git repository in ", Escape(top),
                     ", which belongs to another user; to use it, add it to git's safe.directory");
    top.clear();
  }
  absl::Status listed = top.empty() ? Walk(directory, "", 1, *ignore, false, listing.paths)
                                    : AskGit(directory, top, *ignore, listing);
  if (!listed.ok()) return listed;
  std::erase_if(listing.paths, [&](const std::string& path) { return ignore->Matches(path); });
  if (!include.empty()) {
    IgnoreRules wanted;
    for (const std::string& line : include) wanted.Add(line);
    listed = Walk(directory, "", 1, wanted, true, listing.paths);
    if (!listed.ok()) return listed;
  }
  std::sort(listing.paths.begin(), listing.paths.end());
  listing.paths.erase(std::unique(listing.paths.begin(), listing.paths.end()), listing.paths.end());
  return listing;
}

}  // namespace dtrain::stage
