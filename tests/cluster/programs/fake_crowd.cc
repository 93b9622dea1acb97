// SPDX-License-Identifier: Apache-2.0
// The agents of as many nodes as one likes, in one process, whose workers do nothing:
//   fake-crowd SOCKET NODES ENTRIES BYTES
// Takes the launcher's streams at SOCKET, where crowd_join.c brings them. When the workers of all
// NODES have been started, each node enters a fence with ENTRIES values of BYTES; when it is told
// all of them, its workers end with 0. ENTRIES 0: they never do. On stdout:
//   listening
//   started    all workers
//   released   all nodes have been told the values of all nodes
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/loop/loop.h"
#include "common/os/fd.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_carrier.h"
#include "common/rpc/server_stream.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "tests/cluster/programs/fake_link.h"

namespace dtrain {
namespace {

using Writer = rpc::ServerWriter<v1::LogChunk>;
using RawAgent = v1::Agent::WithRawCallbackMethod_Session<
    v1::Agent::WithRawCallbackMethod_Logs<v1::Agent::Service>>;

void Tell(const char* what) {
  std::puts(what);
  std::fflush(stdout);
}

struct Fence {
  size_t nodes = 0;
  size_t entries = 0;  // of each node
  size_t bytes = 0;    // of each
};

class Crowd;

class Node {
 public:
  Node(loop::Loop& loop, Crowd& crowd, size_t number, std::shared_ptr<rpc::ServerCarrier> stream)
      : crowd_(crowd),
        number_(number),
        link_(loop, stream,
              {[this](const v1::Hello& hello) { Join(hello); },
               [this](const v1::SessionRequest& request) { OnRequest(request); },
               [this](const v1::JobRequest& request) { OnJobRequest(request); },
               [stream] { stream->Finish(absl::OkStatus()); }}) {}
  void EnterFence();

 private:
  void OnRequest(const v1::SessionRequest& request);
  void OnJobRequest(const v1::JobRequest& request);
  void Join(const v1::Hello& hello);
  void Probe(const v1::ProbeRequest& request);
  void Start(const v1::JobPart& part);
  void OnRelease(const v1::FenceRelease& release);
  void EndWorkers(int signal);

  Crowd& crowd_;
  const size_t number_;
  FakeLink link_;
  std::vector<uint32_t> ranks_;
  size_t entries_ = 0;
};

class Crowd final : public RawAgent {
 public:
  Crowd(loop::Loop& loop, Fence fence) : loop_(loop), fence_(fence) {}

