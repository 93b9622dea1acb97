// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/pmix_library.h"

#ifdef DTRAIN_HAS_PMIX

#include <dlfcn.h>
#include <pmix.h>
#include <pmix_server.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "agent/pmix/info_list.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/account.h"

namespace dtrain::pmix {
namespace {

// 3.2 to 6.1 have this name.
constexpr char kLibrary[] = "libpmix.so.2";

// What we call in it.
struct Functions {
  decltype(&PMIx_server_init) init;
  decltype(&PMIx_server_finalize) finalize;
  decltype(&PMIx_server_register_nspace) register_nspace;
  decltype(&PMIx_server_register_client) register_client;
  decltype(&PMIx_server_setup_fork) setup_fork;
  decltype(&PMIx_server_dmodex_request) dmodex_request;
  decltype(&PMIx_generate_regex) generate_regex;
  decltype(&PMIx_generate_ppn) generate_ppn;
  decltype(&PMIx_Error_string) error_string;
};

absl::StatusOr<Functions> OpenLibrary() {
  // Its components look for its names.
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) return absl::NotFoundError(Escape(dlerror()));
  Functions functions;
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    void* found = dlsym(handle, name);
    if (found == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find("PMIx_server_init", functions.init);
  find("PMIx_server_finalize", functions.finalize);
  find("PMIx_server_register_nspace", functions.register_nspace);
  find("PMIx_server_register_client", functions.register_client);
  find("PMIx_server_setup_fork", functions.setup_fork);
  find("PMIx_server_dmodex_request", functions.dmodex_request);
  find("PMIx_generate_regex", functions.generate_regex);
  find("PMIx_generate_ppn", functions.generate_ppn);
  find("PMIx_Error_string", functions.error_string);
  if (!missing.empty()) return absl::NotFoundError(absl::StrCat(kLibrary, " has no ", missing));
  return functions;
}

class Server;
// The library passes no pointer of ours to its upcalls. Set before its server starts.
Server* the_server = nullptr;

// What waits for an answer; called from any thread.
struct Waiting {
  pmix_modex_cbfunc_t done = nullptr;
  void* cookie = nullptr;
};

class Server : public PmixLibrary {
 public:
  Server(loop::Loop& loop, Functions functions, const v1::PmixStart& start, Upcalls upcalls)
      : loop_(loop), functions_(functions), start_(start), upcalls_(std::move(upcalls)) {
    the_server = this;
  }
  ~Server() override {
    if (running_) functions_.finalize();
    the_server = nullptr;
  }

  absl::Status Run() {
    // A newer library copies a longer struct: it finds nulls behind ours.
    static struct {
      pmix_server_module_t module;
      void* none[16];
    } served;
    served.module.client_connected2 = OnConnected;
    served.module.client_finalized = OnFinalized;
    served.module.abort = OnAbort;
    served.module.fence_nb = OnFence;
    served.module.direct_modex = OnModex;
    served.module.job_control = OnJobControl;
    served.module.group = OnGroup;
    InfoList options;
    options.Add(PMIX_SERVER_NSPACE, absl::StrCat(start_.name(), "-server"));
    options.AddRank(PMIX_SERVER_RANK, start_.node_rank());
    options.Add(PMIX_SERVER_TMPDIR, start_.directory());
    options.Add(PMIX_SYSTEM_TMPDIR, start_.directory());
    options.Add(PMIX_HOSTNAME, start_.host());
    // For a user whom NSS does not know, as in many containers, it would read the home of nobody.
    if (std::getenv("HOME") == nullptr && !os::FindAccount(geteuid()).ok()) {
      setenv("HOME", start_.directory().c_str(), 1);
    }
    const pmix_status_t status = functions_.init(&served.module, options.data(), options.size());
    if (status != PMIX_SUCCESS) return Failed("PMIx_server_init", status);
    running_ = true;
    return absl::OkStatus();
  }

  absl::Status Register(const v1::PmixJob& job) override;
  absl::StatusOr<uint16_t> Port() const override;
  void FenceDone(const v1::PmixFenceDone& done) override;
  void Wanted(const v1::PmixWanted& wanted) override;
  void Found(const v1::PmixFound& found) override;

