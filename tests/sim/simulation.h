// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "agent/session/session_core.h"
#include "agent/shepherd/shepherd_core.h"
#include "launcher/job/job_core.h"
#include "launcher/report/progress.h"

// A cluster in one process, by a clock of its own: the launcher's, the agents' and the shepherds'
// deciders as they are, and between them a network and machines that only cost time.
namespace dtrain::sim {

// What things take, as measured on a machine of two cores on 2026-11-22, release build.
struct Costs {
  Duration latency = std::chrono::microseconds(100);  // of a message, one way
  Duration launcher_message =
      std::chrono::microseconds(22);                   // of the launcher's loop, gRPC's share too
  Duration connect = std::chrono::microseconds(4100);  // of the launcher's loop: TCP with TLS
  Duration agent_start = std::chrono::milliseconds(15);
  Duration spawn = std::chrono::milliseconds(2);
  Duration run = std::chrono::seconds(1);  // of a worker, if nothing is said
};

struct Shape {
  size_t nodes = 0;
  uint32_t ranks = 8;         // of a node, each with a GPU
  size_t environment = 8000;  // bytes that are forwarded
  Costs costs;
  std::function<void(job::JobOptions&)> options;  // may be null
};

// What a whole run, or a part of it, took.
struct Bill {
  Duration launcher_cpu{};  // in JobCore and what observes it
  Duration nodes_cpu{};     // in SessionCore and ShepherdCore, of all nodes
  size_t messages = 0;      // both ways, but for beats: of these time makes more, not nodes
  size_t bytes_out = 0;     // of the launcher, a message to many once for each
  size_t bytes_made = 0;    // the same, without what several messages share
  size_t bytes_in = 0;
  size_t largest_message = 0;
  Duration simulated{};
};

class Simulation {
 public:
  explicit Simulation(Shape shape);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // Until the job is over, or `until` holds; false: nothing more would ever happen.
  bool Run(const std::function<bool()>& until = nullptr);
  bool RunUntil(job::State state) {
    return Run([this, state] { return core_->state() >= state; });
  }
  // Simulated time from here on.
  bool RunFor(Duration duration);

  // ---- what happens to it ----
  void BreakAllLinks(const std::function<std::string(size_t node)>& why);
  void Signal(int signal);
  // Every node tells what its ranks do, now.
  void SayProgress();
  // Every rank enters a fence with a value of so many bytes.
  void EnterFence(uint32_t sequence, size_t value_bytes);
  // Nobody hears anything of the nodes for so long; what they say meanwhile comes after it.
  void Silence(Duration duration);
  // How often each node refuses what it is asked to reserve, before it agrees.
  void RefuseReservations(int times) { refusals_ = times; }
  // Which nodes cannot be reached at all, with what error; set before the run.
  void CannotReach(std::function<std::optional<std::string>(size_t node)> why) {
    unreachable_ = std::move(why);
  }
  // A worker ends with this code after its time; by rank. Null: all with 0.
  void ExitCodes(std::function<int(uint32_t rank)> code) { exit_code_ = std::move(code); }
  // Workers run until they are told to end.
  void RunForever() { forever_ = true; }

  const job::JobCore& core() const { return *core_; }
  bool finished() const { return finished_; }
  TimePoint now() const { return now_; }
  // What has been spent since the last call.
  Bill Spent();
  const std::string& report() const { return report_; }

 private:
  struct Node;
  struct Later {
    TimePoint at;
    uint64_t order;
    std::function<void()> task;
    bool operator<(const Later& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  void At(TimePoint at, std::function<void()> task);
  void Feed(job::Event event);
  void Do(job::Action& action);
  // A message of so many bytes, of which `made` are for these alone.
  void Deliver(const std::vector<NodeId>& to, size_t bytes, size_t made,
               const std::function<void(size_t index)>& arrive);
  void DeliverToAgents(const std::vector<NodeId>& to, v1::SessionRequest request);
  void DeliverToShepherds(const std::vector<NodeId>& to,
                          const std::shared_ptr<const v1::JobRequest>& request, size_t made);
  void DeliverBeat(const std::vector<NodeId>& to);
  void Connect(size_t index);
  template <typename Event>
  void Say(size_t index, Event event, Duration after = {});
  template <typename Event>
  void Hear(size_t index, Event event);
  void FeedSession(size_t index, const session::Event& event);
  void DoSession(size_t index, session::Action& action);
  void ToShepherd(size_t index, const v1::JobRequest& request);
  void FeedShepherd(size_t index, const shepherd::Event& event);
  void DoShepherd(size_t index, const std::vector<shepherd::Action>& actions);
  void FromShepherd(size_t index, v1::JobEvent event);
  void EndWorker(size_t index, uint32_t rank, int code, int signal);
  void ArmSession(size_t index);
  v1::Inventory InventoryOf(size_t index) const;
  int64_t Wall(TimePoint at) const;

  const Shape shape_;
  const TimePoint start_{std::chrono::seconds(1000)};
  TimePoint now_ = start_;
  TimePoint launcher_free_ = start_;  // when its loop has done what it had
  TimePoint dials_free_ = start_;     // when it has made the connections that were begun
  TimePoint silent_until_ = start_;
  std::priority_queue<Later> queue_;
  uint64_t order_ = 0;
  std::unique_ptr<job::JobCore> core_;
  report::SlowestNodes slowest_;
  std::vector<std::unique_ptr<Node>> nodes_;
  bool finished_ = false;
  bool forever_ = false;
  int refusals_ = 0;
  std::function<std::optional<std::string>(size_t)> unreachable_;
  std::function<int(uint32_t)> exit_code_;
  std::string report_;
  Bill bill_;
  TimePoint bill_since_ = start_;
};

}  // namespace dtrain::sim
