// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/jobs.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/text.h"
#include "common/os/account.h"
#include "common/os/append_file.h"
#include "common/os/fd.h"
#include "common/os/private_file.h"
#include "launcher/detached/job_names.h"

namespace dtrain::detached {
namespace {

namespace fs = std::filesystem;

// For a job that is about to be settled: its launcher has written how it ended.
constexpr int kBetweenRemoveLooksMs = 50;
// Whoever has the lock does little meanwhile; it may be stopped, or on a slow file server.
constexpr Duration kLockPatience = std::chrono::seconds(10);
// A launcher that ends removes no more: a second at most, also on a file server.
constexpr size_t kMostAtEnd = 100;
constexpr size_t kAnyNumber = std::numeric_limits<size_t>::max();
constexpr int kRemovalTries = 3;
constexpr absl::Duration kBetweenSureLooks = absl::Hours(24);

// The environment differs from one try to the next, and is gone when the job has ended.
bool SameJob(const v1::Spec& a, const v1::Spec& b) {
  const auto same = [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  };
  const auto same_text = [](const auto& x, const auto& y) {
    return x.path() == y.path() && x.text() == y.text();
  };
  return same(a.argv(), b.argv()) &&
         std::equal(a.files().begin(), a.files().end(), b.files().begin(), b.files().end(),
                    same_text) &&
         a.working_directory() == b.working_directory() && a.name() == b.name() &&
         a.key() == b.key();
}

absl::Status MakeWithParents(const std::string& path) {
  const auto there = os::Exists(path);
  if (!there.ok()) return there.status();
  if (*there) return absl::OkStatus();
  const fs::path parent = fs::path(path).parent_path();
  if (absl::Status made = MakeWithParents(parent.string()); !made.ok()) return made;
  absl::Status made = os::MakeOwnDirectory(path, 0700, 0700);
  return made.ok() ? os::SyncFolder(parent.string()) : made;
}

bool IsAbsolute(const char* path) { return path != nullptr && path[0] == '/'; }

// sudo and su leave the variables of another user.
bool IsOurHome(const char* path) { return IsAbsolute(path) && os::IsOwnDirectory(path); }

// One that does not exist yet is made (the XDG Base Directory Specification), if what is there of
// it is ours.
bool MayBecomeOurs(const char* path) {
  if (!IsAbsolute(path)) return false;
  std::error_code error;
  fs::path at(path);
  if (fs::exists(at, error) || error) return false;
  while (!at.empty() && at != at.parent_path() && !fs::exists(at, error) && !error) {
    at = at.parent_path();
  }
  return !error && os::IsOwnDirectory(at.string());
}

bool IsFree(const absl::StatusOr<std::optional<v1::Launcher>>& holder) {
  return holder.ok() && !*holder;
}

// As fs::remove_all, with a beat for each file. Another process may remove the same.
std::error_code RemoveTree(const fs::path& path, Beat beat) {
  std::error_code error;
  std::vector<fs::path> inside;
  if (fs::symlink_status(path, error).type() == fs::file_type::directory) {
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      inside.push_back(at->path());
    }
  }
  for (const fs::path& each : inside) {
    if (const std::error_code failed = RemoveTree(each, beat)) return failed;
  }
  if (!error) fs::remove(path, error);
  beat();
  return error == std::errc::no_such_file_or_directory ? std::error_code() : error;
}

// Of a job that has ended nothing is left to do, and nobody does it: its launcher has left.
bool IsOver(const JobFolder& job) {
  const auto holder = job.Holder();
  return job.IsSettled() && !(holder.ok() && *holder);
}

}  // namespace

absl::StatusOr<std::string> Jobs::UsualPlace() {
  return UsualPlace([](const std::string&) { return true; });
}

