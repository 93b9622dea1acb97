// SPDX-License-Identifier: Apache-2.0
#include "agent/connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/door.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/credentials.h"
#include "common/os/fd.h"
#include "common/os/heap.h"
#include "common/rpc/guarded_stream.h"

namespace dtrain::agent {
namespace {

// Of messages that are not whole yet: one of the longest, and some more. Of one user.
constexpr size_t kMostUnfinished = rpc::kMostMessage + (4 << 20);
// Between the end of a connection and giving its memory back.
constexpr Duration kTrimPause = std::chrono::seconds(1);
// So long after the last connection gRPC is let go, which wakes up three times a second where it
// is. A thread of its own may wait for ten seconds, and its end for that thread, and who comes then
// for the end.
constexpr Duration kRest = std::chrono::seconds(15);
// Of who has no call here. gRPC asks who has none at all to leave after 30 s, as is good manners;
// but a call whose message never comes is one to gRPC, and never gets to us. So this is longer, and
// four times what a launcher has for its whole way here (--connect-timeout).
constexpr Duration kSilence = std::chrono::seconds(40);
// Of one user: connections that are closed, whose calls gRPC has yet to end. Their places are free.
constexpr size_t kMostClosings = 256;
constexpr char kGrpc[] = "h2";
constexpr char kHttp[] = "http/1.1";

// Whether there is such an account was not to be found out.
bool CouldNotBeAsked(const absl::Status& found) { return !found.ok() && !absl::IsNotFound(found); }

// Who comes by a unix socket is one, however many processes he has.
std::string OriginOf(const auth::Identity& identity) {
  return absl::StrCat("user ", identity.name);
}

// What a client on the other end of `socket` may call us: what our certificate does, and the
// address that it found us at. A page of a name that leads here since yesterday is of neither.
std::vector<std::string> HostsOf(const tls::Certificate& own, int socket) {
  std::vector<std::string> out = {"localhost"};
  out.insert(out.end(), own.dns_names.begin(), own.dns_names.end());
  out.insert(out.end(), own.addresses.begin(), own.addresses.end());
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&local), &size) != 0) return out;
  const std::string address = AddressText(local);
  // Of IPv4 on a socket for both.
  out.emplace_back(absl::StripPrefix(address, "::ffff:"));
  return out;
}

// An address; of IPv6 its network, of which a host may have as many addresses as it likes.
std::string SourceOf(const std::string& address) {
  in6_addr v6;
  if (inet_pton(AF_INET6, address.c_str(), &v6) != 1 || IN6_IS_ADDR_V4MAPPED(&v6)) return address;
  std::memset(v6.s6_addr + 8, 0, 8);
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &v6, text, sizeof(text));
  return absl::StrCat(text, "/64");
}

}  // namespace

// gRPC works on its stream; a duplicate tells when the peer has gone.
struct Connections::Connection {
  std::string origin;  // "user 1000", an address
  Ticket place;
  std::shared_ptr<const tls::Context> context;  // of its TLS
  bool shaken = false;                          // and has said who it is
  bool is_http = false;                         // and has its place for its TLS only
  std::vector<std::string> hosts;               // by which an HTTP client may have called us
  // False once it is closed: its stream may still have a word.
  std::shared_ptr<bool> here = std::make_shared<bool>(true);
  // Of a unix socket, the same one: it holds that open, so it goes when this is closed.
  std::shared_ptr<spawn::Accepted> accepted;
  os::UniqueFd watched;
  std::unique_ptr<loop::FdWatch> hangup;
  std::unique_ptr<session::AgentService> service;
  std::shared_ptr<rpc::Quota> quota;
  std::unique_ptr<rpc::StreamServer> server;
  std::unique_ptr<loop::Timer> silence;
  // At most one of them, which then tells of the end.
  std::unique_ptr<tls::Stream> tls;
  std::unique_ptr<rpc::GuardedStream> guard;
};

