// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/name_lookup.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/loop/threads.h"
#include "common/os/fd.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeastPatience(3000);
// Between two looks at whether another host's name was answered.
constexpr milliseconds kLook(250);

// What the thread that asks shares with whoever waits for it.
struct Question {
  std::shared_ptr<AddressList> list = std::make_shared<AddressList>();
  int error = 0;
  int system_error = 0;
  os::UniqueFd done;
};

bool NameIsUnknown(int error) {
#ifdef EAI_NODATA
  if (error == EAI_NODATA) return true;  // the name is there, without an address
#endif
  return error == EAI_NONAME;
}

// OK: `done` is readable. DEADLINE_EXCEEDED at `until`.
absl::Status Wait(int done, TimePoint until, int cancel) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    pollfd p[2] = {{done, POLLIN, 0}, {cancel, POLLIN, 0}};
    const int n = poll(p, 2, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (n < 0 && errno == EINTR) continue;
    if (p[1].revents != 0) return absl::CancelledError("given up");
    if (n == 0) return absl::DeadlineExceededError("no answer");
    return absl::OkStatus();
  }
}

absl::Status NoAnswer(absl::string_view what, Duration waited, bool others_answered) {
  return absl::UnavailableError(absl::StrCat(
      what, ": the name servers did not answer within ",
      std::chrono::round<std::chrono::seconds>(waited).count(), " s",
      others_answered ? ", though they did for other hosts; check the spelling, or give it a "
                        "HostName in the ssh configuration"
                      : "; see /etc/resolv.conf"));
}

}  // namespace

void NameAnswers::Add(Duration took) {
  const int64_t ms = std::chrono::ceil<milliseconds>(took).count();
  int64_t before = slowest_ms_.load();
  while (before < ms && !slowest_ms_.compare_exchange_weak(before, ms)) {
  }
}

std::optional<Duration> NameAnswers::Patience() const {
  const int64_t slowest = slowest_ms_.load();
  if (slowest < 0) return std::nullopt;
  return std::max<Duration>(kLeastPatience, 2 * milliseconds(slowest));
}

// getaddrinfo cannot be called off, so it has a thread of its own that may be left behind: a dead
// name server must not hold up the end of a launch.
absl::StatusOr<std::shared_ptr<const AddressList>> LookUp(const std::string& host,
                                                          const std::string& shown, uint16_t port,
                                                          int family, NameAnswers& answers,
                                                          TimePoint deadline, int cancel) {
  auto question = std::make_shared<Question>();
  addrinfo hints = {};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  const std::string service = absl::StrCat(port);
  // An address is not looked up anywhere.
  if (getaddrinfo(host.c_str(), service.c_str(), &hints, &question->list->first) == 0) {
    return question->list;
  }
  hints.ai_flags = 0;
  question->done.Reset(eventfd(0, EFD_CLOEXEC));
  if (!question->done) return PosixError(errno, "create an eventfd");
  const std::string what = absl::StrCat("resolve the name ", Escape(shown));
  const TimePoint begin = Clock::now();
  auto thread = loop::StartThread(what, [question, host, service, hints] {
    question->error = getaddrinfo(host.c_str(), service.c_str(), &hints, &question->list->first);
    question->system_error = errno;
    const uint64_t one = 1;
    (void)!write(question->done.get(), &one, sizeof(one));
  });
  if (!thread.ok()) return thread.status();
  thread->detach();
  for (;;) {
    const std::optional<Duration> patience = answers.Patience();
    const TimePoint limit = patience ? std::min(deadline, begin + *patience) : deadline;
    const absl::Status waited =
        Wait(question->done.get(), std::min(limit, Clock::now() + kLook), cancel);
    if (waited.ok()) break;
    if (!absl::IsDeadlineExceeded(waited)) return waited;
    const TimePoint now = Clock::now();
    if (now >= limit) return NoAnswer(what, now - begin, patience.has_value());
  }
  uint64_t ignored;
  (void)!read(question->done.get(), &ignored, sizeof(ignored));
  if (question->error == 0 || NameIsUnknown(question->error)) answers.Add(Clock::now() - begin);
  if (question->error == 0) return question->list;
  const char* why = question->error == EAI_SYSTEM ? PosixErrorText(question->system_error).data()
                                                  : gai_strerror(question->error);
  const std::string text = absl::StrCat(
      what, ": ", why, "; check the spelling, or give it a HostName in the ssh configuration");
  return NameIsUnknown(question->error) ? UnknownHostError(text) : absl::UnavailableError(text);
}

}  // namespace dtrain::transport
