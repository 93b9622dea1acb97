// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group meet: memory of the node, connections between nodes.
#include <sched.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>

#include "runtime/boot/address.h"
#include "runtime/cpu/card.h"
#include "runtime/cpu/communicator.h"

namespace dtrain::runtime {
namespace {

// Read by the others to see whether reading this process's memory is permitted.
const uint64_t kProbe = 0x6474726169706e21;

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// The processors this process may run on, a character each.
std::string Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::string text;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return text;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) text += CPU_ISSET(cpu, &set) ? '1' : '0';
  text.erase(text.find_last_of('1') + 1);
  return text;
}

uint64_t Random() {
  uint64_t value = 0;
  while (value == 0 && getrandom(&value, sizeof(value), 0) == sizeof(value)) {
  }
  return value;
}

}  // namespace

class Join {
 public:
  Join(Bootstrap& bootstrap, const CpuOptions& options, Deadline deadline)
      : bootstrap_(bootstrap), options_(options), deadline_(deadline) {}

  Result<std::unique_ptr<CpuCommunicator>> Run();

 private:
  enum class Ending { kDone, kNoSharedMemory };

  Result<Ending> Try(const std::vector<int>& node_of_rank);
  MaybeError MakeOffer(RankCard& mine, SharedMemory& segment);
  MaybeError ExchangeCards(const RankCard& mine, MaybeError& unreadable);
  MaybeError Attach(SharedMemory segment);
  MaybeError ConnectNodes();
  std::vector<SharedMemory> OpenArenas() const;
  bool MayRead() const;
  Machine ThisMachine() const;
  Result<Ending> Agree(const MaybeError& attached, const MaybeError& failed,
                       const MaybeError& unreadable);
  const RankCard& card(int rank) const { return cards_.at(rank); }

  Bootstrap& bootstrap_;
  const CpuOptions& options_;
  const Deadline deadline_;
  const std::string boot_ = BootId();
  std::map<int, RankCard> cards_;  // of the ranks that this one needs, by rank
  std::unique_ptr<CpuCommunicator> made_;
};

Result<std::unique_ptr<CpuCommunicator>> CpuCommunicator::Make(Bootstrap& bootstrap,
                                                               const CpuOptions& options,
                                                               Deadline deadline) {
  return Join(bootstrap, options, deadline).Run();
}

Result<std::unique_ptr<CpuCommunicator>> Join::Run() {
  made_.reset(new CpuCommunicator(bootstrap_.rank(), bootstrap_.size()));
  made_->arena_ = options_.arena;
  if (made_->arena_ == nullptr) {
    // Without one, all memory is treated alike.
    if (auto arena = Arena::Make(); arena.ok()) made_->arena_ = std::move(*arena);
  }
  auto ending = Try(options_.node_of_rank);
  if (ending.ok() && *ending == Ending::kNoSharedMemory) {
    // Ranks that cannot see each other (containers of one host, say) talk like those of two nodes.
    std::vector<int> apart(static_cast<size_t>(bootstrap_.size()));
    std::iota(apart.begin(), apart.end(), 0);
    ending = Try(apart);
  }
  if (!ending.ok()) return ending.error();
  if (*ending != Ending::kDone) {
    return Error{DTRAIN_ERROR_INTERNAL, "a rank says that it cannot use its own memory"};
  }
  if (MaybeError error = made_->Begin()) return *error;
  return std::move(made_);
}

Result<Join::Ending> Join::Try(const std::vector<int>& node_of_rank) {
  Places& places = made_->places_;
  places = PlacesOf(bootstrap_.rank(), node_of_rank);
  places.names = options_.names;
  made_->group_.reset();
  made_->mesh_.reset();
  RankCard mine;
  mine.processors = Processors();
  mine.pid = getpid();
  mine.probe = reinterpret_cast<uint64_t>(&kProbe);
  if (const Arena* arena = made_->arena_.get()) {
    mine.arena_fd = arena->fd();
    mine.arena_bytes = arena->size();
    mine.arena_cookie = arena->cookie();
  }
  SharedMemory segment;
  // Failures are told to the others in Agree: a rank that just went away would keep them waiting.
  MaybeError failed, unreadable, attached;
  if (places.leader()) failed = MakeOffer(mine, segment);
  if (MaybeError error = ExchangeCards(mine, unreadable)) return failed ? *failed : *error;
  if (!failed && !unreadable) attached = Attach(std::move(segment));
  if (!failed && made_->mesh_ != nullptr) failed = ConnectNodes();
  return Agree(attached, failed, unreadable);
}

