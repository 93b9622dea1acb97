// SPDX-License-Identifier: Apache-2.0
#include "runtime/shm/local_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace dtrain::runtime {
namespace {

// A dead rank is noticed, and a failure that was missed between two looks, after this.
constexpr std::chrono::milliseconds kLook{50};
// An idle processor takes tens of microseconds to wake up.
constexpr std::chrono::microseconds kSpin{40};
constexpr int kYieldsWhenCrowded = 1;
// About half a microsecond, in which most of those come that come soon.
constexpr int kLooks = 200;
constexpr size_t kLongestReason = 1000;

constexpr uint32_t kNoFailure = 0, kBeingWritten = 1, kFailed = 2;

}  // namespace

// Says that a rank has come to its Enter number `entry`, with what it asks for: one cache line.
struct alignas(64) LocalGroup::Card {
  std::atomic<uint32_t> entry;
  Descriptor request;
};

// One per rank; written by it alone.
struct LocalGroup::Control {
  // A rank that is ahead writes its next request while others still read this one.
  Card cards[2];
  alignas(64) std::atomic<uint32_t> barrier;
  alignas(64) std::atomic<uint64_t> steps;  // things it has done that others wait for
  std::atomic<uint32_t> left;
  std::atomic<uint32_t> leaving;  // 1 once `runs` is set
  uint32_t runs;
  Counter filled;  // chunks

