// SPDX-License-Identifier: Apache-2.0
// How an NcclCommunicator comes about and ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/nccl/nccl_communicator.h"

namespace dtrain::runtime {
namespace {

using std::chrono::steady_clock;

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
         ". Is a firewall between the hosts, or does NCCL use the wrong network "
         "(NCCL_SOCKET_IFNAME chooses it)? NCCL_DEBUG=INFO says what it tries, "
         "DTRAIN_NCCL_INIT_SECONDS how long to wait";
}

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Make(Bootstrap& bootstrap,
                                                                 const NcclOptions& options,
                                                                 Deadline deadline) {
  std::vector<Member> members;
  auto made = Gather(bootstrap, options, false, members, deadline);
  if (!made.ok()) return made;
  if (MaybeError failed = (*made)->Connect(members, deadline)) return *failed;
  return made;
}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::MakePart(Bootstrap& bootstrap,
                                                                     const NcclOptions& options,
                                                                     Deadline deadline) {
  std::vector<Member> members;
  return Gather(bootstrap, options, true, members, deadline);
}

// Everything but NCCL's own: the ranks know of each other, and watch over each other.
Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Gather(Bootstrap& bootstrap,
                                                                   const NcclOptions& options,
                                                                   bool is_part,
                                                                   std::vector<Member>& members,
                                                                   Deadline deadline) {
  Member mine;
  mine.host = HostName();
  mine.node = options.node;
  mine.share_gpu = options.share_gpu;
  std::unique_ptr<NcclCommunicator> made;
  auto libraries = LoadLibraries();
  MaybeError error;
  if (!libraries.ok()) {
    error = libraries.error();
  } else {
    made.reset(new NcclCommunicator(**libraries, bootstrap.rank(), bootstrap.size(), options));
    error = made->Prepare(mine, is_part);
  }
  // A rank that cannot take part says so, or the others would wait for it.
  if (error) mine.error = error->message;
  auto records = bootstrap.Exchange(EncodeMember(mine), deadline);
  if (!records.ok()) return records.error();
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
  if (MaybeError failed = made->Meet(members, deadline)) return *failed;
  return made;
}

MaybeError NcclCommunicator::Split(uint32_t color, NcclCommunicator* part, Deadline deadline) {
  const Deadline end = std::min(deadline, steady_clock::now() + options_.init_timeout);
  const Device::Scope scope(*device_);
  auto comm = handle_->Split(part == nullptr ? -1 : static_cast<int>(color),
                             part == nullptr ? 0 : part->rank_, end);
  if (!comm.ok()) return comm.error();
  if (part == nullptr) return std::nullopt;
  if (MaybeError error = part->handle_->Adopt(*comm, end)) return error;
  return part->MakeStream();
}

// What this rank can do alone.
MaybeError NcclCommunicator::Prepare(Member& mine, bool is_part) {
  if (options_.share_gpu) PretendOwnHost();
  auto device = Device::Open(libraries_.cuda, options_.local_rank, options_.device);
  if (!device.ok()) return device.error();
  device_ = std::move(*device);
  mine.uuid = device_->uuid();
  mine.pci = device_->pci();
  mine.nccl_version = libraries_.nccl.version;
  if (rank_ == 0 && !is_part) {
    const Device::Scope scope(*device_);
    abi::NcclUniqueId id;
    const int code = libraries_.nccl.get_unique_id(&id);
    if (code != abi::kNcclSuccess) {
      const char* text = libraries_.nccl.last_error(nullptr);
      return Error{DTRAIN_ERROR_DEVICE,
                   "ncclGetUniqueId: " + Printable(libraries_.nccl.error_string(code)) +
                       "; NCCL says: " + Printable(text == nullptr ? "" : text)};
    }
    mine.unique_id.assign(id.internal, sizeof(id.internal));
  }
  if (size_ == 1 || options_.address.empty()) return std::nullopt;
  auto alarm = Alarm::Listen(options_.address);
  if (!alarm.ok()) return alarm.error();
  alarm_ = std::move(*alarm);
  mine.ip = options_.address;
  mine.port = alarm_->port();
  mine.token = alarm_->token();
  return std::nullopt;
}

// The alarm's connections, and the watch over what comes.
MaybeError NcclCommunicator::Meet(const std::vector<Member>& members, Deadline deadline) {
  for (size_t r = 0; r < members.size(); ++r) {
    names_.push_back(RankAt(static_cast<int>(r), members[r]));
  }
  const bool all_listen = std::all_of(members.begin(), members.end(),
                                      [](const Member& member) { return member.port != 0; });
  if (!all_listen) alarm_.reset();
  if (alarm_ != nullptr) {
    const Deadline end = std::min(deadline, steady_clock::now() + options_.init_timeout);
    if (MaybeError error = alarm_->Connect(rank_, members, end)) return error;
  }
  const std::string& me = names_[static_cast<size_t>(rank_)];
  handle_ = std::make_shared<NcclHandle>(libraries_, device_, me, std::move(alarm_),
                                         options_.longest_end);
  if (!Watchdog::Add(handle_)) {
    return Error{DTRAIN_ERROR_RESOURCES, "no thread could be started for NCCL's watchdog"};
  }
  return std::nullopt;
}

MaybeError NcclCommunicator::Connect(const std::vector<Member>& members, Deadline deadline) {
  const Deadline end = std::min(deadline, steady_clock::now() + options_.init_timeout);
  const std::string& me = names_[static_cast<size_t>(rank_)];
  const Device::Scope scope(*device_);
  abi::NcclUniqueId id;
  if (members[0].unique_id.size() != sizeof(id.internal)) {
    return Error{DTRAIN_ERROR_INTERNAL, "rank 0 sent no unique id of NCCL"};
  }
  std::memcpy(id.internal, members[0].unique_id.data(), sizeof(id.internal));
  if (MaybeError error =
          handle_->Init(id, rank_, size_, end, LateText(me, members, options_.init_timeout))) {
    return error;
  }
  return MakeStream();
}

MaybeError NcclCommunicator::MakeStream() {
  const CudaApi& cuda = libraries_.cuda;
  staging_ = std::make_unique<Staging>(cuda, *handle_);
  int code = cuda.stream_create(&stream_, abi::kCuStreamNonBlocking);
  if (code == abi::kCudaSuccess) code = cuda.event_create(&done_, abi::kCuEventDisableTiming);
  if (code == abi::kCudaSuccess) return std::nullopt;
  return handle_->Fail({DTRAIN_ERROR_DEVICE, "making a stream failed: " + cuda.Text(code)});
}

NcclCommunicator::~NcclCommunicator() {
  if (device_ == nullptr) return;
  bool ended = getpid() == pid_;
  if (ended && handle_ != nullptr) {
    const Device::Scope scope(*device_);
    for (auto& [memory, block] : blocks_) Deregister(block);
    ended = handle_->Close();
  }
  if (!ended) {
    // A fork has no right to these, and after a call that hangs the next one would hang too.
    new std::shared_ptr<NcclHandle>(std::move(handle_));
    new std::shared_ptr<Device>(std::move(device_));
    static_cast<void>(staging_.release());
    static_cast<void>(alarm_.release());
    return;
  }
  const Device::Scope scope(*device_);
  for (const auto& [memory, block] : blocks_) Release(block);
  staging_.reset();
  if (done_ != nullptr) libraries_.cuda.event_destroy(done_);
  if (stream_ != nullptr) libraries_.cuda.stream_destroy(stream_);
}

std::string NcclCommunicator::Description() const {
  return "NCCL " + NcclVersionText(libraries_.nccl.version) + " on " + device_->name() + " (" +
         device_->uuid() + ", " + device_->pci() + ")";
}

}  // namespace dtrain::runtime