MaybeError Join::MakeOffer(RankCard& mine, SharedMemory& segment) {
  const Places& places = made_->places_;
  const size_t lanes = places.node_count() == 1 ? 0 : Across::LaneBytes(places);
  auto memory =
      SharedMemory::Create("dtrain-node", LocalGroup::BytesFor(places.local_size(), lanes));
  if (!memory.ok()) return memory.error();
  segment = std::move(*memory);
  mine.segment_fd = segment.fd();
  mine.segment_cookie = Random();
  LocalGroup::SetCookie(segment, mine.segment_cookie);
  if (places.node_count() == 1) return std::nullopt;
  std::string ip = options_.address;
  if (ip.empty()) {
    auto host = ListInterfaceAddresses();
    if (!host.ok()) return host.error();
    auto chosen = ChooseAddress("", "", false, *host);
    if (!chosen.ok()) return chosen.error();
    ip = *chosen;
  }
  auto mesh = Mesh::Make(places.node, places.named(places.leaders()), ip);
  if (!mesh.ok()) return mesh.error();
  made_->mesh_ = std::move(*mesh);
  mine.endpoint = made_->mesh_->endpoint();
  return std::nullopt;
}

// Those of the ranks that this one needs: all of its node's, and a leader also all leaders'.
MaybeError Join::ExchangeCards(const RankCard& mine, MaybeError& unreadable) {
  const Places& places = made_->places_;
  std::vector<int> from = places.here();
  if (places.leader()) {
    for (const int leader : places.leaders()) {
      if (leader != bootstrap_.rank()) from.push_back(leader);
    }
  }
  const auto texts = bootstrap_.ExchangeSome(EncodeCard(mine), from, deadline_);
  if (!texts.ok()) return texts.error();
  cards_.clear();
  for (size_t i = 0; i < from.size(); ++i) {
    const Result<std::string>& text = (*texts)[i];
    auto card = text.ok() ? DecodeCard(from[i], *text) : Result<RankCard>(text.error());
    if (card.ok()) cards_.emplace(from[i], std::move(*card));
    if (!card.ok() && !unreadable) unreadable = card.error();
  }
  return std::nullopt;
}

// Nothing when a leader's card cannot be read, as all leaders find.
MaybeError Join::ConnectNodes() {
  std::vector<NodeEndpoint> endpoints;
  for (const int leader : made_->places_.leaders()) {
    if (!cards_.contains(leader)) return std::nullopt;
    endpoints.push_back(card(leader).endpoint);
    if (endpoints.back().port == 0) {
      return Error{DTRAIN_ERROR_NETWORK,
                   "rank " + std::to_string(made_->places_.name(leader)) + " could not listen"};
    }
  }
  return made_->mesh_->Connect(endpoints, deadline_);
}

MaybeError Join::Attach(SharedMemory segment) {
  const Places& places = made_->places_;
  const size_t lanes = places.node_count() == 1 ? 0 : Across::LaneBytes(places);
  if (!places.leader()) {
    const RankCard& leader = card(places.here()[0]);
    auto memory = SharedMemory::Open(leader.pid, leader.segment_fd,
                                     LocalGroup::BytesFor(places.local_size(), lanes));
    if (!memory.ok()) return memory.error();
    segment = std::move(*memory);
    segment.CloseFd();
    if (LocalGroup::CookieOf(segment) != leader.segment_cookie) {
      return Error{DTRAIN_ERROR_RESOURCES, "what was opened is not the memory of this node"};
    }
  }
  std::vector<LocalGroup::Member> members;
  for (const int rank : places.here()) members.push_back({places.name(rank), card(rank).pid});
  made_->group_ = std::make_unique<LocalGroup>(std::move(segment), lanes, members, places.local);
  made_->memory_ = std::make_unique<PeerMemory>(*made_->group_, OpenArenas());
  return std::nullopt;
}

