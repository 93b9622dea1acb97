// SPDX-License-Identifier: Apache-2.0
#include "launcher/host_watch.h"

#include <algorithm>
#include <utility>

namespace dtrain {

HostWatch::HostWatch(loop::Loop& loop, transport::Ways& ways, Duration pause, OnLooked on_looked)
    : loop_(loop), ways_(ways), pause_(pause), on_looked_(std::move(on_looked)) {}

HostWatch::~HostWatch() = default;

void HostWatch::Watch(const hosts::HostList& all, const std::vector<uint32_t>& hosts) {
  std::erase_if(looks_, [&hosts](const auto& look) {
    return std::find(hosts.begin(), hosts.end(), look.first) == hosts.end();
  });
  for (const uint32_t host : hosts) {
    auto& look = looks_[host];
    if (look != nullptr) continue;
    look = std::make_unique<Look>(loop_);
    look->entry = all.entries[host];
    Begin(host, *look);
  }
}

void HostWatch::Begin(uint32_t host, Look& look) {
  transport::Callbacks callbacks;
  callbacks.on_phase = [](transport::Phase) {};
  callbacks.on_ready = [this, host, &look](const os::UniqueFd&) { OnEnd(host, look, true); };
  callbacks.on_failed = [this, host, &look](const absl::Status&) { OnEnd(host, look, false); };
  transport::Target target{look.entry.host, look.entry.user, look.entry.port};
  target.asks = true;
  look.connection = ways_.For(look.entry).Connect(target, std::move(callbacks));
}

// on_looked_ comes last: it may end this look.
void HostWatch::OnEnd(uint32_t host, Look& look, bool reachable) {
  look.connection.reset();
  look.next.After(pause_, [this, host, &look] { Begin(host, look); });
  on_looked_(host, reachable);
}

}  // namespace dtrain
