// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/page_command.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/http/passage.h"
#include "common/http/server.h"
#include "common/loop/loop.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/signals.h"
#include "common/os/spawn.h"
#include "launcher/page/page.h"
#include "launcher/status/print.h"
#include "launcher/status/status_server.h"

namespace dtrain::status {
namespace {

// Agents answer within milliseconds, unless they are stopped or far away.
constexpr Duration kNodePatience = std::chrono::seconds(1);
// While nothing is known of the node. The page itself gives up after 10 s, and would not say why.
constexpr Duration kFirstPatience = std::chrono::seconds(8);

}  // namespace

NodePage::NodePage(std::unique_ptr<nodes::Agents> agents)
    : agents_(std::move(agents)), watch_(agents_->host(0)), patience_(agents_->loop()) {}

void NodePage::Answer(const http::Target& target, http::Reply reply) {
  if (target.path != "/v1/node") return reply(http::ErrorResponse(404, "there is no such page"));
  if (watch_.OnLook(loop().Now())) Ask();
  if (!watch_.is_asking()) return reply(Now());
  waiting_.push_back(std::move(reply));
  if (waiting_.size() > 1) return;
  patience_.After(watch_.knows() ? kNodePatience : kFirstPatience, [this] { AnswerAll(); });
}

void NodePage::Ask() {
  agents_->AskLater(0, [this](absl::StatusOr<v1::NodeReport> answer) {
    if (watch_.OnAnswer(loop().Now(), std::move(answer))) agents_->Disconnect(0);
    AnswerAll();
  });
}

void NodePage::AnswerAll() {
  patience_.Cancel();
  for (http::Reply& reply : std::exchange(waiting_, {})) reply(Now());
}

http::Response NodePage::Now() const {
  if (watch_.knows()) return http::JsonResponse(watch_.View(agents_->loop().Now()));
  if (watch_.failure().ok()) {
    return http::ErrorResponse(504, absl::StrCat(host(), " has not answered yet"));
  }
  return http::ErrorResponse(502,
                             absl::StrCat(host(), ": ", Escape(watch_.failure().message(), 1000)));
}

namespace {

constexpr size_t kTokenBytes = 32;
// The page itself gives up after 10 s, and would not say why.
constexpr Duration kAnswerPatience = std::chrono::seconds(8);

// A file that sends who opens it to the link. Goes away with this.
class LinkFile {
 public:
  static absl::StatusOr<std::unique_ptr<LinkFile>> Make(const std::string& name,
                                                        const std::string& link) {
    const absl::StatusOr<std::string> directory = RuntimeDirectory();
    if (!directory.ok()) return directory.status();
    std::unique_ptr<LinkFile> file(
        new LinkFile(absl::StrCat(*directory, "/", name, ".page-", getpid(), ".html")));
    const os::UniqueFd fd(
        open(file->path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd) return PosixError(errno, absl::StrCat("make ", file->path_));
    file->is_ours_ = true;
    const std::string text =
        absl::StrCat("<!doctype html>\n<meta charset=\"utf-8\">\n<title>dtrain</title>\n",
                     "<meta http-equiv=\"refresh\" content=\"0; url=", link, "\">\n");
    if (write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      return PosixError(errno, absl::StrCat("write ", file->path_));
    }
    return file;
  }
  ~LinkFile() {
    if (is_ours_) unlink(path_.c_str());
  }
  LinkFile(const LinkFile&) = delete;
  LinkFile& operator=(const LinkFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit LinkFile(std::string path) : path_(std::move(path)) {}
  const std::string path_;
  bool is_ours_ = false;
};

// The program that opens a file for this user. It may be the browser itself, which outlives us.
class Browser {
 public:
  explicit Browser(loop::Loop& loop) : loop_(loop) {}

  void Open(const std::string& path) {
    const char* chosen = getenv("BROWSER");
    const std::string program = chosen == nullptr || *chosen == '\0' ? "xdg-open" : chosen;
    os::SpawnSpec spec;
    spec.argv = {program, path};
    spec.env = os::OwnEnvironment();
    spec.new_session = true;
    auto child = os::Spawn(spec);
    if (!child.ok()) return Say(path, child.status().message());
    child_ = *std::move(child);
    watch_.emplace(loop_, child_.pidfd.get());
    Wait(program, path);
  }

 private:
  void Wait(const std::string& program, const std::string& path) {
    watch_->OnReadable([this, program, path] {
      const auto end = os::TryReap(child_.pidfd.get());
      if (end.ok() && !end->has_value()) return Wait(program, path);
      watch_.reset();
      if (!end.ok() || ((*end)->code == 0 && (*end)->signal == 0)) return;
      Say(path, absl::StrCat(Escape(program, 200), " failed"));
    });
  }
  static void Say(const std::string& path, absl::string_view why) {
    std::fprintf(stderr, "dtrain: page: no browser was opened: %s; open %s in one\n",
                 std::string(why).c_str(), path.c_str());
  }
  loop::Loop& loop_;
  os::Child child_;
  std::optional<loop::FdWatch> watch_;
};

// What the page is about.
struct Subject {
  page::Shows shows = page::Shows::kJob;
  std::string text;  // for people
  std::string name;  // of a file
};

Subject OfJob(const std::string& id) { return {page::Shows::kJob, id, id}; }

// `answers`: of everything but the page itself. `listen`, `open`: as ServePage has them.
absl::Status Serve(loop::Loop& loop, const Subject& subject, http::AsyncHandler answers,
                   const std::string& listen, bool open) {
  const bool on_terminal = isatty(STDOUT_FILENO) == 1;
  if (!on_terminal && !open) {
    return absl::InvalidArgumentError(
        "the link has a token in it, so it is printed to a terminal only; run it in one, or with "
        "--open");
  }
  const auto listening = http::ParseListening(listen);
  if (!listening.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: ", listening.status().message()));
  }
  os::FailWritesWithoutSignals();
  // Before there is a link: who reads it may end us at once.
  loop::SignalWatch ends(loop, {SIGINT, SIGTERM, SIGHUP}, [&](int) { loop.Stop(); });
  const std::string token = os::RandomHex(kTokenBytes);
  auto server = http::Server::ListenTcp(
      loop, listening->ip, listening->port, token,
      http::AsyncHandler([&](const http::Target& target, http::Reply reply) {
        if (target.path == "/") return reply(PageResponse(subject.shows));
        answers(target, std::move(reply));
      }));
  if (!server.ok()) {
    return absl::Status(server.status().code(),
                        absl::StrCat("--listen: ", server.status().message()));
  }
  const std::string link = absl::StrCat("http://", (*server)->address(), "/#t=", token);
  if (on_terminal) Print(link + "\n");
  std::fflush(stdout);
  std::fprintf(stderr, "dtrain: page of %s; Ctrl-C ends it\n", subject.text.c_str());
  std::unique_ptr<LinkFile> file;
  Browser browser(loop);
  if (open) {
    auto made = LinkFile::Make(subject.name, link);
    if (!made.ok()) return made.status();
    file = *std::move(made);
    browser.Open(file->path());
  }
  loop.Run();
  return absl::OkStatus();
}

}  // namespace

absl::Status ServePage(const LiveJob& job, const std::string& listen, bool open) {
  loop::Loop loop;
  return Serve(
      loop, OfJob(job.id),
      [&](const http::Target& target, http::Reply reply) {
        http::PassOn(loop, job.socket, target, kAnswerPatience, std::move(reply));
      },
      listen, open);
}

absl::Status ServePage(const EndedJob& job, const std::string& listen, bool open) {
  loop::Loop loop;
  return Serve(
      loop, OfJob(job.id()),
      [&job](const http::Target& target, http::Reply reply) { reply(job.Answer(target)); }, listen,
      open);
}

absl::Status ServePage(NodePage& node, const std::string& listen, bool open) {
  const std::string host = Escape(node.host(), 200);
  return Serve(
      node.loop(), {page::Shows::kNode, absl::StrCat("node ", host), absl::StrCat("node-", host)},
      [&node](const http::Target& target, http::Reply reply) {
        node.Answer(target, std::move(reply));
      },
      listen, open);
}

}  // namespace dtrain::status