// Those that cannot be had stay empty.
std::vector<SharedMemory> Join::OpenArenas() const {
  std::vector<SharedMemory> arenas;
  for (const int rank : made_->places_.here()) {
    arenas.emplace_back();
    const RankCard& them = card(rank);
    if (rank == bootstrap_.rank() || them.arena_fd < 0) continue;
    auto arena = SharedMemory::Open(them.pid, them.arena_fd, them.arena_bytes);
    if (!arena.ok() || Arena::CookieOf(*arena) != them.arena_cookie) continue;
    arenas.back() = std::move(*arena);
    arenas.back().CloseFd();
  }
  return arenas;
}

bool Join::MayRead() const {
  if (!options_.direct_reads) return false;
  for (const int rank : made_->places_.here()) {
    if (rank == bootstrap_.rank()) continue;
    uint64_t value = 0;
    iovec mine{&value, sizeof(value)};
    iovec theirs{reinterpret_cast<void*>(card(rank).probe), sizeof(value)};
    const ssize_t n = process_vm_readv(card(rank).pid, &mine, 1, &theirs, 1, 0);
    if (n != sizeof(value) || value != kProbe) return false;
  }
  return true;
}

// With this rank's node on it.
Machine Join::ThisMachine() const {
  Machine machine{boot_, made_->places_.node, false, 0, ""};
  for (const int rank : made_->places_.here()) {
    const auto found = cards_.find(rank);
    if (found != cards_.end())
      machine.Add({boot_, machine.node, false, 1, found->second.processors});
  }
  return machine;
}

// The last meeting: whether all ranks have succeeded, so that none starts to work in a group that
// another one has failed to join, and what all of them can do.
Result<Join::Ending> Join::Agree(const MaybeError& attached, const MaybeError& failed,
                                 const MaybeError& unreadable) {
  const int rank = made_->places_.name(bootstrap_.rank());
  const Machine here = ThisMachine();
  Standing standing;
  standing.attached = !attached && made_->group_ != nullptr;
  standing.may_read = standing.attached && MayRead();
  standing.arenas = standing.attached && made_->memory_ != nullptr;
  for (int i = 0; standing.arenas && i < made_->places_.local_size(); ++i) {
    standing.arenas &= i == made_->places_.local || made_->memory_->Direct(i, 0) != nullptr;
  }
  standing.machines = {{boot_, here.node, false, 1, Processors()}};
  Result<std::string> mine = EncodeStanding(standing);
  if (unreadable) mine = *unreadable;
  if (failed) {
    mine = Error{failed->code, "rank " + std::to_string(rank) + " failed: " + failed->message};
  }
  const auto text = bootstrap_.Combine(mine, FoldStandings(bootstrap_.size()), deadline_);
  if (failed) return *failed;
  if (!text.ok()) return text.error();
  if (unreadable) return *unreadable;
  // Folded by rank 0, and the same for all. It cannot make this rank use what it does not have.
  auto all = DecodeStanding(0, *text);
  if (!all.ok()) return all.error();
  if (!all->attached || !standing.attached) return Ending::kNoSharedMemory;
  made_->direct_ = all->may_read && standing.may_read;
  // An arena that not all of its node can see is useless.
  if (!all->arenas || !standing.arenas) {
    made_->memory_ = std::make_unique<PeerMemory>(*made_->group_, std::vector<SharedMemory>());
    made_->arena_.reset();
  }
  bool crowded = here.crowded();
  for (const Machine& machine : all->machines) {
    crowded |= machine.boot == boot_ && machine.several_nodes && machine.crowded();
  }
  made_->group_->SetCrowded(crowded);
  if (made_->mesh_ != nullptr) made_->mesh_->SetCrowded(crowded);
  return Ending::kDone;
}

}  // namespace dtrain::runtime
