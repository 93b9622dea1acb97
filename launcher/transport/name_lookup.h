// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netdb.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"

// From a host's name to its addresses.
namespace dtrain::transport {

// How long the name servers took for the hosts of one command so far. Any thread. Copies share it:
// threads that ask may outlive the command's part that waits.
class NameAnswers {
 public:
  // Of a name that this machine does not know by itself.
  void Add(Duration took);
  // How long one more name is worth waiting for: three seconds, and more where the servers have
  // been seen to be slow (glibc asks a second one only after five). None before the first answer.
  std::optional<Duration> Patience() const;
  // The number of threads that ask for a name again.
  std::atomic<int>& asking_again() const { return shared_->asking_again; }

 private:
  struct Shared {
    std::atomic<int> asking_again{0};
    std::atomic<int64_t> slowest_ms{-1};
  };

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

struct AddressList {
  AddressList() = default;
  ~AddressList() {
    if (first != nullptr) freeaddrinfo(first);
  }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  addrinfo* first = nullptr;
};

// Whether a file like /etc/hosts has an address for `host`.
bool NamesHost(absl::string_view hosts_file, absl::string_view host);

// Asks for stream sockets of `family` (AF_UNSPEC: any) to `port` of `host`; messages call it
// `shown`. Blocks, but never longer than `deadline` or `answers`' patience, and no longer than
// until `cancel` becomes readable. IsUnknownHost: there is no such name. UNAVAILABLE: nobody could
// tell. CANCELLED. Asks a second time after a second: a packet may be lost.
absl::StatusOr<std::shared_ptr<const AddressList>> LookUp(const std::string& host,
                                                          const std::string& shown, uint16_t port,
                                                          int family, NameAnswers& answers,
                                                          TimePoint deadline, int cancel);

}  // namespace dtrain::transport
