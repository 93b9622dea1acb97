// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/job.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <utility>

#include "runtime/boot/address.h"
#include "runtime/boot/bootstrap.h"

namespace dtrain::runtime {
namespace {

std::string HostName() {
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  return host;
}

// Two ranks with the same text share a node. Host names alone are not enough: cloned machines keep
// theirs.
std::string NodeIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return HostName() + " " + boot;
}

// From the names that all ranks have for their nodes to the numbers of the nodes.
Result<std::string> NumberNodes(const std::vector<Contribution>& all) {
  std::vector<std::string> names;
  for (const Contribution& one : all) {
    auto name = Unversioned(one.rank, one.bytes);
    if (!name.ok()) return name.error();
    names.push_back(std::move(*name));
  }
  return FormatProcessMapping(NodesByName(names));
}

Deadline After(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

}  // namespace

Result<std::unique_ptr<Job>> Job::Join(const Environment& env, Launcher& launcher,
                                       ProgressPage& page) {
  std::unique_ptr<Job> job(new Job(env, launcher, page));
  MaybeError error = job->Bootstrap();
  if (!error) {
    page.SetJoined(true);
    return job;
  }
  const auto seconds = std::chrono::duration<double>(env.init_timeout).count();
  error->message = "rank " + std::to_string(env.rank) + " of " + std::to_string(env.size) +
                   " could not join the job: " + error->message;
  if (error->code == DTRAIN_ERROR_TIMEOUT) {
    error->message += " (waited " + std::to_string(seconds).substr(0, 6) +
                      " s in all; DTRAIN_TIMEOUT_SECONDS changes that)";
  }
  return *error;
}

void Job::StopListening() {
  const std::lock_guard<std::mutex> lock(listener_->mutex);
  listener_->executor = nullptr;
}

Job::~Job() {
  StopListening();
  for (void* memory : plain_) std::free(memory);
}

MaybeError Job::ConnectPmi(Deadline deadline) {
  if (launcher_.pmi) return launcher_.pmi->Rejoin(deadline);
  auto pmi = PmiClient::Connect(env_.pmi_fd, deadline);
  if (!pmi.ok()) return pmi.error();
  launcher_.pmi.emplace(std::move(*pmi));
  return std::nullopt;
}

MaybeError Job::Bootstrap() {
  const Deadline deadline = After(env_.init_timeout);
  Group& world = groups_.world();
  world.rank = env_.rank;
  world.size = env_.size;
  world.timeout.store(env_.collective_timeout);
  for (int r = 0; r < env_.size; ++r) world.members.push_back(r);
  if (env_.pmi_fd >= 0) {
    if (MaybeError error = ConnectPmi(deadline)) return error;
  }
  if (env_.size == 1) {
    SoloBootstrap alone;
    return Meet(alone, {0}, deadline);
  }
  PmiBootstrap bootstrap(*launcher_.pmi, env_.rank, env_.size, launcher_.generation++);
  auto nodes = FindNodes(bootstrap, deadline);
  if (!nodes.ok()) return nodes.error();
  bootstrap.SetNodes(*nodes);
  return Meet(bootstrap, std::move(*nodes), deadline);
}

// The launcher knows best who shares a node; else all ranks go by what they say of themselves.
Result<std::vector<int>> Job::FindNodes(PmiBootstrap& bootstrap, Deadline deadline) {
  const auto mapping = launcher_.pmi->Get("PMI_process_mapping", deadline);
  if (!mapping.ok()) return mapping.error();
  std::optional<std::vector<int>> nodes;
  if (*mapping) nodes = ParseProcessMapping(**mapping, env_.size);
  if (nodes) return *nodes;
  const auto numbers = bootstrap.Combine(Versioned(NodeIdentity()), NumberNodes, deadline);
  if (!numbers.ok()) return numbers.error();
  nodes = ParseProcessMapping(*numbers, env_.size);
  if (nodes) return *nodes;
  return Error{DTRAIN_ERROR_LAUNCHER,
               "what rank 0 published about nodes cannot be read: " + Printable(*numbers)};
}

MaybeError Job::Meet(class Bootstrap& bootstrap, std::vector<int> node_of_rank, Deadline deadline) {
  places_ = PlacesOf(env_.rank, node_of_rank);
  CpuOptions cpu;
  if (env_.size > 1) {
    auto host = ListInterfaceAddresses();
    if (!host.ok()) return host.error();
    auto chosen = ChooseAddress(env_.address, env_.interfaces, places_.node_count() == 1, *host);
    if (!chosen.ok()) return chosen.error();
    cpu.address = std::move(*chosen);
  }
  auto device =
      ReadNcclOptions([](const char* name) { return std::getenv(name); }, StartVariables());
  if (!device.ok()) return device.error();
  const Hello mine{env_.backend, Backend::WhyNotNccl(env_.backend), env_.fusion_threshold,
                   env_.cycle_time.count()};
  cpu.node_of_rank = std::move(node_of_rank);
  device->local_rank = places_.local;
  device->node = "node " + std::to_string(places_.node);
  device->fine_times = page_.has_timeline();
  // A GPU that hangs may keep what tells us for longer than the job lives. What fails on a device,
  // at any time, is the end of the job's collectives.
  const auto on_failure = [listener = listener_, rank = env_.rank](const Error& error) {
    const std::lock_guard<std::mutex> lock(listener->mutex);
    if (listener->executor == nullptr) return;
    listener->executor->SetBroken({error.code, "rank " + std::to_string(rank) + " (host " +
                                                   HostName() + "): " + error.message});
  };
  backend_ = std::make_unique<Backend>(std::move(cpu), std::move(*device), on_failure);
  return Connect(bootstrap, mine, deadline);
}

MaybeError Job::Connect(class Bootstrap& bootstrap, const Hello& mine, Deadline deadline) {
  Group& world = groups_.world();
  auto communicator = backend_->MakeCpu(bootstrap, world, deadline);
  if (!communicator.ok()) return communicator.error();
  world.communicator = std::move(*communicator);
  if (MaybeError error = AgreeOnBackend(mine, deadline)) return error;
  if (!backend_->nccl()) return std::nullopt;
  engines_.SetOnDevice();
  return ConnectDevice(world, deadline);
}

// Over the ranks' own connections, and not through the launcher.
MaybeError Job::AgreeOnBackend(const Hello& mine, Deadline deadline) {
  Group& world = groups_.world();
  Result<std::vector<std::string>> texts = std::vector<std::string>{EncodeHello(mine)};
  if (env_.size > 1) {
    GroupBootstrap all(*world.communicator, world.members, world.next_run);
    texts = all.Exchange(EncodeHello(mine), deadline);
  }
  if (!texts.ok()) return texts.error();
  std::vector<Hello> hellos(texts->size());
  for (size_t r = 0; r < texts->size(); ++r) {
    if (DecodeHello((*texts)[r], hellos[r])) continue;
    return Error{DTRAIN_ERROR_NETWORK, "what rank " + std::to_string(r) +
                                           " said cannot be read: " + Printable((*texts)[r])};
  }
  const auto nccl = ChooseNccl(hellos);
  if (!nccl.ok()) {
    // The same for all. A rank that closed its connections while another one is still inside the
    // exchange would be the failure that this one sees.
    if (env_.size > 1) {
      (void)launcher_.pmi->Barrier(deadline, [this] { return groups_.failure(); });
    }
    return nccl.error();
  }
  if (*nccl) backend_->UseNccl();
  queue_.SetFusion(hellos[0].fusion_threshold, std::chrono::microseconds(hellos[0].cycle_us));
  return std::nullopt;
}

// All ranks of the job are in here, each for its own group, or for none.
MaybeError Job::ConnectDevice(Group& group, Deadline deadline) {
  const auto make = [&](FullBootstrap& bootstrap) -> MaybeError {
    auto made = backend_->MakeDevice(bootstrap, group, deadline);
    if (!made.ok()) return made.error();
    group.device = std::move(*made);
    return std::nullopt;
  };
  if (env_.size == 1) {
    SoloBootstrap alone;
    return group.size > 0 ? make(alone) : std::nullopt;
  }
  Group& world = groups_.world();
  GroupBootstrap bootstrap(*world.communicator, group.members, world.next_run);
  return bootstrap.Finish(group.size > 0 ? make(bootstrap) : std::nullopt, deadline);
}

MaybeError Job::Run(const Collective& what) {
  queue_.Drain();
  Operation operation;
  operation.group = &groups_.world();
  operation.what = what;
  return executor_.Run(operation);
}

Result<dtrain_handle> Job::Start(Operation operation) {
  auto& [executor, queue] = engines_.Of(operation.group->id);
  if (MaybeError error = executor.broken()) return *error;
  if (operation.on_device()) {
    if (operation.group->device->Capturing(operation.what.stream)) {
      // Both would wait for the other ranks within NCCL, which may come to them in another order.
      if (!making_.expired()) {
        return Error{DTRAIN_ERROR_STATE,
                     "a CUDA graph cannot take a collective while another thread of this rank is "
                     "in dtrain_group_create: make groups before the capture, or after it"};
      }
      // So what the program made before is launched before, here as on the other ranks.
      engines_.DrainAll(true);
      if (MaybeError error = executor.Capture(operation)) return *error;
      return queue.AddDone(std::move(operation));
    }
    if (MaybeError error = executor.PrepareForDevice(operation)) return *error;
  }
  return queue.Add(std::move(operation));
}

Result<int> Job::AwaitAllJoined() {
  queue_.Drain();
  return executor_.Join(queue_.fusion_threshold());
}

// Does not drain the queue first: a pending collective may find its partner only once another rank
// has its group.
Result<std::shared_ptr<Job::NewGroup>> Job::StartGroup(int color, int key) {
  auto begun = std::make_shared<NewGroup>();
  begun->mine[0] = std::max(color, -1);
  begun->mine[1] = key;
  begun->table.resize(2 * static_cast<size_t>(env_.size));
  Operation exchange;
  exchange.group = &groups_.world();
  exchange.name = kMakesGroup;
  exchange.on_host = true;
  exchange.what.kind = Collective::Kind::kAllgather;
  exchange.what.input = begun->mine;
  exchange.what.output = begun->table.data();
  exchange.what.count = 2;
  exchange.what.type = DTRAIN_INT32;
  exchange.what.name = NameHash(exchange.name);
  exchange.then = [this, begun] {
    try {
      begun->id = MakeGroup(begun->table);
    } catch (const std::exception& error) {
      // The other ranks are in there, and wait for this one.
      const Error failed{DTRAIN_ERROR_RESOURCES,
                         std::string("the group could not be made: ") + error.what()};
      executor_.SetBroken(failed);
      begun->id = failed;
    }
  };
  auto handle = Start(std::move(exchange));
  if (!handle.ok()) return handle.error();
  begun->handle = *handle;
  making_ = begun;
  return begun;
}

Result<uint32_t> Job::AwaitGroup(const NewGroup& begun) {
  if (MaybeError error = Wait(begun.handle)) return *error;
  return begun.id;
}

// All ranks of the job are in here, in the thread that runs the world's queue. So nothing else uses
// the world's connections meanwhile, and on devices, where this has a turn among the groups,
// nothing is launched beside NCCL's initialization.
Result<uint32_t> Job::MakeGroup(const std::vector<int32_t>& table) {
  Split split = SplitByColor(table, env_.rank, next_group_);
  next_group_ += split.groups;
  engines_.SetSeveral();

  auto group = std::make_unique<Group>();
  group->id = split.id;
  group->size = static_cast<int>(split.members.size());
  group->members = split.members;
  group->timeout.store(env_.collective_timeout);
  const Deadline deadline = After(env_.init_timeout);
  if (MaybeError error = ConnectGroup(*group, split.everyone, deadline)) {
    error->message = "rank " + std::to_string(env_.rank) + " of " + std::to_string(env_.size) +
                     " could not make the group: " + error->message;
    if (groups_.failure()) executor_.SetBroken(*error);
    return *error;
  }
  if (split.members.empty()) return uint32_t{0};
  engines_.Add(group->id);
  return groups_.Add(std::move(group)).id;
}

// All ranks of the job are in here, each for its own group.
MaybeError Job::ConnectGroup(Group& group, bool everyone, Deadline deadline) {
  Group& world = groups_.world();
  if (env_.size > 1) {
    GroupBootstrap bootstrap(*world.communicator, group.members, world.next_run);
    group.rank = bootstrap.rank();
    MaybeError error;
    if (group.size > 0) {
      auto made = backend_->MakeCpu(bootstrap, group, deadline);
      if (made.ok()) group.communicator = std::move(*made);
      if (!made.ok()) error = made.error();
    }
    if (MaybeError failed = bootstrap.Finish(error, deadline)) return failed;
  }
  if (!backend_->nccl()) return std::nullopt;
  // NCCL crashes on a rank that is in no group when its part of the split goes wrong.
  if (env_.size == 1 || !everyone || !backend_->Splits(*world.device)) {
    return ConnectDevice(group, deadline);
  }
  if (MaybeError error = executor_.AwaitDevice(world)) return error;
  MaybeError error;
  group.device = backend_->Split(*world.device, group, deadline, error);
  GroupBootstrap all(*world.communicator, group.members, world.next_run);
  error = all.Finish(error, deadline);
  if (!error) return backend_->Open(*group.device);
  group.device.reset();
  if (groups_.failure()) return error;
  return ConnectDevice(group, deadline);
}

MaybeError Job::FreeGroup(uint32_t id) {
  Group* group = groups_.Find(id);
  if (group == nullptr || id == 0) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "there is no such group"};
  }
  auto& [executor, queue] = engines_.Of(id);
  queue.Drain();
  // A rank that closed its connections while another one is still inside the last collective would
  // break it.
  MaybeError error = executor.AwaitDevice(*group);
  std::unique_ptr<LaunchOrder::Turn> turn;
  if (!error && !executor.broken() && !(group->communicator && group->communicator->failure())) {
    Operation barrier;
    barrier.group = group;
    error = executor.Run(barrier);
    // NCCL's end of it waits for the other ranks of the machine, as a launch may.
    if (!error && group->device != nullptr) {
      auto taken = executor.TakeTurn(*group);
      if (taken.ok()) {
        turn = std::move(*taken);
        // Another rank's turn may come much later, and nobody waits so long for NCCL's end.
        error = executor.Run(barrier);
      } else {
        executor.SetBroken(*(error = taken.error()));
      }
    }
  }
  queue.Forget(*group, executor.broken());
  engines_.Retire(id);
  groups_.Remove(id);
  return error;
}