absl::StatusOr<std::string> Jobs::UsualPlace(
    absl::FunctionRef<bool(const std::string& place)> may_ask) {
  const absl::Status unasked = absl::UnavailableError("the folder of detached jobs was not asked");
  if (const char* state = getenv("XDG_STATE_HOME"); IsAbsolute(state)) {
    std::string place = absl::StrCat(state, "/dtrain");
    if (!may_ask(place)) return unasked;
    if (IsOurHome(state) || MayBecomeOurs(state)) return place;
  }
  const auto in_home = [&](const char* home) -> absl::StatusOr<std::string> {
    if (IsAbsolute(home)) {
      std::string place = absl::StrCat(home, "/.local/state/dtrain");
      if (!may_ask(place)) return unasked;
      if (IsOurHome(home)) return place;
    }
    return absl::NotFoundError(
        "no place for detached jobs: neither XDG_STATE_HOME nor HOME is a directory of this user");
  };
  auto place = in_home(getenv("HOME"));
  if (!absl::IsNotFound(place.status())) return place;
  const auto account = os::FindAccount(geteuid());  // cron and containers set nothing
  return account.ok() ? in_home(account->home.c_str()) : place;
}

std::string Jobs::Path(absl::string_view name) const { return absl::StrCat(place_, "/", name); }

MovedJobs Jobs::Moved() const { return MovedJobs(Path("moved")); }

void Jobs::ForgetMove(const std::string& job_id) const { Moved().Forget(job_id); }

std::string Jobs::WhereItWent(const std::string& job_id) const {
  return Moved().WhereItWent(job_id);
}

JobFolder Jobs::Folder(absl::string_view id) const {
  return JobFolder(absl::StrCat(Path("jobs/"), id));
}

absl::Status Jobs::Prepare() const {
  absl::Status made = MakeWithParents(place_);
  // Also one that was there: whose it is, and who may change it or what is above it.
  if (made.ok()) made = os::MakeOwnDirectory(place_, 0700, 0700);
  for (const char* name : {"jobs", "keys"}) {
    if (made.ok()) made = MakeWithParents(Path(name));
    if (made.ok()) made = os::MakeOwnDirectory(Path(name), 0700, 0700);
  }
  return made;
}

absl::Status Jobs::Check() const {
  const auto there = os::Exists(place_);
  if (!there.ok()) return there.status();
  if (!*there) return absl::OkStatus();
  return os::MakeOwnDirectory(place_, 0700, 0700);
}

absl::Status Jobs::Try() const {
  if (absl::Status made = Prepare(); !made.ok()) return made;
  const std::string file = absl::StrCat(Path("jobs/.try."), os::RandomHex(4));
  absl::Status written = os::ReplaceFile(file, "x");
  std::error_code error;
  fs::remove(file, error);
  return written;
}

absl::StatusOr<os::FileLock> Jobs::Lock(Duration patience, Beat beat) const {
  return os::FileLock::Take(Path("lock"), "", patience, beat);
}

absl::StatusOr<Jobs::AcceptedJob> Jobs::FindAccepted(const v1::Spec& spec) const {
  std::string id = spec.job_id();
  if (!spec.key().empty()) {
    const auto known = os::ReadSmallFile(absl::StrCat(Path("keys/"), spec.key()));
    if (!known.ok() && !absl::IsNotFound(known.status())) return known.status();
    if (known.ok() && IsWord(*known)) id = *known;
  }
  JobFolder folder = Folder(id);
  const auto exists = os::Exists(folder.path());
  if (!exists.ok()) return exists.status();
  // A key may be older than its job: then that was never accepted, or is removed.
  if (!*exists) {
    const std::vector<v1::MovedJob> all =
        spec.key().empty() ? std::vector<v1::MovedJob>() : Moved().All();
    for (const v1::MovedJob& moved : all) {
      if (moved.key() != spec.key() || moved.job_id() == spec.job_id()) continue;
      if (SameJob(spec, moved.spec())) {
        return AcceptedJob{Folder(moved.job_id()), true, moved.host()};
      }
      return absl::AlreadyExistsError(
          absl::StrCat("the key ", spec.key(),
                       " belongs to a job with another command line, name "
                       "or working directory: ",
                       WentTo(moved)));
    }
    return absl::NotFoundError("");
  }
  const auto there = folder.ReadSpec();
  if (!there.ok()) return there.status();
  if (SameJob(spec, *there)) {
    // Whoever made it may have been killed before that.
    if (absl::Status synced = os::SyncFolder(Path("jobs")); !synced.ok()) return synced;
    return AcceptedJob{std::move(folder), true};
  }
  return absl::AlreadyExistsError(
      spec.key().empty()
          ? absl::StrCat("there is a job ", id, ", with another command line")
          : absl::StrCat("the key ", spec.key(), " belongs to job ", id,
                         ", which has another command line, name or working directory: use "
                         "another key for another job"));
}

