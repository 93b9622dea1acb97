// SPDX-License-Identifier: Apache-2.0
// How an NcclCommunicator comes about and ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/nccl/nccl_communicator.h"

namespace dtrain::runtime {
namespace {

using std::chrono::steady_clock;

// Older ones report the end of a split before it has come.
constexpr int kSoundSplit = 21901;
// When one rank's part of a split has gone wrong, that of the others does so soon, or not at all.
constexpr std::chrono::seconds kOthersFail{3};

std::string HostName() {
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  return host;
}

// NCCL takes two ranks with equal host ids and GPUs for a mistake; 2.30 wants the second variable
// as well. Each rank counts as a machine of its own then, and talks to the others over sockets.
void PretendOwnHost() {
  const std::string host = "dtrain-" + HostName() + "-" + std::to_string(getpid());
  setenv("NCCL_HOSTID", host.c_str(), 1);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
}

// Where rank 0's NCCL awaits the others: a unique id is a random number and a socket address.
// Empty when this release keeps something else there.
std::string MeetingPoint(const std::string& unique_id) {
  sockaddr_storage address{};
  if (unique_id.size() < 8 + sizeof(sockaddr_in6)) return "";
  std::memcpy(&address, unique_id.data() + 8, sizeof(sockaddr_in6));
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    if (v4->sin_port == 0 || inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text)) == nullptr) {
      return "";
    }
    return std::string(text) + ":" + std::to_string(ntohs(v4->sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
  if (v6->sin6_port == 0 || inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text)) == nullptr) {
    return "";
  }
  return "[" + std::string(text) + "]:" + std::to_string(ntohs(v6->sin6_port));
}

std::string LateText(const std::string& me, const std::vector<Member>& members,
                     std::chrono::milliseconds limit) {
  const std::string point = MeetingPoint(members[0].unique_id);
  const std::string seconds = std::to_string(std::chrono::duration<double>(limit).count());
  return "NCCL did not connect the " + std::to_string(members.size()) + " ranks within " +
         seconds.substr(0, seconds.find('.') + 2) + " s: " + me +
         " still waits, and they meet at " + RankAt(0, members[0]) +
         (point.empty() ? "" : ", address " + point) +
         ". Check for a firewall between the hosts, or choose NCCL's network with "
         "NCCL_SOCKET_IFNAME. NCCL_DEBUG=INFO shows what it tries; "
         "DTRAIN_NCCL_INIT_SECONDS sets how long to wait";
}

// Known to be dangerous, and still used: this rank says so once.
void WarnOfVersion(int version) {
  const char* what = nullptr;
  if (version < 21901) {
    what =
        "does not report lost connections, or frees what it still uses when it aborts: a lost "
        "rank may go unnoticed until DTRAIN_COLLECTIVE_TIMEOUT_SECONDS has passed";
  } else if (version == 22501) {
    what = "may hang when it aborts: a rank's failure then ends the others with exit code 205";
  }
  static std::atomic<bool> warned{false};
  if (what == nullptr || warned.exchange(true)) return;
  std::fprintf(stderr,
               "dtrain: NCCL %s %s; install 2.26 or newer, or name it with "
               "DTRAIN_NCCL_LIBRARY\n",
               NcclVersionText(version).c_str(), what);
}

// A program may have reasons of its own; the launcher has chosen the one that is nearest.
void WarnOfStrays(const std::vector<Member>& members) {
  static std::atomic<bool> warned{false};
  const std::string strays = DescribeStrays(members);
  if (strays.empty() || warned.exchange(true)) return;
  std::fprintf(stderr,
               "dtrain: not on the GPUs that the launcher chose: %s. If that is not on purpose, "
               "leave CUDA_VISIBLE_DEVICES as it is and call cudaSetDevice with the number in "
               "DTRAIN_DEVICE, or not at all\n",
               strays.c_str());
}

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Make(FullBootstrap& bootstrap,
                                                                 Communicator* control,
                                                                 const NcclOptions& options,
                                                                 OnFailure on_failure,
                                                                 Deadline deadline) {
  Member mine;
  mine.job_rank = options.job_rank;
  mine.host = HostName();
  mine.node = options.node;
  mine.share_gpu = options.share_gpu;
  std::shared_ptr<Session> session;
  const MaybeError error = Prepare(options, bootstrap.rank(), mine, session);
  // A rank that cannot take part says so, or the others would wait for it.
  if (error) mine.error = error->message;
  auto records = bootstrap.Exchange(EncodeMember(mine), deadline);
  if (!records.ok()) return records.error();
  std::vector<Member> members;
  for (size_t r = 0; r < records->size(); ++r) {
    auto member = DecodeMember((*records)[r]);
    if (!member) {
      return Error{DTRAIN_ERROR_INTERNAL, "rank " + std::to_string(r) +
                                              " sent a record that this libdtrain cannot read; "
                                              "do all ranks have the same version?"};
    }
    members.push_back(std::move(*member));
  }
  if (error) return *error;
  if (MaybeError refused = CheckMembers(members)) return *refused;
  if (bootstrap.rank() == 0) {
    WarnOfVersion(session->libraries().nccl.version);
    WarnOfStrays(members);
  }
  session->SetOnFailure(std::move(on_failure));
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(std::move(session), bootstrap.rank(), bootstrap.size(), options));
  // All have passed the checks, and are about to call NCCL, which waits forever for a rank that
  // does not come.
  if (auto fence = bootstrap.Exchange("", deadline); !fence.ok()) return fence.error();
  if (MaybeError failed = made->Connect(members, control, deadline)) return *failed;
  return made;
}