MaybeError Job::SetTimeout(uint32_t id, std::chrono::milliseconds timeout) {
  Group* const group = groups_.Find(id);
  if (group == nullptr) return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "there is no such group"};
  // One that has failed by a timeout of its own is still no failure of the job.
  if (group->communicator != nullptr) {
    if (MaybeError failure = group->communicator->failure()) return failure;
  }
  group->has_own_timeout.store(timeout.count() > 0);
  group->timeout.store(timeout.count() > 0 ? timeout : env_.collective_timeout);
  return std::nullopt;
}

MaybeError Job::Leave(Leaving how) {
  const bool to_return = how == Leaving::kToReturn;
  engines_.DrainAll();
  // Without one, the death of a rank still ends the wait: the launcher ends the others or closes
  // their connections.
  const Deadline deadline = how == Leaving::kAtExit ? Deadline::max() : After(env_.init_timeout);
  const bool with_launcher = env_.pmi_fd >= 0;
  const bool broken = executor_.broken().has_value();
  // What is in flight on a device may wait for a rank that does not come.
  MaybeError error = broken || to_return ? std::nullopt : groups_.AwaitDevices();
  // A rank that closed its connections while another one is still inside the last collective
  // would break it.
  if (env_.size > 1 && !error && (to_return || !broken)) {
    if (!broken) groups_.SayLeaving();
    const auto look = [&] { return to_return ? std::nullopt : groups_.failure(); };
    error = launcher_.pmi->Barrier(deadline, look);
    if (to_return) groups_.AbortAll({DTRAIN_ERROR_STATE, "the ranks join the job again"});
  }
  executor_.FreeBuffer();
  groups_.Clear();
  StopListening();
  page_.SetJoined(false);
  if (with_launcher) {
    if (!error) error = launcher_.pmi->Finalize(After(env_.init_timeout));
    if (error || !launcher_.pmi->can_rejoin()) {
      launcher_.pmi.reset();
      launcher_.closed = true;
    }
  }
  if (!error) return std::nullopt;
  return Error{error->code,
               "rank " + std::to_string(env_.rank) + " of " + std::to_string(env_.size) +
                   (to_return ? " cannot join the job again: not all ranks have left it: "
                              : " could not leave the job cleanly: ") +
                   error->message};
}

}  // namespace dtrain::runtime