absl::Status Jobs::CheckName(const v1::Spec& spec) const {
  if (spec.name().empty()) return absl::OkStatus();
  const auto jobs = List();
  if (!jobs.ok()) return jobs.status();
  for (const v1::JobEntry& job : *jobs) {
    if (job.name() != spec.name() || job.ended_unix_nanos() != 0) continue;
    return absl::AlreadyExistsError(absl::StrCat("job ", job.job_id(), " runs by the name ",
                                                 spec.name(), ": choose another name"));
  }
  return absl::OkStatus();
}

absl::Status Jobs::CheckWords(const v1::Spec& spec) const {
  absl::Status status = CheckWord("job id", spec.job_id());
  if (status.ok() && !spec.name().empty()) status = CheckWord("--name", spec.name());
  if (status.ok() && !spec.key().empty()) status = CheckWord("--key", spec.key());
  return status;
}

absl::Status Jobs::CheckNew(const v1::Spec& spec) const {
  absl::Status status = CheckWords(spec);
  if (status.ok()) status = Check();
  if (!status.ok()) return status;
  const auto there = FindAccepted(spec);
  if (there.ok()) {
    return absl::AlreadyExistsError(
        absl::StrCat("there is a job ", spec.job_id(), " already, in ", there->folder.path()));
  }
  if (!absl::IsNotFound(there.status())) return there.status();
  return CheckName(spec);
}

absl::StatusOr<Jobs::AcceptedJob> Jobs::Accept(const v1::Spec& spec, const Fill& fill,
                                               Beat beat) const {
  absl::Status status = CheckWords(spec);
  if (status.ok() && !v1::Spec().ParseFromString(spec.SerializeAsString())) {
    status = absl::InvalidArgumentError(
        "the name of a variable in the environment is not UTF-8: it could not be kept for another "
        "launcher");
  }
  if (status.ok()) status = Prepare();
  if (!status.ok()) return status;
  const auto lock = Lock(kLockPatience, beat);
  if (!lock.ok()) return lock.status();
  auto accepted = FindAccepted(spec);
  if (accepted.ok() || !absl::IsNotFound(accepted.status())) return accepted;
  status = CheckName(spec);
  if (!status.ok()) return status;
  const std::string draft = absl::StrCat(Path("jobs/.new."), spec.job_id());
  JobFolder folder = Folder(spec.job_id());
  std::error_code error;
  fs::remove_all(draft, error);  // of who was killed here
  const auto made = JobFolder::Make(draft, spec);
  status = made.status();
  if (status.ok() && fill) status = fill(*made);
  // The key first: without its job it means nothing, and a job without its key would be made twice.
  if (status.ok() && !spec.key().empty()) {
    status = os::ReplaceFile(absl::StrCat(Path("keys/"), spec.key()), spec.job_id());
  }
  if (status.ok()) status = os::Rename(draft, folder.path());
  if (status.ok() && !(status = os::SyncFolder(Path("jobs"))).ok()) {
    os::Rename(folder.path(), draft).IgnoreError();
  }
  if (!status.ok()) {
    fs::remove_all(draft, error);
    return status;
  }
  Moved().Forget(spec.job_id());  // it is back
  return AcceptedJob{std::move(folder), false};
}

absl::Status Jobs::AddEnded(const std::string& job_id, const Fill& fill) const {
  if (absl::Status made = Prepare(); !made.ok()) return made;
  // What lies there by such a name without it is taken for the remains of a process that was
  // killed.
  const auto lock = Lock(kLockPatience);
  if (!lock.ok()) return lock.status();
  const std::string draft = absl::StrCat(Path("jobs/.new."), job_id);
  absl::Status status = os::MakeOwnDirectory(draft, 0700, 0700);
  if (status.ok()) status = fill(JobFolder(draft));
  if (status.ok()) status = os::Rename(draft, Folder(job_id).path());
  std::error_code error;
  if (!status.ok()) fs::remove_all(draft, error);
  return status;
}

