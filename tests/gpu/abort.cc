// SPDX-License-Identifier: Apache-2.0
// A job that breaks: all ranks that live get the same status within the time-out and two seconds.
#include <csignal>
#include <functional>
#include <thread>

#include "tests/gpu/checks.h"

namespace dtrain::gpu_check {
namespace {

using std::chrono::steady_clock;

constexpr size_t kCount = 1000;

// The rank that does what breaks the job.
bool IsCulprit() { return RankInEnvironment() == 1; }

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// In which the status, the seconds and the reason of a call are.
int Report(Result& result, dtrain_status status, double seconds, double most) {
  result.Text("status", dtrain_status_name(status));
  result.Text("error", dtrain_last_error());
  result.Number("seconds", seconds);
  result.Number("limit", most);
  if (status == DTRAIN_OK) result.Miss("the call succeeded");
  if (seconds > most) {
    result.Miss("it took " + std::to_string(seconds) + " s until it failed, more than " +
                std::to_string(most) + " s");
  }
  return result.Print();
}

// The rank dies while all are in their first collective, for which NCCL connects them: some calls
// may go well before.
int BreakFirst(Result& result, const std::function<dtrain_status()>& call, double limit) {
  const auto start = steady_clock::now();
  if (IsCulprit()) {
    std::thread([] {
      Sleep(0.005);
      raise(SIGKILL);
    }).detach();
  }
  dtrain_status status = DTRAIN_OK;
  while (status == DTRAIN_OK && SecondsSince(start) < limit + 2) status = call();
  const int code = Report(result, status, SecondsSince(start), limit + 2);
  Sleep(1);
  return code;
}

// The one that is late sleeps; for the others dtrain_init has to give up.
int BreakInit(Result& result, const dtrain_config& config, double limit) {
  Gpu gpu(result, OrdinalInEnvironment());
  if (IsCulprit()) {
    Sleep(limit + 4);
    result.Text("status", "the culprit");
    return result.Print();
  }
  const auto start = steady_clock::now();
  const dtrain_status status = dtrain_init(&config);
  const int code = Report(result, status, SecondsSince(start), limit + 2);
  Sleep(4);  // the launcher ends the late one when the first has gone
  return code;
}

}  // namespace

int CheckAbort(const Arguments& arguments) {
  const std::string how = arguments.Text("--how", "skip");
  Result result("abort-" + how);
  const double limit = arguments.Number("--seconds", 5);
  dtrain_config config = DTRAIN_CONFIG_INIT;
  (how == "init" ? config.init_timeout_ms : config.collective_timeout_ms) =
      static_cast<int64_t>(limit * 1000);
  if (how == "init") return BreakInit(result, config, limit);

  Gpu gpu(result, OrdinalInEnvironment());
  Begin(result, &config);
  const Pointer input = gpu.Allocate(kCount * sizeof(float));
  const Pointer output = gpu.Allocate(kCount * sizeof(float));
  const auto call = [&] {
    return dtrain_allreduce(Address(input), Address(output), kCount, DTRAIN_FLOAT32, DTRAIN_SUM);
  };
  if (how == "first") return BreakFirst(result, call, limit);
  for (int i = 0; i < 3; ++i) MustDtrain(result, call(), "a call before the fault");

  constexpr double kUntilFault = 1;
  if (IsCulprit() && how == "kill") {
    Sleep(kUntilFault);
    raise(SIGKILL);
  }
  if (IsCulprit() && how == "leave") {
    Sleep(kUntilFault);
    const auto start = steady_clock::now();
    const dtrain_status status = dtrain_finalize();
    return Report(result, status, SecondsSince(start), limit + 2);
  }
  if (IsCulprit()) Sleep(limit + 3);  // skips the others' call: by then these have given up
  const auto start = steady_clock::now();
  const dtrain_status status = call();
  const double seconds = SecondsSince(start);
  // The one that skipped hears of it at once.
  const double most = IsCulprit() ? 1 : limit + 2 + (how == "skip" ? 0 : kUntilFault);
  const int code = Report(result, status, seconds, most);
  Sleep(how == "skip" && !IsCulprit() ? 6 : 1);  // as above: the other one is to be heard
  return code;
}

}  // namespace dtrain::gpu_check
