// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/name_lookup.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// A query or its answer may be lost, and glibc repeats it only after five seconds.
constexpr milliseconds kAskAgain(1000);
// Threads of one command that ask again: where all names wait, asking again seldom helps.
constexpr int kMostAskingAgain = 16;

struct Answer {
  std::shared_ptr<AddressList> list = std::make_shared<AddressList>();
  int error = 0;
  int system_error = 0;
};

// What the threads that ask share with the caller, who waits for the first answer.
struct Question {
  std::string host;
  std::string service;
  addrinfo hints = {};
  NameAnswers answers;
  const TimePoint begin = Clock::now();
  std::atomic<bool> answered{false};
  Answer answer;  // once `done` is readable
  os::UniqueFd done;
};

bool NameIsUnknown(int error) {
#ifdef EAI_NODATA
  if (error == EAI_NODATA) return true;  // the name is there, without an address
#endif
  return error == EAI_NONAME;
}

bool IsDefinite(int error) { return error == 0 || NameIsUnknown(error); }

// Without a name server: by /etc/hosts, or as this machine's own name.
bool IsKnownHere(const std::string& host) {
  char own[HOST_NAME_MAX + 1] = {};
  if (gethostname(own, sizeof(own) - 1) == 0 && absl::EqualsIgnoreCase(own, host)) return true;
  std::ifstream file("/etc/hosts");
  std::stringstream text;
  text << file.rdbuf();
  return NamesHost(text.str(), host);
}

// Trouble of the second thread says nothing while the first still waits. An answer that comes after
// the caller's patience has ended still says how slow the servers are: the next try waits for it.
void Ask(Question& question, bool again) {
  Answer answer;
  answer.error = getaddrinfo(question.host.c_str(), question.service.c_str(), &question.hints,
                             &answer.list->first);
  answer.system_error = errno;
  if (again && !IsDefinite(answer.error)) return;
  if (question.answered.exchange(true)) return;
  // This machine's own word says nothing of the name servers.
  if (IsDefinite(answer.error) && !IsKnownHere(question.host)) {
    question.answers.Add(Clock::now() - question.begin);
  }
  question.answer = std::move(answer);
  const uint64_t one = 1;
  (void)!write(question.done.get(), &one, sizeof(one));
}

absl::Status StartAsking(const std::string& what, const std::shared_ptr<Question>& question) {
  auto thread = loop::StartThread(what, [question] { Ask(*question, /*again=*/false); });
  if (thread.ok()) thread->detach();
  return thread.status();
}

// One more try, where there is room for it.
void StartAskingAgain(const std::string& what, const std::shared_ptr<Question>& question) {
  std::atomic<int>& asking_again = question->answers.asking_again();
  if (asking_again.fetch_add(1) >= kMostAskingAgain) {
    asking_again.fetch_sub(1);
    return;
  }
  auto thread = loop::StartThread(what, [question] {
    Ask(*question, /*again=*/true);
    question->answers.asking_again().fetch_sub(1);
  });
  if (thread.ok()) {
    thread->detach();
  } else {
    asking_again.fetch_sub(1);
  }
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
  absl::Status why = absl::UnavailableError(absl::StrCat(
      what, ": the name servers did not answer within ",
      std::chrono::round<std::chrono::seconds>(waited).count(), " s",
      others_answered ? ", though they did for other hosts; check the spelling, or give it a "
                        "HostName in the ssh configuration"
                      : "; see /etc/resolv.conf"));
  return PassingError(std::move(why), "name servers do not answer");
}

}  // namespace

void NameAnswers::Add(Duration took) {
  const int64_t ms = std::chrono::ceil<milliseconds>(took).count();
  int64_t before = shared_->slowest_ms.load();
  while (before < ms && !shared_->slowest_ms.compare_exchange_weak(before, ms)) {
  }
}

std::optional<Duration> NameAnswers::Patience() const {
  const int64_t slowest = shared_->slowest_ms.load();
  if (slowest < 0) return std::nullopt;
  return std::max<Duration>(kLeastPatience, 2 * milliseconds(slowest));
}

bool NamesHost(absl::string_view hosts_file, absl::string_view host) {
  for (absl::string_view line : absl::StrSplit(hosts_file, '\n')) {
    line = line.substr(0, line.find('#'));
    bool is_address = true;
    for (absl::string_view word :
         absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
      if (!std::exchange(is_address, false) && absl::EqualsIgnoreCase(word, host)) return true;
    }
  }
  return false;
}

// getaddrinfo cannot be called off, so it has a thread of its own that may be left behind: a dead
// name server must not hold up the end of a launch.
absl::StatusOr<std::shared_ptr<const AddressList>> LookUp(const std::string& host,
                                                          const std::string& shown, uint16_t port,
                                                          int family, NameAnswers& answers,
                                                          TimePoint deadline, int cancel) {
  auto question = std::make_shared<Question>();
  question->answers = answers;
  question->host = host;
  question->service = absl::StrCat(port);
  question->hints.ai_family = family;
  question->hints.ai_socktype = SOCK_STREAM;
  question->hints.ai_flags = AI_NUMERICHOST;
  // An address is not looked up anywhere.
  auto numeric = std::make_shared<AddressList>();
  if (getaddrinfo(host.c_str(), question->service.c_str(), &question->hints, &numeric->first) ==
      0) {
    return numeric;
  }
  question->hints.ai_flags = 0;
  question->done.Reset(eventfd(0, EFD_CLOEXEC));
  if (!question->done) return PosixError(errno, "create an eventfd");
  const std::string what = absl::StrCat("resolve the name ", Escape(shown));
  const TimePoint begin = question->begin;
  if (absl::Status asking = StartAsking(what, question); !asking.ok()) return asking;
  bool asked_again = false;
  for (;;) {
    const std::optional<Duration> patience = answers.Patience();
    const TimePoint limit = patience ? std::min(deadline, begin + *patience) : deadline;
    const absl::Status waited =
        Wait(question->done.get(), std::min(limit, Clock::now() + kLook), cancel);
    if (waited.ok()) break;
    if (!absl::IsDeadlineExceeded(waited)) return waited;
    const TimePoint now = Clock::now();
    if (now >= limit) return NoAnswer(what, now - begin, patience.has_value());
    if (now >= begin + kAskAgain && !std::exchange(asked_again, true)) {
      StartAskingAgain(what, question);
    }
  }
  uint64_t ignored;
  (void)!read(question->done.get(), &ignored, sizeof(ignored));
  const Answer& answer = question->answer;
  if (answer.error == 0) return answer.list;
  const char* why = answer.error == EAI_SYSTEM ? PosixErrorText(answer.system_error).data()
                                               : gai_strerror(answer.error);
  const std::string text = absl::StrCat(
      what, ": ", why, "; check the spelling, or give it a HostName in the ssh configuration");
  const bool unknown = NameIsUnknown(answer.error);
  return PassingError(unknown ? UnknownHostError(text) : absl::UnavailableError(text),
                      unknown ? "name not known" : "name servers do not answer");
}

}  // namespace dtrain::transport