absl::StatusOr<std::vector<v1::JobEntry>> Jobs::List() const {
  const auto names = NamesIn(Path("jobs"));
  if (!names.ok()) return names.status();
  JobIndex known = JobIndex::Read(Path("index"));
  JobIndex now;
  now.stale = known.stale;
  std::vector<v1::JobEntry> jobs;
  jobs.reserve(names->size());
  for (const std::string& name : *names) {
    if (name[0] == '.') continue;
    if (const auto at = known.ended.find(name); at != known.ended.end()) {
      jobs.push_back(at->second);
      now.ended.insert(known.ended.extract(at));
      continue;
    }
    const JobFolder folder = Folder(name);
    absl::StatusOr<v1::JobEntry> entry = folder.Entry();
    if (!entry.ok()) {
      entry = v1::JobEntry();  // it can be seen
      entry->set_job_id(name);
    } else if (entry->ended_unix_nanos() != 0 && folder.IsSettled() && folder.Settle().ok()) {
      now.ended[name] = *entry;
      now.stale = true;
    }
    jobs.push_back(*std::move(entry));
  }
  if (now.stale || !known.ended.empty()) now.Write(Path("index"));
  return jobs;
}

absl::StatusOr<std::vector<v1::JobEntry>> Jobs::Known() const {
  auto jobs = List();
  if (!jobs.ok()) return jobs;
  const size_t here = jobs->size();
  for (const v1::MovedJob& moved : Moved().All()) {
    const bool is_here =
        std::any_of(jobs->begin(), jobs->begin() + static_cast<ptrdiff_t>(here),
                    [&](const v1::JobEntry& job) { return job.job_id() == moved.job_id(); });
    if (is_here) continue;
    v1::JobEntry& job = jobs->emplace_back();
    job.set_job_id(moved.job_id());
    job.set_name(moved.name());
    job.set_ended_unix_nanos(moved.unix_nanos());
  }
  return jobs;
}

absl::StatusOr<JobFolder> Jobs::Find(absl::string_view text) const {
  if (IsWord(text)) {
    const auto there = os::Exists(Folder(text).path());
    if (!there.ok()) return there.status();
    if (*there) return Folder(text);
  }
  const auto jobs = Known();
  if (!jobs.ok()) return jobs.status();
  const auto id = ChooseJob(*jobs, text);
  if (absl::IsNotFound(id.status())) {
    return absl::NotFoundError(
        absl::StrCat("no job \"", Escape(text), "\": `dtrain ps -a` lists them"));
  }
  if (!id.ok()) return id.status();
  const auto there = os::Exists(Folder(*id).path());
  if (!there.ok()) return there.status();
  if (std::string went = WhereItWent(*id); !*there && !went.empty()) {
    return absl::NotFoundError(went);
  }
  return Folder(*id);
}

absl::Status Jobs::Settle(const JobFolder& job) const {
  if (absl::Status settled = job.Settle(); !settled.ok()) return settled;
  return List().status();  // which adds it to the index
}

absl::Status Jobs::MoveAway(const v1::JobEntry& job) const {
  const std::string gone = absl::StrCat(Path("jobs/.gone."), job.job_id(), ".", os::RandomHex(4));
  absl::Status moved = os::Rename(Folder(job.job_id()).path(), gone);
  if (!moved.ok() || job.key().empty() || !IsWord(job.key())) return moved;
  const std::string key = absl::StrCat(Path("keys/"), job.key());
  const auto of = os::ReadSmallFile(key);
  std::error_code error;
  if (of.ok() && *of == job.job_id()) fs::remove(key, error);
  return moved;
}

// What was moved away, and what processes that were killed have left. May take long: without the
// lock, which whoever makes a folder has. Another process may do the same at the same time.
absl::Status Jobs::RemoveRemains(absl::Span<const std::string> names, Beat beat) const {
  std::error_code failed;
  for (const std::string& name : names) {
    const fs::path path = fs::path(Path("jobs")) / name;
    std::error_code error;
    for (int tries = 0; tries < kRemovalTries; ++tries) {
      error = RemoveTree(path, beat);
      if (!error) break;
    }
    // Somebody else removes the rest.
    if (error == std::errc::directory_not_empty) error.clear();
    if (error) failed = error;
  }
  if (!failed) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("remove ended jobs from ", Path("jobs"), ": ", failed.message()));
}