Connections::Connections(loop::Loop& loop, session::Sessions& sessions,
                         answers::NodeAnswers& answers)
    : loop_(loop),
      sessions_(sessions),
      answers_(answers),
      accounts_(loop),
      http_(http::Server::MakeWithoutDoor(loop)) {
  policy_.agent_uid = geteuid();
}

Connections::~Connections() = default;

std::optional<Connections::Ticket> Connections::TakePlace(Pool pool, const std::string& origin,
                                                          auth::Places::Rank rank) {
  if (const auto closing = closings_->find(origin);
      closing != closings_->end() && closing->second >= kMostClosings) {
    Refuse(origin, absl::StrCat(closing->second, " of its connections are still being closed"));
    return std::nullopt;
  }
  auto ticket = places_.Take(pool, origin, rank);
  if (ticket.ok()) return *std::move(ticket);
  Refuse(origin, ticket.status().message());
  return std::nullopt;
}

// A flood of strangers makes room itself, and a handshake is a matter of milliseconds. Many users
// may share a source, a login node, with one who floods: so first the oldest goes that has not even
// begun, and of those that have begun any, as the oldest would always be the slowest, and new ones
// come as fast as somebody likes.
std::optional<Connections::Ticket> Connections::TakeHandshake(const std::string& address) {
  const std::string source = SourceOf(address);
  if (const std::string who = places_.WhoIsToYield(Pool::kHandshake, source); !who.empty()) {
    std::vector<Place> begun;
    Place one = connections_.end();
    for (Place each = connections_.begin(); each != connections_.end(); ++each) {
      if ((*each)->tls == nullptr || (*each)->shaken || (*each)->place.of() != who) continue;
      if (!(*each)->tls->heard()) {
        one = each;
        break;
      }
      begun.push_back(each);
    }
    if (one == connections_.end() && !begun.empty()) {
      one = begun[static_cast<uint8_t>(os::RandomBytes(1)[0]) % begun.size()];
    }
    if (one != connections_.end()) {
      Refuse((*one)->origin,
             "it has not identified itself, and others are waiting for a connection");
      Close(one);
    }
  }
  auto ticket = places_.Take(Pool::kHandshake, source);
  if (ticket.ok()) return *std::move(ticket);
  Refuse(address, ticket.status().message());
  return std::nullopt;
}

auth::Places::Rank Connections::RankOf(const auth::UnixPeer& peer) const {
  if (peer.uid == 0 || peer.uid == policy_.agent_uid) return auth::Places::Rank::kAdmin;
  const bool resumes =
      sessions_.Awaits([&](const session::Owner& owner) { return owner.uid == peer.uid; });
  return resumes ? auth::Places::Rank::kResumes : auth::Places::Rank::kOrdinary;
}

auth::Places::Rank Connections::RankOf(const tls::Certificate& peer) const {
  if (peer.kind == tls::Kind::kAdmin) return auth::Places::Rank::kAdmin;
  const std::string account = policy_.accounts.AccountFor(peer.name);
  const bool resumes =
      peer.kind == tls::Kind::kUser &&
      sessions_.Awaits([&](const session::Owner& owner) { return owner.name == account; });
  return resumes ? auth::Places::Rank::kResumes : auth::Places::Rank::kOrdinary;
}

