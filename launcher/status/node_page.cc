// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/node_page.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"

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

}  // namespace dtrain::status