 private:
  absl::Status Failed(const char* what, pmix_status_t status) const {
    return absl::InternalError(
        absl::StrCat(what, " of ", kLibrary, " failed: ", Escape(functions_.error_string(status))));
  }
  absl::StatusOr<std::string> Generated(pmix_status_t (*generate)(const char*, char**),
                                        const std::string& text) const;
  bool IsOurs(const pmix_proc_t& proc) const {
    return start_.name() == proc.nspace && proc.rank < size_;
  }

  // On the library's threads.
  static pmix_status_t OnConnected(const pmix_proc_t* proc, void*, pmix_info_t*, size_t,
                                   pmix_op_cbfunc_t, void*);
  static pmix_status_t OnFinalized(const pmix_proc_t* proc, void*, pmix_op_cbfunc_t, void*);
  static pmix_status_t OnAbort(const pmix_proc_t* proc, void*, int code, const char*, pmix_proc_t*,
                               size_t, pmix_op_cbfunc_t done, void* cookie);
  static pmix_status_t OnFence(const pmix_proc_t* procs, size_t count, const pmix_info_t* infos,
                               size_t info_count, char* data, size_t bytes,
                               pmix_modex_cbfunc_t done, void* cookie);
  static pmix_status_t OnModex(const pmix_proc_t* proc, const pmix_info_t*, size_t,
                               pmix_modex_cbfunc_t done, void* cookie);
  static pmix_status_t OnJobControl(const pmix_proc_t*, const pmix_proc_t*, size_t,
                                    const pmix_info_t*, size_t, pmix_info_cbfunc_t, void*);
  static pmix_status_t OnGroup(pmix_group_operation_t, char*, const pmix_proc_t*, size_t,
                               const pmix_info_t* infos, size_t info_count, pmix_info_cbfunc_t done,
                               void* cookie);
  static void OnWantedFound(pmix_status_t status, char* data, size_t bytes, void* cookie);

  // Of many ranks that do so together, one message.
  void Tell(std::vector<uint32_t>& ranks, uint32_t rank);
  void SendRanks();

