// SPDX-License-Identifier: Apache-2.0
// An agent that lies. `--rsh` runs it in place of a way to a host; its stdin is the stream's
// socket. Words NAME=VALUE say what about:
//   job, attempt, incarnation  what it answers to the Hello, instead of the Hello's own
//   address                    the only one it has, on its eth0
//   output=RANK:STREAM:OFFSET  what its first piece of output is, two of which it sends
//   boot                       which machine it is on, as the kernel tells
//   again=1                    once its workers run, it joins again, as another machine
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/loop/loop.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_carrier.h"
#include "common/rpc/server_stream.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "tests/cluster/programs/fake_link.h"

namespace dtrain {
namespace {

using Service = v1::Agent::WithRawCallbackMethod_Session<
    v1::Agent::WithRawCallbackMethod_Logs<v1::Agent::Service>>;

// Also what it would have a shepherd for.
class FakeAgent final : public Service {
 public:
  FakeAgent(loop::Loop& loop, std::map<std::string, std::string> words)
      : loop_(loop), words_(std::move(words)) {}

  rpc::ServerCarrier::Reactor* Session(grpc::CallbackServerContext*) override {
    return rpc::ServerCarrier::New(loop_, [this](std::shared_ptr<rpc::ServerCarrier> stream) {
      stream_ = std::move(stream);
      link_.emplace(
          loop_, stream_,
          FakeLink::Handlers{[this](const v1::Hello& hello) {
                               hello_ = hello;
                               link_->SayAsAgent(Welcome(hello, Word("boot", "boot")));
                             },
                             [this](const v1::SessionRequest& request) { OnRequest(request); },
                             [this](const v1::JobRequest& request) {
                               if (request.has_start()) Start(request.start());
                               if (request.has_stop()) Stop();
                             },
                             [this] { loop_.Stop(); }});
    });
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Logs(grpc::CallbackServerContext*,
                                                   const grpc::ByteBuffer* request) override {
    return Writer::New<v1::LogsRequest>(
        loop_, *request, [this](std::shared_ptr<Writer> writer, const v1::LogsRequest&) {
          logs_ = std::move(writer);
          unsigned rank = 0, stream = 0, offset = 0;
          if (std::sscanf(Word("output", "").c_str(), "%u:%u:%u", &rank, &stream, &offset) == 3) {
            chunk_.set_rank(rank);
            chunk_.set_stream(static_cast<v1::StreamKind>(stream));
            chunk_.set_offset(offset);
            chunk_.set_data("a lie\n");
            logs_->Write(chunk_, [this](bool ok) {
              if (ok) logs_->Write(chunk_, [](bool) {});
            });
          }
          if (ended_) EndLogs();
        });
  }

 private:
  using Writer = rpc::ServerWriter<v1::LogChunk>;

  void OnRequest(const v1::SessionRequest& request) {
    if (request.has_probe()) link_->SayAsAgent(AllReached(request.probe()));
    if (request.has_hold_ports()) link_->SayAsAgent(Ports());
    if (request.has_goodbye()) {
      EndLogs();
      stream_->Finish(absl::OkStatus());
      stream_->WhenOver([this] { loop_.Stop(); });
    }
  }

  std::string Word(const std::string& name, const std::string& otherwise) const {
    const auto it = words_.find(name);
    return it == words_.end() ? otherwise : it->second;
  }

  v1::SessionEvent Welcome(const v1::Hello& hello, const std::string& boot_id) const {
    v1::SessionEvent event;
    v1::Welcome& welcome = *event.mutable_welcome();
    welcome.set_job_id(Word("job", hello.job_id()));
    welcome.set_attempt(
        static_cast<uint32_t>(std::stoul(Word("attempt", std::to_string(hello.attempt())))));
    welcome.set_incarnation(Word("incarnation", hello.incarnation()));
    v1::Inventory& inventory = *welcome.mutable_inventory();
    inventory.set_hostname("fake");
    inventory.set_boot_id(boot_id);
    inventory.set_network_namespace(1);
    inventory.set_allowed_cpus("0-3");
    inventory.set_probe_port(9);
    inventory.set_probe_reply(std::string(32, 'r'));
    v1::Interface& eth0 = *inventory.add_interfaces();
    eth0.set_name("eth0");
    eth0.set_up(true);
    eth0.set_physical(true);
    v1::Address& address = *eth0.add_addresses();
    address.set_ip(Word("address", "10.77.0.99"));
    address.set_prefix_length(24);
    return event;
  }

  static v1::SessionEvent AllReached(const v1::ProbeRequest& request) {
    v1::SessionEvent event;
    for (const v1::ProbeTarget& target : request.targets()) {
      v1::ProbeOutcome& outcome = *event.mutable_probe_report()->add_outcomes();
      outcome.set_node(target.node());
      outcome.set_ip(target.ip());
      outcome.set_reached(true);
    }
    return event;
  }

  static v1::SessionEvent Ports() {
    v1::SessionEvent event;
    for (uint32_t port : {40001u, 40002u, 40003u}) event.mutable_ports_held()->add_ports(port);
    return event;
  }

  void Start(const v1::JobPart& part) {
    part_ = part;
    v1::JobEvent event;
    for (const v1::WorkerSpec& worker : part_.workers()) {
      v1::WorkerStarted& started = *event.mutable_started()->add_workers();
      started.set_rank(worker.rank());
      started.set_pid(1000 + worker.rank());
    }
    link_->SayAsShepherd(event);
    if (!Word("again", "").empty()) link_->SayAsAgent(Welcome(hello_, "another boot"));
  }

  void Stop() {
    for (const v1::WorkerSpec& worker : part_.workers()) {
      v1::JobEvent event;
      event.mutable_exit()->set_rank(worker.rank());
      event.mutable_exit()->set_signal(15);
      event.mutable_exit()->set_told_to_stop(true);
      link_->SayAsShepherd(event);
    }
    part_.clear_workers();
    v1::JobEvent finished;
    finished.mutable_finished();
    link_->SayAsShepherd(finished);
    v1::SessionEvent released;
    released.mutable_released();
    link_->SayAsAgent(released);
    EndLogs();
  }

  void EndLogs() {
    ended_ = true;
    if (logs_ != nullptr) logs_->Finish(absl::OkStatus());
  }

  loop::Loop& loop_;
  const std::map<std::string, std::string> words_;
  std::shared_ptr<rpc::ServerCarrier> stream_;
  std::shared_ptr<Writer> logs_;
  std::optional<FakeLink> link_;
  v1::Hello hello_;
  v1::JobPart part_;
  v1::LogChunk chunk_;
  bool ended_ = false;  // nothing more to tell of its workers
};

// The launcher's script for a shell, which ends with its call of `dtrain`. Nothing follows it until
// it is answered.
bool ReadScript() {
  std::string line;
  for (char c; read(STDIN_FILENO, &c, 1) == 1;) {
    if (c != '\n') {
      line += c;
    } else if (line.rfind("dtrain ", 0) == 0) {
      return true;
    } else {
      line.clear();
    }
  }
  return false;
}

}  // namespace
}  // namespace dtrain

int main(int argc, char** argv) {
  std::map<std::string, std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals != std::string::npos) words[word.substr(0, equals)] = word.substr(equals + 1);
  }
  constexpr char kReady[] = "DTRAIN-AGENT/1 ready\n";
  if (!dtrain::ReadScript()) return 1;
  if (write(STDIN_FILENO, kReady, sizeof(kReady) - 1) < 0) return 1;
  dtrain::loop::Loop loop;
  dtrain::FakeAgent agent(loop, std::move(words));
  dtrain::rpc::StreamServer server(agent, dtrain::os::UniqueFd(dup(STDIN_FILENO)));
  // The launcher ends us by closing the stream; what it leaves to us is no longer than this.
  alarm(60);
  loop.Run();
  _exit(0);
}
