// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace dtrain::auth {

// How many connections a resident agent holds, and whose: so that strangers cannot take the places
// of its users, nor one user those of the others. PURE.
class Places {
 public:
  enum class Pool {
    kHandshake,  // over TCP, and not known yet; "of one" is an address (IPv6: its /64)
    kTls,        // known by a certificate
    kUnix,       // known by the kernel
    kLookup,     // on the unix socket of HTTP, while the account is looked up
  };
  enum class Rank {
    kOrdinary,
    kResumes,  // has a job here whose launcher is not connected
    kAdmin,
  };
  struct Limit {
    size_t all;
    size_t of_one;
  };
  struct Limits {
    Limit handshake = {128, 16};
    // A launcher has one connection per node, so "of one" is as many jobs at a time.
    Limit tls = {640, 128};
    Limit unix_socket = {352, 128};
    Limit lookup = {256, 32};
    // Beyond all that, for admins; resumes may take half of it.
    Limit kept = {32, 8};
  };
  // A place, until it is destroyed. Places must outlive it.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&&) = default;
    Ticket& operator=(Ticket&& other) noexcept {
      Leave();
      places_ = std::move(other.places_);
      pool_ = other.pool_;
      of_ = std::move(other.of_);
      return *this;
    }
    ~Ticket() { Leave(); }
    const std::string& of() const { return of_; }

   private:
    friend class Places;
    void Leave();
    struct Forget {
      void operator()(Places*) const {}
    };
    std::unique_ptr<Places, Forget> places_;  // null: none
    int pool_ = 0;
    std::string of_;
  };

  Places() : Places(Limits()) {}
  explicit Places(const Limits& limits);
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;

  // RESOURCE_EXHAUSTED with the number of places that are taken.
  absl::StatusOr<Ticket> Take(Pool pool, const std::string& of, Rank rank = Rank::kOrdinary);
  // Who is to give a place of the pool to `of`: `of` itself, when it has its share, as its
  // connections may be of many users; or, where no place is left, who has the most. Empty: there is
  // room, or nobody has more than `of`, who has none.
  std::string WhoIsToYield(Pool pool, const std::string& of) const;

 private:
  static constexpr int kKept = 4;
  static constexpr int kPools = 5;
  struct Taken {
    Limit limit;
    size_t all = 0;
    std::map<std::string, size_t> by;
  };
  absl::StatusOr<Ticket> TakeFrom(int pool, size_t most, const std::string& of);
  Taken taken_[kPools];
};

}  // namespace dtrain::auth