  rpc::ServerCarrier::Reactor* Session(grpc::CallbackServerContext*) override {
    return rpc::ServerCarrier::New(loop_, [this](std::shared_ptr<rpc::ServerCarrier> stream) {
      nodes_.push_back(std::make_unique<Node>(loop_, *this, nodes_.size(), std::move(stream)));
    });
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Logs(grpc::CallbackServerContext*,
                                                   const grpc::ByteBuffer* request) override {
    return Writer::New<v1::LogsRequest>(
        loop_, *request, [this](std::shared_ptr<Writer> writer, const v1::LogsRequest&) {
          logs_.push_back(std::move(writer));
          EndLogs();
        });
  }

  const Fence& fence() const { return fence_; }
  void OnStarted() {
    if (++started_ != fence_.nodes) return;
    Tell("started");
    if (fence_.entries == 0) return;
    for (const std::unique_ptr<Node>& node : nodes_) node->EnterFence();
  }
  void OnReleased() {
    if (++released_ == fence_.nodes) Tell("released");
  }
  void OnFinished() {
    ++finished_;
    EndLogs();
  }

 private:
  // Which node a stream of logs is of it does not say.
  void EndLogs() {
    if (finished_ < fence_.nodes) return;
    for (const std::shared_ptr<Writer>& writer : logs_) writer->Finish(absl::OkStatus());
    logs_.clear();
  }

  loop::Loop& loop_;
  const Fence fence_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::shared_ptr<Writer>> logs_;
  size_t started_ = 0, released_ = 0, finished_ = 0;
};

void Node::OnRequest(const v1::SessionRequest& request) {
  v1::SessionEvent event;
  switch (request.kind_case()) {
    case v1::SessionRequest::kProbe:
      return Probe(request.probe());
    case v1::SessionRequest::kHoldPorts:
      for (uint32_t i = 0; i < request.hold_ports().count(); ++i) {
        event.mutable_ports_held()->add_ports(40001 + i);
      }
      return link_.SayAsAgent(event);
    case v1::SessionRequest::kHeartbeat:
      return link_.Beat();
    default:
      return;
  }
}

void Node::OnJobRequest(const v1::JobRequest& request) {
  switch (request.kind_case()) {
    case v1::JobRequest::kStart:
      return Start(request.start());
    case v1::JobRequest::kFenceRelease:
      return OnRelease(request.fence_release());
    case v1::JobRequest::kStop:
      return EndWorkers(15);
    default:
      return;
  }
}

void Node::Join(const v1::Hello& hello) {
  v1::SessionEvent event;
  v1::Welcome& welcome = *event.mutable_welcome();
  welcome.set_job_id(hello.job_id());
  welcome.set_attempt(hello.attempt());
  welcome.set_incarnation(hello.incarnation());
  v1::Inventory& inventory = *welcome.mutable_inventory();
  inventory.set_hostname(absl::StrCat("fake", number_));
  inventory.set_boot_id(absl::StrCat("boot", number_));
  inventory.set_network_namespace(1);
  inventory.set_allowed_cpus("0-15");
  inventory.set_probe_port(9);
  inventory.set_probe_reply(std::string(32, 'r'));
  v1::Interface& eth0 = *inventory.add_interfaces();
  eth0.set_name("eth0");
  eth0.set_up(true);
  eth0.set_physical(true);
  v1::Address& address = *eth0.add_addresses();
  address.set_ip(absl::StrCat("10.88.", number_ / 250, ".", 1 + number_ % 250));
  address.set_prefix_length(16);
  link_.SayAsAgent(event);
}

void Node::Probe(const v1::ProbeRequest& request) {
  v1::SessionEvent event;
  event.mutable_probe_report();
  for (const v1::ProbeTarget& target : request.targets()) {
    v1::ProbeOutcome& outcome = *event.mutable_probe_report()->add_outcomes();
    outcome.set_node(target.node());
    outcome.set_ip(target.ip());
    outcome.set_reached(true);
  }
  link_.SayAsAgent(event);
}

void Node::Start(const v1::JobPart& part) {
  v1::JobEvent event;
  for (const v1::WorkerSpec& worker : part.workers()) {
    ranks_.push_back(worker.rank());
    v1::WorkerStarted& started = *event.mutable_started()->add_workers();
    started.set_rank(worker.rank());
    started.set_pid(1000 + worker.rank());
  }
  link_.SayAsShepherd(event);
  crowd_.OnStarted();
}

void Node::EnterFence() {
  v1::JobEvent event;
  event.mutable_fence_enter()->set_sequence(0);
  for (size_t i = 0; i < crowd_.fence().entries; ++i) {
    v1::KeyValue& entry = *event.mutable_fence_enter()->add_entries();
    entry.set_key(absl::StrCat("node-", number_, "-", i));
    entry.set_value(std::string(crowd_.fence().bytes, 'v'));
  }
  link_.SayAsShepherd(event);
}

void Node::OnRelease(const v1::FenceRelease& release) {
  entries_ += static_cast<size_t>(release.entries_size());
  if (entries_ != crowd_.fence().nodes * crowd_.fence().entries) return;
  crowd_.OnReleased();
  EndWorkers(0);
}

void Node::EndWorkers(int signal) {
  if (ranks_.empty()) return;
  for (const uint32_t rank : ranks_) {
    v1::JobEvent event;
    event.mutable_exit()->set_rank(rank);
    event.mutable_exit()->set_signal(signal);
    event.mutable_exit()->set_told_to_stop(signal != 0);
    link_.SayAsShepherd(event);
  }
  ranks_.clear();
  v1::JobEvent finished;
  v1::SessionEvent released;
  finished.mutable_finished();
  link_.SayAsShepherd(finished);
  released.mutable_released();
  link_.SayAsAgent(released);
  crowd_.OnFinished();
}

os::UniqueFd Listen(const char* path) {
  os::UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  DTRAIN_CHECK(std::strlen(path) < sizeof(address.sun_path));
  std::strcpy(address.sun_path, path);
  DTRAIN_CHECK(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  DTRAIN_CHECK(listen(listener.get(), 4096) == 0);
  return listener;
}

// The descriptor that one byte on `connection` brings.
os::UniqueFd TakeStream(int connection) {
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != 1) return {};
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return os::UniqueFd(fd);
}

void Serve(int listener, grpc::Server& server) {
  constexpr char kReady[] = "DTRAIN-AGENT/1 ready\n";
  const os::UniqueFd connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!connection) return;
  os::UniqueFd stream = TakeStream(connection.get());
  if (!stream || write(stream.get(), kReady, sizeof(kReady) - 1) < 0) return;
  DTRAIN_CHECK(os::SetNonBlocking(stream.get(), true).ok());
  grpc::AddInsecureChannelFromFd(&server, stream.Release());
}

}  // namespace
}  // namespace dtrain

int main(int argc, char** argv) {
  using namespace dtrain;
  if (argc != 5) {
    std::fprintf(stderr, "usage: fake-crowd SOCKET NODES ENTRIES BYTES\n");
    return 2;
  }
  loop::Loop loop;
  const auto number = [argv](int i) {
    return static_cast<size_t>(std::strtoul(argv[i], nullptr, 10));
  };
  Crowd crowd(loop, {number(2), number(3), number(4)});
  grpc::ServerBuilder builder;
  builder.RegisterService(&crowd);
  builder.SetMaxReceiveMessageSize(static_cast<int>(rpc::kMostMessage));
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const os::UniqueFd listener = Listen(argv[1]);
  loop::FdWatch watch(loop, listener.get());
  std::function<void()> listen = [&] {
    watch.OnReadable([&] {
      Serve(listener.get(), *server);
      listen();
    });
  };
  listen();
  Tell("listening");
  loop.Run();
}
