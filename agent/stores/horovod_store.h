// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "dtrain/v1/store.pb.h"

namespace dtrain::stores {

// What Horovod's ranks keep at the server that horovodrun would start for them: values by scope and
// key, at "/scope/key". Pure.
//
// Source: horovod/runner/http/http_server.py and horovod/common/gloo/{gloo_context,http_store}.cc.
class HorovodStore {
 public:
  explicit HorovodStore(const v1::Meeting& meeting);

  struct Reply {
    int status = 200;
    std::string body;
  };
  // What a target names: "/scope/key". Absent: it is none.
  struct Place {
    std::string scope, key;
  };
  static std::optional<Place> PlaceOf(absl::string_view target);
  // `verb` as in the request; `target` begins with the slash.
  Reply Handle(absl::string_view verb, absl::string_view target, std::string body);

  // Of all values, with their names.
  size_t bytes() const { return bytes_; }
  // By the number of the job's ranks: of a value, which the caller checks, and of bytes().
  size_t most_value() const { return most_value_; }
  size_t most_bytes() const { return most_bytes_; }

 private:
  using Scope = std::map<std::string, std::string>;
  Reply Get(const std::string& scope, const std::string& key) const;
  Reply Put(const std::string& scope, const std::string& key, std::string value);
  Reply Delete(const std::string& scope, const std::string& key);
  void Drop(std::map<std::string, Scope>::iterator scope);

  std::map<std::string, Scope> scopes_;
  // For scopes known from the plan: the number of their ranks, and which of them are done.
  std::map<std::string, uint32_t> sizes_;
  std::map<std::string, std::set<std::string>> done_;
  size_t bytes_ = 0;
  size_t most_value_ = 0, most_bytes_ = 0;
};

}  // namespace dtrain::stores