absl::StatusOr<std::vector<std::string>> Jobs::RemoveAll(absl::Span<const v1::JobEntry> jobs,
                                                         os::FileLock lock, size_t most_remains,
                                                         Beat beat) const {
  std::vector<std::string> gone;
  std::vector<std::string> remains;
  {
    const os::FileLock until_moved = std::move(lock);
    for (const v1::JobEntry& job : jobs) {
      absl::Status moved = MoveAway(job);
      beat();
      // Another process was faster.
      if (!moved.ok() && !absl::IsNotFound(moved)) return moved;
      if (moved.ok()) gone.push_back(job.job_id());
    }
    auto names = NamesIn(Path("jobs"));
    if (!names.ok()) return names.status();
    for (std::string& name : *names) {
      if (remains.size() == most_remains) break;
      // Nobody makes one now; soon somebody may again, by the same name.
      if (absl::StartsWith(name, ".new.")) {
        std::string gone_name = absl::StrCat(".gone", name, ".", os::RandomHex(4));
        if (!os::Rename(Path("jobs/" + name), Path("jobs/" + gone_name)).ok()) continue;
        name = std::move(gone_name);
      }
      if (name[0] == '.') remains.push_back(std::move(name));
    }
  }
  absl::Status removed = RemoveRemains(remains, beat);
  if (!removed.ok()) return removed;
  return gone;
}

absl::Status Jobs::Remove(const JobFolder& job, bool force, Beat beat) const {
  if (force && IsFree(job.Holder()) && IsFree(job.Minder())) {
    v1::JobEntry entry;
    if (auto known = job.Entry(); known.ok()) entry = *std::move(known);
    entry.set_job_id(job.id());
    auto lock = Lock(kLockPatience, beat);
    if (!lock.ok()) return lock.status();
    return RemoveAll({entry}, *std::move(lock), kAnyNumber, beat).status();
  }
  // What nobody waits for comes behind the end.
  const TimePoint end = Clock::now() + rest_patience_;
  while (!job.IsSettled() && job.HasSummary() && Clock::now() < end) {
    poll(nullptr, 0, kBetweenRemoveLooksMs);
    beat();
  }
  // Where power has failed, or launcher and minder were killed, nobody is left to do the rest.
  const bool abandoned = job.HasSummary() && IsFree(job.Holder()) && IsFree(job.Minder());
  if (!job.IsSettled() && !abandoned) {
    return absl::FailedPreconditionError(
        job.HasSummary()
            ? absl::StrCat("job ", job.id(), " has ended, but its --on-end command runs, or ",
                           job.path(), "/launcher.log says what is missing; try again later")
            : absl::StrCat("job ", job.id(), " has not ended: `dtrain stop ", job.id(),
                           "` ends it"));
  }
  const auto entry = job.Entry();
  if (!entry.ok()) {
    return absl::Status(entry.status().code(),
                        absl::StrCat(entry.status().message(), "; `dtrain rm --force ", job.id(),
                                     "` removes it nevertheless"));
  }
  auto lock = Lock(kLockPatience, beat);
  if (!lock.ok()) return lock.status();
  return RemoveAll({*entry}, *std::move(lock), kAnyNumber, beat).status();
}

absl::Status Jobs::MoveTo(const std::string& host, const JobFolder& job,
                          os::FileLock its_lock) const {
  const auto spec = job.ReadSpec();
  if (!spec.ok()) return spec.status();
  const absl::Status noted = Moved().Note(*spec, host);
  // Without the note, too: what is left here would take the job back.
  const absl::Status gone = Discard(job, std::move(its_lock));
  return gone.ok() ? noted : gone;
}

absl::Status Jobs::Discard(const JobFolder& job, os::FileLock its_lock) const {
  const os::FileLock until_gone = std::move(its_lock);
  v1::JobEntry entry;
  entry.set_job_id(job.id());
  if (const auto spec = job.ReadSpec(); spec.ok()) entry.set_key(spec->key());
  auto lock = Lock(kLockPatience);
  if (!lock.ok()) return lock.status();
  return RemoveAll({entry}, *std::move(lock), kAnyNumber).status();
}