  // One writer: no locked addition.
  void Step() { steps.store(steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
};

struct LocalGroup::Header {
  uint64_t cookie;
  Counter bell;  // where those sleep who wait for all to come, and how often it was rung
  Counter filled[kLanes];
  Counter met[kLanes];
  Counter taken[kLanes];
  Counter failed;                    // 1 once there is a reason
  std::atomic<uint32_t> far_leaver;  // 1 + the rank, once far_runs is set
  uint32_t far_runs;
  std::atomic<uint32_t> failure;
  int32_t code;
  uint32_t failed_number;
  char reason[kLongestReason];
};

size_t LocalGroup::BytesFor(int size, size_t lane_bytes) {
  static_assert(sizeof(Header) <= 4096);
  static_assert(sizeof(Card) == 64);
  const auto n = static_cast<size_t>(size);
  const size_t controls = (n * sizeof(Control) + 4095) / 4096 * 4096;
  return 4096 + controls + n * 2 * kSlotBytes + kLanes * lane_bytes;
}

void LocalGroup::SetCookie(const SharedMemory& segment, uint64_t cookie) {
  reinterpret_cast<Header*>(segment.data())->cookie = cookie;
}

uint64_t LocalGroup::CookieOf(const SharedMemory& segment) {
  return reinterpret_cast<const Header*>(segment.data())->cookie;
}

LocalGroup::LocalGroup(SharedMemory segment, size_t lane_bytes, std::vector<Member> members,
                       int mine)
    : segment_(std::move(segment)),
      lane_bytes_(lane_bytes),
      members_(std::move(members)),
      mine_(mine) {
  SetCrowded(false);
  for (int i = 0; i < size(); ++i) {
    const bool self = i == mine_;
    const pid_t pid = member(i).pid;
    pidfds_.push_back(self ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    const bool look = !self && pidfds_.back() < 0 && errno != ESRCH;
    const std::string folder = "/proc/" + std::to_string(pid);
    folders_.push_back(look ? open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC) : -1);
  }
}

void LocalGroup::SetCrowded(bool crowded) {
  crowded_ = crowded;
  patience_ = crowded ? Patience{{}, kYieldsWhenCrowded} : Patience{kSpin, 0};
}

LocalGroup::~LocalGroup() {
  // A forked child has the same memory, but it is not the one that leaves.
  if (getpid() == pid_) control(mine_).left.store(1);
  for (const std::vector<int>* all : {&pidfds_, &folders_}) {
    for (const int fd : *all) {
      if (fd >= 0) close(fd);
    }
  }
}

LocalGroup::Header& LocalGroup::header() const {
  return *reinterpret_cast<Header*>(segment_.data());
}

LocalGroup::Control& LocalGroup::control(int index) const {
  return reinterpret_cast<Control*>(segment_.data() + 4096)[index];
}

char* LocalGroup::slot(int index, int which) const {
  const size_t before = BytesFor(size(), 0) - static_cast<size_t>(size()) * 2 * kSlotBytes;
  return segment_.data() + before + static_cast<size_t>(2 * index + which) * kSlotBytes;
}

char* LocalGroup::lane(uint64_t chunk) const {
  return segment_.data() + BytesFor(size(), 0) + chunk % kLanes * lane_bytes_;
}

const Descriptor& LocalGroup::request(int index) const {
  return control(index).cards[entries_ % 2].request;
}

MaybeError LocalGroup::Enter(const Descriptor& request, Deadline deadline) {
  Control& mine = control(mine_);
  Card& card = mine.cards[++entries_ % 2];
  card.request = request;
  mine.Step();
  card.entry.store(entries_, std::memory_order_release);
  if (MaybeError error = AwaitAll(true, entries_, deadline)) return error;
  bool same = true;
  for (int i = 0; i < size(); ++i) same &= this->request(i).what == request.what;
  if (same) return std::nullopt;
  std::vector<int> ranks;
  std::vector<Descriptor> requests;
  for (int i = 0; i < size(); ++i) {
    ranks.push_back(member(i).rank);
    requests.push_back(this->request(i));
  }
  MaybeError error = CompareRequests(ranks, requests);
  if (error) Fail(*error, number());
  return error;
}

MaybeError LocalGroup::Barrier(Deadline deadline) {
  Control& mine = control(mine_);
  mine.Step();
  mine.barrier.store(++barriers_, std::memory_order_release);
  return AwaitAll(false, barriers_, deadline);
}

std::atomic<uint32_t>& LocalGroup::come(int index, bool entering, uint32_t target) const {
  Control& them = control(index);
  return entering ? them.cards[target % 2].entry : them.barrier;
}

bool LocalGroup::AllHaveCome(bool entering, uint32_t target) const {
  for (int i = 0; i < size(); ++i) {
    const auto& line = come(i, entering, target);
    if (i != mine_ && !Reached(line.load(std::memory_order_acquire), target)) return false;
  }
  return true;
}

MaybeError LocalGroup::AwaitAll(bool entering, uint32_t target, Deadline deadline) {
  const auto all_here = [&] { return AllHaveCome(entering, target); };
  bool here = all_here();
  for (int i = 1; i < kLooks && !here && !crowded_; ++i) here = all_here();
  const auto begin = here ? Deadline() : std::chrono::steady_clock::now();
  if (!here && !crowded_) here = Spin(all_here, kSpin);
  // Whoever is the last to come wakes those that sleep. The fence is what makes sure that one of
  // them knows; it stands behind the looking, because it waits until this rank's own line is
  // written. That keeps nobody asleep: as long as this rank looks for others, so do those who
  // sleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Counter& bell = header().bell;
  if (bell.sleepers.load(std::memory_order_relaxed) != 0 && all_here()) {
    bell.value.fetch_add(1);
    WakeAll(bell);
  }
  MaybeError error;
  if (!here) error = Wait(bell, all_here, {{}, crowded_ ? kYieldsWhenCrowded : 0}, deadline);
  if (begin != Deadline()) {
    waited_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  }
  return error;
}

namespace {

// Chunks that went through this lane before this one, and this one.
uint32_t Turn(uint64_t chunk) { return static_cast<uint32_t>(chunk / LocalGroup::kLanes + 1); }

}  // namespace

MaybeError LocalGroup::AwaitFree(uint64_t chunk, Deadline deadline) {
  const uint32_t target = (Turn(chunk) - 1) * static_cast<uint32_t>(size());
  return AwaitCounter(header().taken[chunk % kLanes], target, deadline);
}

void LocalGroup::Filled(uint64_t chunk) {
  control(mine_).Step();
  Set(control(mine_).filled, static_cast<uint32_t>(chunk + 1));
  Add(header().filled[chunk % kLanes], Turn(chunk) * static_cast<uint32_t>(size()));
}

MaybeError LocalGroup::AwaitEarlier(uint64_t chunk, Deadline deadline) {
  if (mine_ == 0) return std::nullopt;
  return AwaitCounter(control(mine_ - 1).filled, static_cast<uint32_t>(chunk + 1), deadline);
}

MaybeError LocalGroup::AwaitFilled(uint64_t chunk, Deadline deadline) {
  const uint32_t target = Turn(chunk) * static_cast<uint32_t>(size());
  return AwaitCounter(header().filled[chunk % kLanes], target, deadline);
}

void LocalGroup::Met(uint64_t chunk) { Set(header().met[chunk % kLanes], Turn(chunk)); }

MaybeError LocalGroup::AwaitMet(uint64_t chunk, Deadline deadline) {
  return AwaitCounter(header().met[chunk % kLanes], Turn(chunk), deadline);
}

void LocalGroup::Taken(uint64_t chunk) {
  control(mine_).Step();
  Add(header().taken[chunk % kLanes], Turn(chunk) * static_cast<uint32_t>(size()));
}

MaybeError LocalGroup::AwaitCounter(Counter& counter, uint32_t target, Deadline deadline) {
  const auto reached = [&] {
    return Reached(counter.value.load(std::memory_order_acquire), target);
  };
  return Wait(counter, reached, patience_, deadline);
}

template <typename Ready>
MaybeError LocalGroup::Wait(Counter& bed, Ready ready, const Patience& patience,
                            Deadline deadline) {
  if (Await(bed, ready, patience, {})) return std::nullopt;
  for (;;) {
    // What is there counts: a faster rank may have met the failure in its next collective.
    if (MaybeError error = failure()) return ready() ? std::nullopt : std::move(error);
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) {
      const Error error{DTRAIN_ERROR_TIMEOUT, Missing()};
      Fail(error, number());
      return error;
    }
    if (Await(bed, ready, {}, std::min<std::chrono::nanoseconds>(left, kLook))) return std::nullopt;
    if (const MaybeError error = CheckOthers()) {
      // It may have come in the meantime: then its end is no matter of this wait.
      if (ready()) return std::nullopt;
      Fail(*error, number());
      return failure();
    }
  }
}

void LocalGroup::SayLeaving(uint32_t runs) {
  Control& mine = control(mine_);
  mine.runs = runs;
  mine.leaving.store(1);
}

std::optional<Leaver> LocalGroup::leaver() const {
  for (int i = 0; i < size(); ++i) {
    if (control(i).leaving.load() != 0) return Leaver{member(i).rank, control(i).runs};
  }
  return std::nullopt;
}

void LocalGroup::SetFarLeaver(const Leaver& leaver) {
  if (header().far_leaver.load() != 0) return;
  header().far_runs = leaver.runs;
  header().far_leaver.store(static_cast<uint32_t>(leaver.rank) + 1);
}

MaybeError LocalGroup::CheckFarLeaver(const Collective& what) const {
  const uint32_t who = header().far_leaver.load();
  if (who == 0 || !Reached(static_cast<uint32_t>(what.number), header().far_runs)) {
    return std::nullopt;
  }
  return LeavingError(static_cast<int>(who - 1), member(mine_).rank, what);
}

MaybeError LocalGroup::CheckOthers() const {
  const uint64_t steps = control(mine_).steps.load();
  const Collective own = CollectiveOf(request(mine_).what).value_or(Collective{});
  for (int i = 0; i < size(); ++i) {
    // What it has done is behind it; that it is behind means that it does not come.
    if (control(i).leaving.load() != 0 && control(i).steps.load() < steps) {
      return LeavingError(member(i).rank, member(mine_).rank, own);
    }
  }
  if (MaybeError error = CheckFarLeaver(own)) return error;
  return CheckProcesses();
}

MaybeError LocalGroup::CheckProcesses() const {
  std::vector<pollfd> entries;
  for (const int fd : pidfds_) entries.push_back({fd, POLLIN, 0});
  if (poll(entries.data(), entries.size(), 0) < 0) return std::nullopt;
  for (int i = 0; i < size(); ++i) {
    const std::string who = "rank " + std::to_string(member(i).rank);
    const int folder = folders_[static_cast<size_t>(i)];
    const bool gone = folder >= 0 && faccessat(folder, "stat", F_OK, 0) != 0;
    if (gone || entries[static_cast<size_t>(i)].revents != 0) {
      return Error{DTRAIN_ERROR_NETWORK, "lost the connection to " + who + ": its process " +
                                             std::to_string(member(i).pid) +
                                             " on this node has ended"};
    }
    if (i != mine_ && control(i).left.load() != 0) {
      return Error{DTRAIN_ERROR_NETWORK,
                   "lost the connection to " + who + ": it has left the group"};
    }
  }
  return std::nullopt;
}

std::string LocalGroup::Missing() const {
  std::vector<int> behind;
  const uint64_t mine = control(mine_).steps.load();
  for (int i = 0; i < size(); ++i) {
    if (control(i).steps.load() < mine) behind.push_back(member(i).rank);
  }
  if (behind.empty()) {
    return "timed out: " + NameRanks({member(0).rank}) +
           ", which speaks for this node, is still waiting for the other nodes";
  }
  return "timed out waiting for " + NameRanks(behind) +
         (behind.size() == 1 ? ", which has" : ", which have") + " not come";
}

void LocalGroup::Fail(const Error& error, uint32_t number) {
  uint32_t expected = kNoFailure;
  Header& head = header();
  if (!head.failure.compare_exchange_strong(expected, kBeingWritten)) return;
  head.code = error.code;
  head.failed_number = number;
  const size_t length = std::min(error.message.size(), kLongestReason - 1);
  std::memcpy(head.reason, error.message.data(), length);
  head.reason[length] = '\0';
  head.failure.store(kFailed);
  head.bell.value.fetch_add(1);
  WakeAll(head.bell);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (Counter* counter : {&head.filled[lane], &head.met[lane], &head.taken[lane]}) {
      WakeAll(*counter);
    }
  }
  for (int i = 0; i < size(); ++i) WakeAll(control(i).filled);
  head.failed.value.store(1);
  WakeAll(head.failed);
}

MaybeError LocalGroup::failure() const {
  const Header& head = header();
  const uint32_t state = head.failure.load(std::memory_order_acquire);
  if (state == kNoFailure) return std::nullopt;
  // Whoever is writing the reason may have died doing so.
  for (int i = 0; i < 100 && head.failure.load() != kFailed; ++i) usleep(1000);
  if (head.failure.load() != kFailed) {
    return Error{DTRAIN_ERROR_NETWORK, "lost the connection to a rank that died while failing"};
  }
  const char* end = std::find(head.reason, head.reason + kLongestReason, '\0');
  return Error{static_cast<dtrain_status>(head.code), std::string(head.reason, end)};
}

uint32_t LocalGroup::failed_number() const { return header().failed_number; }

void LocalGroup::AwaitFailure(std::chrono::milliseconds longest) {
  const Counter& failed = header().failed;
  const auto has_failed = [&] { return failed.value.load() != 0; };
  SleepOn(header().failed, has_failed, longest);
}

}  // namespace dtrain::runtime