rpc::FrameGuard Connections::GuardFor(const std::string& origin) {
  std::erase_if(unfinished_, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<rpc::SharedLimit>& known = unfinished_[origin];
  std::shared_ptr<rpc::SharedLimit> shared = known.lock();
  if (shared == nullptr) known = shared = std::make_shared<rpc::SharedLimit>(kMostUnfinished);
  return rpc::FrameGuard(std::move(shared));
}

std::shared_ptr<rpc::Quota> Connections::QuotaFor(const std::string& origin) {
  std::erase_if(quotas_, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<rpc::Quota>& known = quotas_[origin];
  std::shared_ptr<rpc::Quota> shared = known.lock();
  if (shared == nullptr) known = shared = std::make_shared<rpc::Quota>();
  return shared;
}

// Its place is taken before its account is looked up, which may take a while.
void Connections::Identify(Pool pool, loop::StrangersSocket socket, Identified then) {
  auto credentials = os::PeerOf(socket.get());
  if (!credentials.ok()) return log::Error(credentials.status().message());
  const auth::UnixPeer peer{credentials->uid, credentials->gid,
                            static_cast<uint32_t>(credentials->pid)};
  const std::string origin = absl::StrCat("user ", peer.uid);
  std::optional<Ticket> place = TakePlace(pool, origin, RankOf(peer));
  if (!place.has_value()) return;
  accounts_.Find(
      peer.uid, [this, peer, origin, socket = std::move(socket), place = *std::move(place),
                 then = std::move(then)](absl::StatusOr<os::Account> found) mutable {
        auto identity = auth::IdentityOfUnixPeer(peer, found.ok() ? found->name : "", policy_);
        if (!identity.ok()) return Refuse(origin, identity.status().message());
        if (CouldNotBeAsked(found.status()))
          identity->no_account = std::string(found.status().message());
        then(std::move(socket), *std::move(identity), std::move(place));
      });
}

void Connections::AdmitUnix(loop::StrangersSocket socket) {
  Identify(Pool::kUnix, std::move(socket),
           [this](loop::StrangersSocket known, auth::Identity identity, Ticket ticket) {
             auto place = connections_.insert(connections_.end(), std::make_unique<Connection>());
             (*place)->origin = OriginOf(identity);
             (*place)->place = std::move(ticket);
             if (policy_.for_all) {
               (*place)->accepted = std::make_shared<spawn::Accepted>(
                   spawn::Accepted{os::UniqueFd(fcntl(known.get(), F_DUPFD_CLOEXEC, 0))});
               if (!(*place)->accepted->socket) {
                 Refuse((*place)->origin, "out of file descriptors (RLIMIT_NOFILE)");
                 return Close(place);
               }
             }
             // Who may end the agent need not wear it out.
             os::UniqueFd stream = identity.role == auth::Role::kAdmin
                                       ? known.Release()
                                       : Guard(place, std::move(known));
             stream ? Serve(place, std::move(identity), std::move(stream)) : Close(place);
           });
}

void Connections::AdmitHttp(loop::StrangersSocket socket) {
  Identify(Pool::kLookup, std::move(socket),
           [this](loop::StrangersSocket known, auth::Identity identity, const Ticket&) {
             const std::string origin = OriginOf(identity);
             const bool is_admin = identity.role == auth::Role::kAdmin;
             if (!http_->Admit(std::move(known), origin, {},
                               answers_.HandlerFor(std::move(identity)), is_admin)) {
               Refuse(origin, "too many HTTP connections are here");
             }
           });
}

void Connections::SetTls(std::shared_ptr<const tls::Context> context) {
  tls_ = std::move(context);
  for (Place place = connections_.begin(); place != connections_.end();) {
    const Place one = place++;
    if ((*one)->tls == nullptr) continue;
    if (tls_ == nullptr) {
      Refuse((*one)->origin, "this agent no longer accepts TCP connections");
      Close(one);
      continue;
    }
    if (!(*one)->shaken) continue;
    if (const absl::Status still = (*one)->tls->CheckAgain(*tls_); !still.ok()) {
      Refuse((*one)->origin, still.message());
      Close(one);
    }
  }
}

void Connections::AdmitTcp(os::UniqueFd socket, const std::string& address) {
  if (tls_ == nullptr) return Refuse(address, "this agent no longer accepts TCP connections");
  std::optional<Ticket> ticket = TakeHandshake(address);
  if (!ticket.has_value()) return;
  auto place = connections_.insert(connections_.end(), std::make_unique<Connection>());
  (*place)->origin = address;
  (*place)->place = *std::move(ticket);
  (*place)->context = tls_;
  (*place)->hosts = HostsOf(tls_->own(), socket.get());
  tls::Stream::Callbacks callbacks;
  callbacks.on_ready = [this, place](tls::Ready ready) { OnTlsReady(place, std::move(ready)); };
  callbacks.on_closed = [this, place, here = (*place)->here](absl::Status why) {
    if (!*here) return;
    const bool unserved = !why.ok() && (*place)->server == nullptr && !(*place)->is_http;
    if (unserved || absl::IsResourceExhausted(why)) Refuse((*place)->origin, why.message());
    Close(place);
  };
  (*place)->tls = tls::Stream::Accept(loop_, *tls_, std::move(socket), std::move(callbacks));
}

void Connections::OnTlsReady(Place place, tls::Ready ready) {
  const std::string origin = (*place)->origin;
  if (ready.alpn != kGrpc && ready.alpn != kHttp) {
    Refuse(origin, "it speaks neither gRPC nor HTTP (ALPN h2, http/1.1)");
    return Close(place);
  }
  (*place)->shaken = true;
  // The files were read again meanwhile.
  if ((*place)->context != tls_ && tls_ != nullptr) {
    if (const absl::Status still = (*place)->tls->CheckAgain(*tls_); !still.ok()) {
      Refuse(origin, still.message());
      return Close(place);
    }
  }
  const std::string who =
      absl::StrCat(tls::KindName(ready.peer.kind), " ", Escape(ready.peer.name, 64));
  std::optional<Ticket> ticket = TakePlace(Pool::kTls, who, RankOf(ready.peer));
  if (!ticket.has_value()) return Close(place);
  (*place)->place = *std::move(ticket);
  // From the first byte on, whoever it is.
  if (ready.alpn == kGrpc) {
    (*place)->tls->Inspect(
        [guard = GuardFor(who)](absl::string_view bytes) mutable { return guard.Take(bytes); });
  }
  const std::string name = policy_.accounts.AccountFor(ready.peer.name);
  accounts_.Find(name, [this, place, here = (*place)->here,
                        ready = std::move(ready)](absl::StatusOr<os::Account> found) mutable {
    if (*here) OnAccount(place, std::move(ready), found);
  });
}

void Connections::OnAccount(Place place, tls::Ready ready,
                            const absl::StatusOr<os::Account>& found) {
  const std::string origin = (*place)->origin;
  auto identity = auth::IdentityOfCertificate(
      {std::string(tls::KindName(ready.peer.kind)), ready.peer.name, ready.peer.serial}, origin,
      policy_, [&](absl::string_view) -> std::optional<auth::Account> {
        if (!found.ok()) return std::nullopt;
        return auth::Account{found->name, found->uid, found->gid};
      });
  if (!identity.ok()) {
    Refuse(origin, identity.status().message());
    return Close(place);
  }
  const bool looks_only = identity->role == auth::Role::kObserver;
  if (CouldNotBeAsked(found.status()) && !looks_only) {
    identity->no_account = std::string(found.status().message());
  }
  if (ready.alpn == kGrpc) return Serve(place, *std::move(identity), std::move(ready.plain));
  // The end of what it is served ends its TLS, which closes the connection.
  (*place)->is_http = true;
  const bool is_admin = identity->role == auth::Role::kAdmin;
  if (!http_->Admit(loop::StrangersSocket(std::move(ready.plain)), (*place)->place.of(),
                    std::move((*place)->hosts), answers_.HandlerFor(*std::move(identity)),
                    is_admin)) {
    Refuse(origin, "too many HTTP connections are here");
    Close(place);
  }
}

os::UniqueFd Connections::Guard(Place place, loop::StrangersSocket socket) {
  auto made =
      rpc::GuardedStream::Make(loop_, std::move(socket), GuardFor((*place)->place.of()),
                               [this, place, here = (*place)->here](const absl::Status& why) {
                                 if (!*here) return;
                                 if (absl::IsResourceExhausted(why) || absl::IsDataLoss(why))
                                   Refuse((*place)->origin, why.message());
                                 Close(place);
                               });
  if (!made.ok()) {
    Refuse((*place)->origin, made.status().message());
    return {};
  }
  (*place)->guard = std::move(made->guard);
  return std::move(made->stream);
}

void Connections::Serve(Place place, auth::Identity peer, os::UniqueFd stream) {
  Connection& connection = **place;
  connection.service = std::make_unique<session::AgentService>(
      loop_, sessions_, std::move(peer),
      [this, place, here = connection.here] {
        if (!*here) return;
        Refuse((*place)->origin, "it opens one session after another on one connection");
        Close(place);
      },
      connection.accepted != nullptr ? std::make_optional<spawn::Connected>(connection.accepted)
                                     : std::nullopt);
  const bool tells_its_end = connection.tls != nullptr || connection.guard != nullptr;
  if (!tells_its_end) {
    connection.watched.Reset(fcntl(stream.get(), F_DUPFD_CLOEXEC, 0));
    if (!connection.watched) {
      Refuse(connection.origin, "out of file descriptors (RLIMIT_NOFILE)");
      return Close(place);
    }
  }
  if (!grpc_) grpc_.emplace();
  rest_.Cancel();
  connection.quota = QuotaFor(connection.place.of());
  connection.server = std::make_unique<rpc::StreamServer>(*connection.service, std::move(stream),
                                                          connection.quota.get());
  connection.silence = std::make_unique<loop::Timer>(loop_);
  CloseWhenSilent(place);
  if (tells_its_end) return;
  connection.hangup = std::make_unique<loop::FdWatch>(loop_, connection.watched.get());
  connection.hangup->OnHangup([this, place] { Close(place); });
}

void Connections::CloseWhenSilent(Place place) {
  const TimePoint until = (*place)->service->LastCall() + kSilence;
  if (loop_.Now() < until) {
    return (*place)->silence->At(until, [this, place] { CloseWhenSilent(place); });
  }
  Refuse((*place)->origin, "no complete call arrived on its connection for 40 s");
  Close(place);
}

void Connections::Refuse(const std::string& origin, absl::string_view why) {
  if (auto line = refusals_.Line(loop_.Now(), origin, why)) log::Warn(*line);
}

void Connections::Close(Place place) {
  *(*place)->here = false;
  (*place)->hangup.reset();
  (*place)->silence.reset();
  (*place)->accepted.reset();
  const std::string of = (*place)->place.of();
  (*place)->place = Ticket();  // here: places are the loop's, and whoever comes next needs it now
  // Posted: the stream may be calling us.
  loop_.Post([tls = std::shared_ptr<tls::Stream>(std::move((*place)->tls)),
              guard = std::shared_ptr<rpc::GuardedStream>(std::move((*place)->guard))] {});
  // gRPC's shutdown waits for its threads, and these may wait for our loop.
  ++(*closings_)[of];
  closing_.Run([connection = std::shared_ptr<Connection>(std::move(*place)), of, &loop = loop_,
                closings = closings_]() mutable {
    connection->server.reset();
    loop.Post([of, closings] {
      const auto mine = closings->find(of);
      if (--mine->second == 0) closings->erase(mine);
    });
  });
  connections_.erase(place);
  if (connections_.empty()) {
    rest_.After(kRest, [this] {
      if (connections_.empty()) grpc_.reset();
    });
  }
  // Whoever sent much nonsense leaves no mark. gRPC frees its calls a while after: the second time
  // is a whole pause after the last end.
  if (std::exchange(trims_due_, 2) == 0) TrimSoon();
}

void Connections::TrimSoon() {
  trim_.After(kTrimPause, [this] {
    closing_.Run(os::TrimHeap);
    if (--trims_due_ > 0) TrimSoon();
  });
}

}  // namespace dtrain::agent