// The oldest first. Only jobs of the index: for those nothing is left to do.
std::vector<v1::JobEntry> Jobs::Surplus(const Retention& most, absl::Time now,
                                        size_t at_most) const {
  std::vector<v1::JobEntry> jobs;
  uint64_t bytes = 0;
  for (auto& [id, job] : JobIndex::Read(Path("index")).ended) {
    if (job.keep()) continue;
    bytes += job.bytes();
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const v1::JobEntry& a, const v1::JobEntry& b) {
    return a.ended_unix_nanos() < b.ended_unix_nanos();
  });
  const auto is_old = [&](const v1::JobEntry& job) {
    return absl::FromUnixNanos(job.ended_unix_nanos()) < now - most.age;
  };
  std::vector<v1::JobEntry> surplus;
  // Takes out of `jobs`, from the oldest on, those for which `goes` holds.
  const auto take = [&](auto goes) {
    std::erase_if(jobs, [&](v1::JobEntry& job) {
      if (!goes(job)) return false;
      bytes -= job.bytes();
      surplus.push_back(std::move(job));
      return true;
    });
  };
  for (const bool foreground : {true, false}) {
    size_t left =
        static_cast<size_t>(std::count_if(jobs.begin(), jobs.end(), [&](const v1::JobEntry& job) {
          return job.foreground() == foreground;
        }));
    take([&](const v1::JobEntry& job) {
      if (job.foreground() != foreground || (left <= most.jobs && !is_old(job))) return false;
      --left;
      return true;
    });
  }
  for (const bool foreground : {true, false}) {
    take([&](const v1::JobEntry& job) {
      return job.foreground() == foreground && bytes > most.bytes;
    });
  }
  jobs = std::move(surplus);
  jobs.resize(std::min(jobs.size(), at_most));
  std::erase_if(jobs, [this](const v1::JobEntry& job) { return !IsOver(Folder(job.job_id())); });
  return jobs;
}

// The file has two times: the sure one, and that of the last call that may become it. Those that a
// clock has left which was ahead are still to come, and do not count.
absl::Time Jobs::SureTime(absl::Time now, absl::Duration age) const {
  if (age == absl::ZeroDuration()) return now;
  int64_t sure = 0, last = 0;
  if (const auto text = os::ReadSmallFile(Path("looks")); text.ok()) {
    const std::vector<std::string> words = absl::StrSplit(*text, ' ');
    if (words.size() != 2 || !absl::SimpleAtoi(words[0], &sure) ||
        !absl::SimpleAtoi(words[1], &last)) {
      sure = last = 0;
    }
  }
  const int64_t seconds = absl::ToUnixSeconds(now);
  if (sure > seconds) sure = 0;
  if (last > seconds) last = 0;
  if (last == 0 || seconds - last >= absl::ToInt64Seconds(std::min(age, kBetweenSureLooks))) {
    if (last != 0) sure = last;
    os::ReplaceFile(Path("looks"), absl::StrCat(sure, " ", seconds)).IgnoreError();
  }
  return sure == 0 ? absl::InfinitePast() : absl::FromUnixSeconds(sure);
}

absl::StatusOr<std::vector<std::string>> Jobs::Prune(const Retention& most, absl::Time now,
                                                     Beat beat) const {
  if (absl::Status listed = List().status(); !listed.ok()) return listed;
  auto lock = Lock(kLockPatience, beat);
  // No job was ever launched.
  if (absl::IsNotFound(lock.status())) return std::vector<std::string>();
  if (!lock.ok()) return lock.status();
  const std::vector<v1::JobEntry> jobs = Surplus(most, now, kAnyNumber);
  return RemoveAll(jobs, *std::move(lock), kAnyNumber, beat);
}

absl::StatusOr<std::vector<std::string>> Jobs::PruneSome(const Retention& most,
                                                         absl::Time now) const {
  auto lock = Lock(Duration::zero());
  // Whoever has it may prune; the next one will.
  if (absl::IsUnavailable(lock.status())) return std::vector<std::string>();
  if (!lock.ok()) return lock.status();
  const std::vector<v1::JobEntry> jobs = Surplus(most, now, kMostAtEnd);
  return RemoveAll(jobs, *std::move(lock), kMostAtEnd);
}

}  // namespace dtrain::detached
