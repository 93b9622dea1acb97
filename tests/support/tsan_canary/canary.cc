// SPDX-License-Identifier: Apache-2.0
// Shows that ThreadSanitizer, with our suppressions, still finds a race and does not make one up.
//   tsan_canary thread    a race between two threads of ours
//   tsan_canary callback  a race with a gRPC callback of ours: after the call was started
//   tsan_canary posted    a race with a task of the loop: after it was posted from a callback
//   tsan_canary none      the same callback, and nothing touched after it can run
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <future>
#include <string_view>
#include <thread>

#include "common/base/check.h"
#include "common/loop/loop.h"
#include "common/os/fd.h"
#include "common/rpc/channel.h"
#include "dtrain/v1/agent.grpc.pb.h"

namespace dtrain::canary {
namespace {

class RefusingService final : public v1::Agent::CallbackService {
 public:
  using Reactor = grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>;
  Reactor* Session(grpc::CallbackServerContext*) override {
    struct Refusal final : Reactor {
      Refusal() { Finish(grpc::Status::OK); }
      void OnDone() override { delete this; }
    };
    return new Refusal;
  }
};

struct Reader final : grpc::ClientBidiReactor<v1::SessionRequest, v1::SessionEvent> {
  explicit Reader(std::function<void()> on_read) : on_read_done(std::move(on_read)) {}
  void OnReadDone(bool) override { on_read_done(); }
  void OnDone(const grpc::Status&) override { done.set_value(); }

  std::function<void()> on_read_done;
  std::promise<void> done;
  grpc::ClientContext context;
  v1::SessionEvent event;
};

// Starts a call whose OnReadDone calls `on_read`, then calls `meanwhile`.
void Call(std::function<void()> on_read, const std::function<void()>& meanwhile) {
  auto pair = os::SocketPair();
  DTRAIN_CHECK(pair.ok());
  RefusingService service;
  rpc::StreamServer server(service, std::move(pair->first));
  auto stub = v1::Agent::NewStub(rpc::MakeChannel(std::move(pair->second)));
  Reader reader(std::move(on_read));
  stub->async()->Session(&reader.context, &reader);
  reader.StartRead(&reader.event);
  reader.StartCall();
  meanwhile();
  reader.done.get_future().wait();
}

int Main(std::string_view mode) {
  int touched = 0;
  loop::Loop loop;
  if (mode == "thread") {
    std::thread other([&] { ++touched; });
    ++touched;
    other.join();
  } else if (mode == "callback") {
    // Relaxed, so that they order nothing, and each where nothing that orders comes in between.
    std::atomic<bool> started = false;
    std::atomic<bool> through = false;
    Call(
        [&] {
          while (!started.load(std::memory_order_relaxed)) std::this_thread::yield();
          ++touched;
          through.store(true, std::memory_order_relaxed);
        },
        [&] {
          started.store(true, std::memory_order_relaxed);
          while (!through.load(std::memory_order_relaxed)) std::this_thread::yield();
          ++touched;
        });
  } else if (mode == "posted") {
    // Relaxed, so that they order nothing: the task runs when the callback is through, and before
    // the callback's thread goes on to anything that would order the two.
    std::atomic<bool> through = false;
    std::atomic<bool> ran = false;
    Call(
        [&] {
          loop.Post([&] { ++touched, loop.Stop(); });
          ++touched;
          through.store(true, std::memory_order_relaxed);
          while (!ran.load(std::memory_order_relaxed)) std::this_thread::yield();
        },
        [&] {
          while (!through.load(std::memory_order_relaxed)) std::this_thread::yield();
          loop.Run();
          ran.store(true, std::memory_order_relaxed);
        });
  } else {
    ++touched;
    Call(
        [&] {
          ++touched;
          loop.Post([&] { loop.Stop(); });
        },
        [&] { loop.Run(); });
    ++touched;
  }
  std::printf("touched %d times\n", touched);
  return touched == 0 ? 1 : 0;
}

}  // namespace
}  // namespace dtrain::canary

int main(int argc, char** argv) { return dtrain::canary::Main(argc > 1 ? argv[1] : "none"); }