// What this rank can do alone.
MaybeError NcclCommunicator::Prepare(const NcclOptions& options, int rank, Member& mine,
                                     std::shared_ptr<Session>& session) {
  auto libraries = LoadLibraries();
  if (!libraries.ok()) return libraries.error();
  if (options.share_gpu) PretendOwnHost();
  const auto get = [](const char* name) { return std::getenv(name); };
  const char* blocking = get("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && std::strcmp(blocking, "0") == 0) {
    return Error{DTRAIN_ERROR_ENVIRONMENT,
                 "NCCL_COMM_BLOCKING=0 makes NCCL's calls non-blocking, which libdtrain does not "
                 "use: unset it"};
  }
  const char* several = get("NCCL_MULTI_RANK_GPU_ENABLE");
  mine.several_per_gpu = several != nullptr && std::strcmp(several, "1") == 0;
  mine.settings = NcclSettings(get);
  const Pinning& pinning = options.pinning;
  // The job's own communicator chooses. A group may be made by any thread, whatever that uses.
  const auto open = [&] {
    return Device::Open((*libraries)->cuda, options.local_rank, options.device, pinning);
  };
  auto joined = Session::Join(**libraries, open, options.longest_end);
  if (!joined.ok()) return joined.error();
  session = std::move(*joined);
  const Device& device = *session->device();
  mine.uuid = device.uuid();
  mine.pinned = pinning.own;
  mine.stray = std::none_of(pinning.visible.begin(), pinning.visible.end(),
                            [&](const std::string& gpu) { return SameGpu(gpu, mine.uuid); });
  mine.pci = device.pci();
  const NcclApi& nccl = (*libraries)->nccl;
  mine.nccl_version = nccl.version;
  const bool is_new = session->IsNew();
  if (rank != 0) return std::nullopt;
  const auto id = std::make_shared<abi::NcclUniqueId>();
  const auto get_id = [id, &nccl] { return nccl.get_unique_id(id.get()); };
  constexpr char kName[] = "ncclGetUniqueId";
  const Deadline deadline = steady_clock::now() + options.init_timeout;
  const Device::Scope scope(device);
  // NCCL's first call may change the environment: it happens on the program's thread.
  MaybeError error = is_new ? session->CallHere(kName, get_id, deadline)
                            : session->Try(kName, get_id, deadline, "it did not return");
  if (!error) mine.unique_id.assign(id->internal, sizeof(id->internal));
  return error;
}

MaybeError NcclCommunicator::Connect(const std::vector<Member>& members, Communicator* control,
                                     Deadline deadline) {
  for (size_t r = 0; r < members.size(); ++r) {
    names_.push_back(RankAt(static_cast<int>(r), members[r]));
  }
  const std::string& me = names_[static_cast<size_t>(rank_)];
  abi::NcclUniqueId id;
  if (members[0].unique_id.size() != sizeof(id.internal)) {
    return Error{DTRAIN_ERROR_INTERNAL, "rank 0 sent no unique id of NCCL"};
  }
  std::memcpy(id.internal, members[0].unique_id.data(), sizeof(id.internal));
  handle_ =
      std::make_shared<NcclHandle>(session_, me, control, options_.group, options_.fine_times);
  staging_ = std::make_unique<Staging>(handle_);
  const auto limit = options_.init_timeout + size_ * options_.init_timeout_per_rank;
  const Deadline end = std::min(deadline, steady_clock::now() + limit);
  // The loss of a rank counts from here on.
  if (control != nullptr) control->SetOccupied(true);
  MaybeError error = handle_->Init(id, rank_, size_, end, LateText(me, members, limit));
  if (control != nullptr) control->SetOccupied(false);
  // The others still wait within NCCL, for ever, unless they are told.
  if (error && control != nullptr) control->Abort({error->code, me + ": " + error->message});
  return error ? error : handle_->Open();
}

bool NcclCommunicator::CanSplit() const {
  const NcclApi& nccl = session_->libraries().nccl;
  return nccl.split != nullptr && nccl.version >= kSoundSplit;
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::Split(int color, int key, const Part& made,
                                                          Deadline deadline, MaybeError& error) {
  NcclOptions options = options_;
  options.group = made.group;
  std::unique_ptr<NcclCommunicator> part(
      new NcclCommunicator(session_, made.rank, made.size, options));
  const std::string& me = names_[static_cast<size_t>(rank_)];
  part->handle_ =
      std::make_shared<NcclHandle>(session_, me, made.control, options.group, options_.fine_times);
  part->staging_ = std::make_unique<Staging>(part->handle_);
  const auto limit = options_.init_timeout + size_ * options_.init_timeout_per_rank;
  error =
      handle_->Split(color, key, *part->handle_, std::min(deadline, steady_clock::now() + limit));
  if (error) session_->BreakUnlessSettled(*error, kOthersFail);
  return part;
}

NcclCommunicator::~NcclCommunicator() {
  if (handle_ != nullptr && !handle_->sound()) session_->Settle();
  if (handle_ == nullptr) return;
  if (getpid() != pid_ || !handle_->Close()) {
    // A fork has no right to these, and after a call that hangs the next one would hang too.
    new std::shared_ptr<NcclHandle>(handle_);
    static_cast<void>(staging_.release());
    return;
  }
  GiveBackAll();
  const Device::Scope scope(*session_->device());
  staging_->Free();
}

std::string NcclCommunicator::Description() const {
  const Device& device = *session_->device();
  return "NCCL " + NcclVersionText(session_->libraries().nccl.version) + " on " + device.name() +
         " (" + device.uuid() + ", " + device.pci() + ")";
}

}  // namespace dtrain::runtime
