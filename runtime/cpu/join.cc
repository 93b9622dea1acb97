// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group meet: who shares a node, memory of the node, connections between nodes.
#include <sched.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>

#include "runtime/boot/address.h"
#include "runtime/cpu/communicator.h"

namespace dtrain::runtime {
namespace {

// Read by the others to see whether reading this process's memory is permitted.
const uint64_t kProbe = 0x6474726169706e21;

// Texts as one: each behind its length.
std::string Pack(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text += std::to_string(field.size()) + ":" + field;
  return text;
}

// nullopt when `text` does not hold `n` fields.
std::optional<std::vector<std::string>> Unpack(std::string_view text, size_t n) {
  std::vector<std::string> fields;
  while (fields.size() < n) {
    size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    if (error != std::errc() || end == text.data() + text.size() || *end != ':') return {};
    text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
    if (text.size() < length) return {};
    fields.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return fields;
}

template <typename Number>
Number NumberOf(const std::string& text) {
  Number value{};
  (void)std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string HostIdentity() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return std::string(host) + "/" + BootId();
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

struct Hello {
  std::string node;
  std::string boot;
  std::string processors;
  pid_t pid = 0;
  uint64_t probe = 0;  // address of kProbe there
  int arena_fd = -1;
  size_t arena_bytes = 0;
  uint64_t arena_cookie = 0;
};

std::string Encode(const Hello& hello) {
  return Pack({hello.node, hello.boot, hello.processors, std::to_string(hello.pid),
               std::to_string(hello.probe), std::to_string(hello.arena_fd),
               std::to_string(hello.arena_bytes), std::to_string(hello.arena_cookie)});
}

std::optional<Hello> DecodeHello(const std::string& text) {
  const auto fields = Unpack(text, 8);
  if (!fields) return std::nullopt;
  const auto& f = *fields;
  return Hello{f[0],
               f[1],
               f[2],
               NumberOf<pid_t>(f[3]),
               NumberOf<uint64_t>(f[4]),
               NumberOf<int>(f[5]),
               NumberOf<size_t>(f[6]),
               NumberOf<uint64_t>(f[7])};
}

// What a leader offers: the node's segment, and where it listens.
struct Offer {
  int fd = -1;
  uint64_t cookie = 0;
  NodeEndpoint endpoint;
};

std::string Encode(const Offer& offer) {
  const NodeEndpoint& at = offer.endpoint;
  return Pack({std::to_string(offer.fd), std::to_string(offer.cookie), at.ip,
               std::to_string(at.port), std::string(at.token.data(), at.token.size())});
}

std::optional<Offer> DecodeOffer(const std::string& text) {
  const auto fields = Unpack(text, 5);
  if (!fields) return std::nullopt;
  Offer offer;
  offer.fd = NumberOf<int>((*fields)[0]);
  offer.cookie = NumberOf<uint64_t>((*fields)[1]);
  NodeEndpoint& at = offer.endpoint;
  at.ip = (*fields)[2];
  at.port = NumberOf<uint16_t>((*fields)[3]);
  const std::string& token = (*fields)[4];
  if (token.size() != at.token.size()) return std::nullopt;
  std::copy(token.begin(), token.end(), at.token.begin());
  return offer;
}

Error BadRecord(int rank) {
  return {DTRAIN_ERROR_LAUNCHER, "what rank " + std::to_string(rank) +
                                     " published cannot be read; do all ranks use the same "
                                     "version of libdtrain?"};
}

}  // namespace

class Join {
 public:
  Join(Bootstrap& bootstrap, const CpuOptions& options, Deadline deadline)
      : bootstrap_(bootstrap), options_(options), deadline_(deadline) {}

  Result<std::unique_ptr<CpuCommunicator>> Run();

 private:
  enum class Outcome { kDone, kNoSharedMemory };

  MaybeError Greet();
  Result<Outcome> Try(const std::vector<std::string>& nodes);
  MaybeError MakeOffer(Offer& offer, SharedMemory& segment);
  Result<std::vector<Offer>> Offers(const Offer& mine);  // by rank
  MaybeError Attach(const Offer& offer, SharedMemory segment);
  std::vector<SharedMemory> OpenArenas() const;
  bool MayRead() const;
  bool Crowded() const;
  Result<Outcome> Agree(const MaybeError& attached, const MaybeError& connected);
  const Hello& hello(int rank) const { return hellos_[static_cast<size_t>(rank)]; }

  Bootstrap& bootstrap_;
  const CpuOptions& options_;
  const Deadline deadline_;
  std::vector<Hello> hellos_;  // by rank
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
  if (MaybeError error = Greet()) return *error;
  std::vector<std::string> nodes;
  for (const Hello& hello : hellos_) nodes.push_back(hello.node);
  auto outcome = Try(nodes);
  if (outcome.ok() && *outcome == Outcome::kNoSharedMemory) {
    // Ranks that cannot see each other (containers of one host, say) talk like those of two nodes.
    for (size_t r = 0; r < nodes.size(); ++r) nodes[r] = "rank " + std::to_string(r);
    outcome = Try(nodes);
  }
  if (!outcome.ok()) return outcome.error();
  if (MaybeError error = made_->Begin()) return *error;
  return std::move(made_);
}

MaybeError Join::Greet() {
  Hello mine;
  mine.node = options_.node.empty() ? HostIdentity() : options_.node;
  mine.boot = BootId();
  mine.processors = Processors();
  mine.pid = getpid();
  mine.probe = reinterpret_cast<uint64_t>(&kProbe);
  if (const Arena* arena = made_->arena_.get()) {
    mine.arena_fd = arena->fd();
    mine.arena_bytes = arena->size();
    mine.arena_cookie = arena->cookie();
  }
  auto texts = bootstrap_.Exchange(Encode(mine), deadline_);
  if (!texts.ok()) return texts.error();
  for (size_t r = 0; r < texts->size(); ++r) {
    const auto hello = DecodeHello((*texts)[r]);
    if (!hello) return BadRecord(static_cast<int>(r));
    hellos_.push_back(*hello);
  }
  return std::nullopt;
}

Result<Join::Outcome> Join::Try(const std::vector<std::string>& nodes) {
  Places& places = made_->places_;
  places = PlacesByName(bootstrap_.rank(), nodes);
  made_->group_.reset();
  made_->mesh_.reset();
  Offer mine;
  SharedMemory segment;
  // Failures are told to the others in Agree: a rank that just went away would keep them waiting.
  MaybeError failed;
  if (places.leader()) failed = MakeOffer(mine, segment);
  auto offers = Offers(mine);
  if (!offers.ok()) return offers.error();
  const int leader = places.here()[0];
  MaybeError attached;
  if (!failed) attached = Attach((*offers)[static_cast<size_t>(leader)], std::move(segment));
  if (!failed && made_->mesh_ != nullptr) {
    std::vector<NodeEndpoint> endpoints;
    for (const auto& ranks : places.nodes) {
      endpoints.push_back((*offers)[static_cast<size_t>(ranks[0])].endpoint);
      if (endpoints.back().port == 0) {
        failed =
            Error{DTRAIN_ERROR_NETWORK, "rank " + std::to_string(ranks[0]) + " could not listen"};
      }
    }
    if (!failed) failed = made_->mesh_->Connect(endpoints, deadline_);
  }
  return Agree(attached, failed);
}

MaybeError Join::MakeOffer(Offer& offer, SharedMemory& segment) {
  const Places& places = made_->places_;
  const size_t lanes = places.node_count() == 1 ? 0 : Across::LaneBytes(places);
  auto memory =
      SharedMemory::Create("dtrain-node", LocalGroup::BytesFor(places.local_size(), lanes));
  if (!memory.ok()) return memory.error();
  segment = std::move(*memory);
  offer.fd = segment.fd();
  offer.cookie = Random();
  LocalGroup::SetCookie(segment, offer.cookie);
  if (places.node_count() == 1) return std::nullopt;
  std::string ip = options_.address;
  if (ip.empty()) {
    auto host = ListInterfaceAddresses();
    if (!host.ok()) return host.error();
    auto chosen = ChooseAddress("", "", false, *host);
    if (!chosen.ok()) return chosen.error();
    ip = *chosen;
  }
  std::vector<int> leaders;
  for (const auto& ranks : places.nodes) leaders.push_back(ranks[0]);
  auto mesh = Mesh::Make(places.node, leaders, ip, Crowded());
  if (!mesh.ok()) return mesh.error();
  made_->mesh_ = std::move(*mesh);
  offer.endpoint = made_->mesh_->endpoint();
  return std::nullopt;
}

// Of the ranks that this one needs: leaders meet all leaders, the others only their own.
Result<std::vector<Offer>> Join::Offers(const Offer& mine) {
  const Places& places = made_->places_;
  std::vector<int> from{places.here()[0]};
  if (places.leader()) {
    from.clear();
    for (const auto& ranks : places.nodes) from.push_back(ranks[0]);
  }
  auto texts = bootstrap_.ExchangeSome(places.leader() ? Encode(mine) : "", from, deadline_);
  if (!texts.ok()) return texts.error();
  std::vector<Offer> offers(texts->size());
  for (const int rank : from) {
    const auto offer = DecodeOffer((*texts)[static_cast<size_t>(rank)]);
    if (!offer) return BadRecord(rank);
    offers[static_cast<size_t>(rank)] = *offer;
  }
  return offers;
}

MaybeError Join::Attach(const Offer& offer, SharedMemory segment) {
  const Places& places = made_->places_;
  const size_t lanes = places.node_count() == 1 ? 0 : Across::LaneBytes(places);
  if (!places.leader()) {
    auto memory = SharedMemory::Open(hello(places.here()[0]).pid, offer.fd,
                                     LocalGroup::BytesFor(places.local_size(), lanes));
    if (!memory.ok()) return memory.error();
    segment = std::move(*memory);
    segment.CloseFd();
    if (LocalGroup::CookieOf(segment) != offer.cookie) {
      return Error{DTRAIN_ERROR_RESOURCES, "what was opened is not the memory of this node"};
    }
  }
  std::vector<LocalGroup::Member> members;
  for (const int rank : places.here()) members.push_back({rank, hello(rank).pid});
  made_->group_ =
      std::make_unique<LocalGroup>(std::move(segment), lanes, members, places.local, Crowded());
  made_->memory_ = std::make_unique<PeerMemory>(*made_->group_, OpenArenas());
  return std::nullopt;
}

// Those that cannot be had stay empty.
std::vector<SharedMemory> Join::OpenArenas() const {
  std::vector<SharedMemory> arenas;
  for (const int rank : made_->places_.here()) {
    arenas.emplace_back();
    const Hello& them = hello(rank);
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
    iovec theirs{reinterpret_cast<void*>(hello(rank).probe), sizeof(value)};
    const ssize_t n = process_vm_readv(hello(rank).pid, &mine, 1, &theirs, 1, 0);
    if (n != sizeof(value) || value != kProbe) return false;
  }
  return true;
}

// Whether the ranks of the group on this machine outnumber the processors they may use.
bool Join::Crowded() const {
  const Hello& me = hello(bootstrap_.rank());
  std::string processors;
  size_t ranks = 0;
  for (const Hello& them : hellos_) {
    if (them.boot != me.boot) continue;
    ++ranks;
    processors.resize(std::max(processors.size(), them.processors.size()), '0');
    for (size_t i = 0; i < them.processors.size(); ++i) {
      if (them.processors[i] == '1') processors[i] = '1';
    }
  }
  return ranks > static_cast<size_t>(std::count(processors.begin(), processors.end(), '1'));
}

// The last meeting: whether all ranks have succeeded, so that none starts to work in a group that
// another one has failed to join, and what all of them can do.
Result<Join::Outcome> Join::Agree(const MaybeError& attached, const MaybeError& connected) {
  const MaybeError& error = connected ? connected : attached;
  bool arenas = made_->memory_ != nullptr && made_->group_ != nullptr;
  for (int i = 0; arenas && i < made_->places_.local_size(); ++i) {
    arenas &= i == made_->places_.local || made_->memory_->Direct(i, 0) != nullptr;
  }
  const bool may_read = made_->group_ != nullptr && MayRead();
  auto texts = bootstrap_.Exchange(
      Pack({error ? std::to_string(error->code) : "0", error ? error->message : "",
            connected ? "1" : "0", may_read ? "1" : "0", arenas ? "1" : "0"}),
      deadline_);
  if (!texts.ok()) return texts.error();
  std::vector<std::vector<std::string>> all;
  for (size_t r = 0; r < texts->size(); ++r) {
    const auto fields = Unpack((*texts)[r], 5);
    if (!fields) return BadRecord(static_cast<int>(r));
    all.push_back(*fields);
  }
  if (connected) return *connected;
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r][2] == "0") continue;
    return Error{static_cast<dtrain_status>(NumberOf<int>(all[r][0])),
                 "rank " + std::to_string(r) + " failed: " + all[r][1]};
  }
  made_->direct_ = true;
  bool shared = true;
  for (const auto& fields : all) {
    made_->direct_ &= fields[3] == "1";
    if (fields[4] != "1") shared = false;
    if (fields[0] != "0") return Outcome::kNoSharedMemory;
  }
  // An arena that not all of its node can see is of no use.
  if (!shared)
    made_->memory_ = std::make_unique<PeerMemory>(*made_->group_, std::vector<SharedMemory>());
  if (!shared) made_->arena_.reset();
  return Outcome::kDone;
}

}  // namespace dtrain::runtime
