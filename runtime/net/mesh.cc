// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/mesh.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

namespace dtrain::runtime {
namespace {

using Milliseconds = std::chrono::milliseconds;

// For all connections, once every rank listens: a firewall that drops packets shows after this.
constexpr Milliseconds kConnectPatience = std::chrono::seconds(60);
// For the other machines to take the reason of a failure.
constexpr Milliseconds kNoticePatience{200};
// For another member's reason to arrive where one connection has broken already.
constexpr Milliseconds kRumourPatience{300};
constexpr Milliseconds kGlance{10};

Deadline In(Milliseconds time) { return std::chrono::steady_clock::now() + time; }

}  // namespace

Result<std::unique_ptr<Mesh>> Mesh::Make(int node, std::vector<int> leaders,
                                         const std::string& ip) {
  auto links = Links::Listen(node, leaders, ip);
  if (!links.ok()) return links.error();
  std::unique_ptr<Mesh> mesh(new Mesh(node, std::move(leaders)));
  mesh->links_ = std::move(*links);
  mesh->endpoint_ = mesh->links_->endpoint();
  return mesh;
}

MaybeError Mesh::Connect(const std::vector<NodeEndpoint>& endpoints, Deadline deadline) {
  const std::unique_ptr<Links> links = std::move(links_);
  if (MaybeError error = links->Connect(endpoints, std::min(deadline, In(kConnectPatience)))) {
    return error;
  }
  auto streams = Streams::Make(leaders_, links->Take(Links::Use::kData));
  if (!streams.ok()) return streams.error();
  auto control = Control::Make(links->Take(Links::Use::kControl));
  if (!control.ok()) return control.error();
  streams_ = std::move(*streams);
  control_ = std::move(*control);
  return std::nullopt;
}

MaybeError Mesh::Await(Flight& flight, Deadline deadline) {
  MaybeError error = streams_->Await(flight, deadline);
  if (!error) return std::nullopt;
  if (MaybeError interrupted = Interrupted()) return interrupted;
  return Explain(*error);
}

Error Mesh::Explain(Error error) {
  // A member that closes its connections has told everybody why; a dead one has not.
  for (auto left = kRumourPatience; left.count() > 0; left -= kGlance) {
    if (MaybeError notice = Notice()) return *notice;
    if (error.code != DTRAIN_ERROR_NETWORK) break;
    std::this_thread::sleep_for(kGlance);
  }
  return error;
}

MaybeError Mesh::Notice() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return notice_;
}

MaybeError Mesh::Interrupted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return interrupted_;
}

MaybeError Mesh::Listen(const std::function<void(const Leaver&)>& hear, Deadline deadline) {
  std::string lost;
  std::string why;
  while (!stopping_.load()) {
    const std::optional<Control::News> news = control_->Await(deadline);
    if (!news) break;
    switch (news->kind) {
      case Control::News::kLeaving:
        hear(news->leaver);
        break;
      case Control::News::kFailed: {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!notice_) {
          told_number_.store(news->number);
          notice_ = news->error;
        }
        return notice_;
      }
      case Control::News::kLost:
        // A member that closes its connections has told everybody why; a dead one has not. Others
        // may have heard from it, or go with it.
        deadline = std::min(deadline, In(kRumourPatience));
        lost += (lost.empty() ? "rank " : " and rank ") +
                std::to_string(leaders_[static_cast<size_t>(news->node)]);
        why = news->error.message;
        break;
    }
  }
  if (stopping_.load() || lost.empty()) return std::nullopt;
  return Error{DTRAIN_ERROR_NETWORK, "lost the connection to " + lost + " (" + why + ")"};
}

void Mesh::StopListening() {
  stopping_.store(true);
  if (control_ != nullptr) control_->Stop();
}

void Mesh::TellLeaving(const Leaver& leaver) {
  if (!aborted_.load()) control_->TellLeaving(leaver);
}

void Mesh::Close() {
  if (streams_ != nullptr) streams_->Shutdown();
  if (control_ != nullptr) control_->Shutdown();
}

void Mesh::Interrupt(const Error& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!interrupted_) interrupted_ = reason;
  streams_->Interrupt();
}

void Mesh::Abort(const Error& reason, uint32_t number) {
  Interrupt(reason);
  if (aborted_.exchange(true)) return;
  control_->TellFailure(reason, number);
  control_->Finish(In(kNoticePatience));
  // Whoever waits for this node shall not wait until its own timeout.
  streams_->Shutdown();
}

}  // namespace dtrain::runtime
