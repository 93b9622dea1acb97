// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_link.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "common/base/check.h"

namespace dtrain::transport {

SshLink::SshLink(loop::Loop& loop)
    : loop_(loop), cancel_(eventfd(0, EFD_CLOEXEC)), ended_future_(ended_.get_future()) {}

SshLink::~SshLink() { os::UniqueFd last(socket_.exchange(-1)); }

void SshLink::Cancel() {
  cancelled_ = true;
  if (!cancel_) return;  // nor is there anything to cancel
  uint64_t one = 1;
  DTRAIN_CHECK(write(cancel_.get(), &one, sizeof(one)) == sizeof(one));
}

void SshLink::Sever() {
  os::UniqueFd socket(socket_.exchange(-1));
  if (socket) shutdown(socket.get(), SHUT_RDWR);
}

void SshLink::Post(const std::shared_ptr<SshLink>& link,
                   absl::AnyInvocable<void(SshEvents&)> event) {
  PostTask(link, [link, event = std::move(event)]() mutable {
    if (link->events_ != nullptr) event(*link->events_);
  });
}

void SshLink::PostTask(const std::shared_ptr<SshLink>& link, loop::Task task) {
  if (!link->abandoned_) link->loop_.Post(std::move(task));
}

}  // namespace dtrain::transport