  loop::Loop& loop_;
  const Functions functions_;
  const v1::PmixStart start_;
  Upcalls upcalls_;
  bool running_ = false;
  uint32_t size_ = 0;  // of the job; set before there are clients
  std::map<std::vector<uint32_t>, Waiting> fences_;
  std::map<uint64_t, Waiting> asked_;
  uint64_t next_ = 1;
  std::vector<uint32_t> joined_, left_;
  // To be answered once `left_` has been sent: no rank that has finalized ends before that.
  std::vector<std::pair<pmix_op_cbfunc_t, void*>> leaving_;
};

pmix_status_t Server::OnConnected(const pmix_proc_t* proc, void*, pmix_info_t*, size_t,
                                  pmix_op_cbfunc_t, void*) {
  if (!the_server->IsOurs(*proc)) return PMIX_ERR_BAD_PARAM;
  the_server->loop_.Post([rank = proc->rank] { the_server->Tell(the_server->joined_, rank); });
  return PMIX_OPERATION_SUCCEEDED;
}

// Without `done`, the library has lost a rank that has not finalized.
pmix_status_t Server::OnFinalized(const pmix_proc_t* proc, void*, pmix_op_cbfunc_t done,
                                  void* cookie) {
  if (!the_server->IsOurs(*proc)) return PMIX_ERR_BAD_PARAM;
  if (done == nullptr) return PMIX_OPERATION_SUCCEEDED;
  the_server->loop_.Post([rank = proc->rank, done, cookie] {
    the_server->Tell(the_server->left_, rank);
    the_server->leaving_.emplace_back(done, cookie);
  });
  return PMIX_SUCCESS;
}

// The rank goes on to its exit once it is answered: the word of it is out by then.
pmix_status_t Server::OnAbort(const pmix_proc_t* proc, void*, int code, const char*, pmix_proc_t*,
                              size_t, pmix_op_cbfunc_t done, void* cookie) {
  if (!the_server->IsOurs(*proc)) return PMIX_ERR_BAD_PARAM;
  the_server->loop_.Post([rank = proc->rank, code, done, cookie] {
    the_server->upcalls_.abort(rank, code);
    if (done != nullptr) done(PMIX_SUCCESS, cookie);
  });
  return PMIX_SUCCESS;
}

pmix_status_t Server::OnFence(const pmix_proc_t* procs, size_t count, const pmix_info_t* infos,
                              size_t info_count, char* data, size_t bytes, pmix_modex_cbfunc_t done,
                              void* cookie) {
  std::vector<uint32_t> ranks;
  bool all = false;
  for (size_t i = 0; i < count; ++i) {
    if (procs[i].rank == PMIX_RANK_WILDCARD && the_server->start_.name() == procs[i].nspace) {
      all = true;
    } else if (!the_server->IsOurs(procs[i])) {
      return PMIX_ERR_NOT_SUPPORTED;  // another job's
    } else {
      ranks.push_back(procs[i].rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (all || ranks.size() == the_server->size_) ranks.clear();
  v1::PmixFence fence;
  fence.mutable_ranks()->Add(ranks.begin(), ranks.end());
  fence.set_data(data, bytes);
  free(data);
  for (size_t i = 0; i < info_count; ++i) {
    if (std::strcmp(infos[i].key, PMIX_LOCAL_COLLECTIVE_STATUS) == 0) {
      fence.set_status(infos[i].value.data.status);
    }
  }
  the_server->loop_.Post(
      [key = std::move(ranks), fence = std::move(fence), done, cookie]() mutable {
        the_server->fences_[std::move(key)] = {done, cookie};
        v1::PmixUp up;
        *up.mutable_fence() = std::move(fence);
        the_server->upcalls_.up(std::move(up));
      });
  return PMIX_SUCCESS;
}

pmix_status_t Server::OnModex(const pmix_proc_t* proc, const pmix_info_t*, size_t,
                              pmix_modex_cbfunc_t done, void* cookie) {
  if (!the_server->IsOurs(*proc)) return PMIX_ERR_NOT_FOUND;  // "any rank", too: it has put nothing
  the_server->loop_.Post([rank = proc->rank, done, cookie] {
    v1::PmixUp up;
    up.mutable_wanted()->set_id(the_server->next_);
    up.mutable_wanted()->set_rank(rank);
    the_server->asked_[the_server->next_++] = {done, cookie};
    the_server->upcalls_.up(std::move(up));
  });
  return PMIX_SUCCESS;
}

// The library removes by itself the files that a rank has asked it to when the rank is gone, as
// Open MPI does for its memory in /dev/shm, but only where there is such an upcall. We do nothing
// else.
pmix_status_t Server::OnJobControl(const pmix_proc_t*, const pmix_proc_t*, size_t,
                                   const pmix_info_t*, size_t, pmix_info_cbfunc_t, void*) {
  return PMIX_ERR_NOT_SUPPORTED;
}

// Groups within the node are the library's own affair. Others are refused, and by the callback: to
// an error that is returned here, libpmix 5 answers the last of the node's ranks alone.
pmix_status_t Server::OnGroup(pmix_group_operation_t, char*, const pmix_proc_t*, size_t,
                              const pmix_info_t* infos, size_t info_count, pmix_info_cbfunc_t done,
                              void* cookie) {
  for (size_t i = 0; i < info_count; ++i) {
    if (std::strcmp(infos[i].key, PMIX_GROUP_LOCAL_ONLY) == 0) return PMIX_OPERATION_SUCCEEDED;
  }
  the_server->loop_.Post([done, cookie] {
    if (done != nullptr) done(PMIX_ERR_NOT_SUPPORTED, nullptr, 0, cookie, nullptr, nullptr);
  });
  return PMIX_SUCCESS;
}

void Server::OnWantedFound(pmix_status_t status, char* data, size_t bytes, void* cookie) {
  const std::unique_ptr<uint64_t> id(static_cast<uint64_t*>(cookie));
  v1::PmixUp up;
  up.mutable_found()->set_id(*id);
  up.mutable_found()->set_status(status);
  if (data != nullptr) up.mutable_found()->set_data(data, bytes);
  the_server->loop_.Post(
      [up = std::move(up)]() mutable { the_server->upcalls_.up(std::move(up)); });
}

void Server::Tell(std::vector<uint32_t>& ranks, uint32_t rank) {
  if (joined_.empty() && left_.empty()) loop_.Post([this] { SendRanks(); });
  ranks.push_back(rank);
}

void Server::SendRanks() {
  if (!joined_.empty()) {
    v1::PmixUp up;
    up.mutable_joined()->mutable_ranks()->Add(joined_.begin(), joined_.end());
    joined_.clear();
    upcalls_.up(std::move(up));
  }
  if (!left_.empty()) {
    v1::PmixUp up;
    up.mutable_left()->mutable_ranks()->Add(left_.begin(), left_.end());
    left_.clear();
    upcalls_.up(std::move(up));
    for (const auto& [done, cookie] : std::exchange(leaving_, {})) done(PMIX_SUCCESS, cookie);
  }
}

absl::StatusOr<std::string> Server::Generated(pmix_status_t (*generate)(const char*, char**),
                                              const std::string& text) const {
  char* made = nullptr;
  const pmix_status_t status = generate(text.c_str(), &made);
  if (status != PMIX_SUCCESS) return Failed("writing the map of the job by", status);
  std::string result(made);
  free(made);
  return result;
}

uint32_t CountPrograms(const v1::PmixJob& job) {
  uint32_t count = 1;
  for (const v1::PmixNode& node : job.nodes()) {
    for (const uint32_t program : node.programs()) count = std::max(count, program + 1);
  }
  return count;
}

// The maps alone would do, if names never differed: the sizes and peers are what a client falls
// back to a world of its own without, silently.
absl::Status Server::Register(const v1::PmixJob& job) {
  std::vector<std::string> hosts, lists;
  for (const v1::PmixNode& node : job.nodes()) {
    hosts.push_back(node.host());
    lists.push_back(absl::StrJoin(node.ranks(), ","));
    size_ += static_cast<uint32_t>(node.ranks_size());
  }
  if (static_cast<int>(start_.node_rank()) >= job.nodes_size()) {
    return absl::InvalidArgumentError("the launcher's description of the job has no such node");
  }
  auto nodes = Generated(functions_.generate_regex, absl::StrJoin(hosts, ","));
  if (!nodes.ok()) return nodes.status();
  auto ranks = Generated(functions_.generate_ppn, absl::StrJoin(lists, ";"));
  if (!ranks.ok()) return ranks.status();
  const v1::PmixNode& here = job.nodes(static_cast<int>(start_.node_rank()));
  InfoList all;
  all.Add(PMIX_NODE_MAP, *nodes);
  all.Add(PMIX_PROC_MAP, *ranks);
  all.Add(PMIX_JOB_SIZE, size_);
  all.Add(PMIX_MAX_PROCS, size_);
  all.Add(PMIX_UNIV_SIZE, job.universe_size());
  all.Add(PMIX_LOCAL_SIZE, static_cast<uint32_t>(here.ranks_size()));
  all.Add(PMIX_LOCAL_PEERS, absl::StrJoin(here.ranks(), ","));
  all.Add(PMIX_NUM_NODES, static_cast<uint32_t>(job.nodes_size()));
  all.Add(PMIX_JOB_NUM_APPS, CountPrograms(job));
  all.Add(PMIX_JOBID, start_.name());
  all.Add(PMIX_TMPDIR, start_.directory());
  all.Add(PMIX_NSDIR, start_.directory());
  all.AddYes(PMIX_TDIR_RMCLEAN);
  if (start_.crowded()) all.AddYes(PMIX_NODE_OVERSUBSCRIBED);
  for (int node = 0; node < job.nodes_size(); ++node) {
    for (int local = 0; local < job.nodes(node).ranks_size(); ++local) {
      InfoList& one = all.AddList(PMIX_PROC_DATA);
      one.AddRank(PMIX_RANK, job.nodes(node).ranks(local));  // must be the first
      one.Add(PMIX_NODEID, static_cast<uint32_t>(node));
      one.Add16(PMIX_LOCAL_RANK, static_cast<uint16_t>(local));
      one.Add16(PMIX_NODE_RANK, static_cast<uint16_t>(local));
      one.Add(PMIX_APPNUM, local < job.nodes(node).programs_size() ? job.nodes(node).programs(local)
                                                                   : uint32_t{0});
    }
  }
  const char* name = start_.name().c_str();
  const auto done = [](pmix_status_t status) {
    return status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED;
  };
  pmix_status_t status =
      functions_.register_nspace(name, here.ranks_size(), all.data(), all.size(), nullptr, nullptr);
  if (!done(status)) return Failed("PMIx_server_register_nspace", status);
  for (const uint32_t rank : here.ranks()) {
    pmix_proc_t proc{};
    std::strncpy(proc.nspace, name, sizeof(proc.nspace) - 1);
    proc.rank = rank;
    status = functions_.register_client(&proc, getuid(), getgid(), nullptr, nullptr, nullptr);
    if (!done(status)) return Failed("PMIx_server_register_client", status);
  }
  return absl::OkStatus();
}

// It tells in what it wants in the environment of clients.
absl::StatusOr<uint16_t> Server::Port() const {
  pmix_proc_t proc{};
  std::strncpy(proc.nspace, start_.name().c_str(), sizeof(proc.nspace) - 1);
  char** variables = nullptr;
  const pmix_status_t status = functions_.setup_fork(&proc, &variables);
  if (status != PMIX_SUCCESS) return Failed("PMIx_server_setup_fork", status);
  uint32_t port = 0;
  for (char** entry = variables; entry != nullptr && *entry != nullptr; ++entry) {
    const absl::string_view text(*entry);
    const bool is_uri = text.substr(0, 15) == "PMIX_SERVER_URI";
    if (is_uri && port == 0) (void)absl::SimpleAtoi(text.substr(text.rfind(':') + 1), &port);
    free(*entry);
  }
  free(variables);
  if (port == 0 || port > 65535) {
    return absl::InternalError(absl::StrCat(kLibrary, " does not report where its server listens"));
  }
  return static_cast<uint16_t>(port);
}

void Answer(const Waiting& waiting, int32_t status, const std::string& data) {
  char* copy = static_cast<char*>(malloc(data.size() + 1));
  if (copy != nullptr) std::memcpy(copy, data.data(), data.size());
  waiting.done(copy != nullptr ? status : PMIX_ERR_NOMEM, copy, copy != nullptr ? data.size() : 0,
               waiting.cookie, free, copy);
}

void Server::FenceDone(const v1::PmixFenceDone& done) {
  const auto it = fences_.find({done.ranks().begin(), done.ranks().end()});
  if (it == fences_.end()) return log::Error("a PMIx fence ended that was never begun");
  const Waiting waiting = it->second;
  fences_.erase(it);
  Answer(waiting, done.status(), done.data());
}

void Server::Wanted(const v1::PmixWanted& wanted) {
  pmix_proc_t proc{};
  std::strncpy(proc.nspace, start_.name().c_str(), sizeof(proc.nspace) - 1);
  proc.rank = wanted.rank();
  auto id = std::make_unique<uint64_t>(wanted.id());
  const pmix_status_t status = functions_.dmodex_request(&proc, OnWantedFound, id.get());
  if (status == PMIX_SUCCESS) {
    (void)id.release();
  } else {
    OnWantedFound(status, nullptr, 0, id.release());
  }
}

void Server::Found(const v1::PmixFound& found) {
  const auto it = asked_.find(found.id());
  if (it == asked_.end()) return log::Error("an answer to a PMIx request that was never made");
  const Waiting waiting = it->second;
  asked_.erase(it);
  Answer(waiting, found.status(), found.data());
}

}  // namespace

absl::StatusOr<std::unique_ptr<PmixLibrary>> PmixLibrary::Open(loop::Loop& loop,
                                                               const v1::PmixStart& start,
                                                               Upcalls upcalls) {
  auto functions = OpenLibrary();
  if (!functions.ok()) return functions.status();
  auto server = std::make_unique<Server>(loop, *functions, start, std::move(upcalls));
  if (absl::Status running = server->Run(); !running.ok()) return running;
  return server;
}

}  // namespace dtrain::pmix

#else

namespace dtrain::pmix {

absl::StatusOr<std::unique_ptr<PmixLibrary>> PmixLibrary::Open(loop::Loop&, const v1::PmixStart&,
                                                               Upcalls) {
  return absl::UnimplementedError("this dtrain was built without PMIx");
}

}  // namespace dtrain::pmix

#endif
