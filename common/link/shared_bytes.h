// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace dtrain::link {

// Bytes that never change, and a view of some of them: copying it copies no bytes. A message to a
// thousand nodes exists once, and so do the pieces that it is cut into. Any thread.
class SharedBytes {
 public:
  SharedBytes() = default;
  explicit SharedBytes(std::string bytes) {
    auto owner = std::make_shared<const std::string>(std::move(bytes));
    view_ = *owner;
    whole_ = owner->size();
    owner_ = std::move(owner);
  }
  // `owner` holds `whole` bytes, `view` among them, until its last copy is gone.
  SharedBytes(std::shared_ptr<const void> owner, absl::string_view view, size_t whole)
      : owner_(std::move(owner)), view_(view), whole_(whole) {}

  absl::string_view view() const { return view_; }
  size_t size() const { return view_.size(); }
  SharedBytes Sub(size_t offset, size_t size) const {
    return SharedBytes(owner_, view_.substr(offset, size), whole_);
  }
  // What stays in memory as long as this does: two with the same owner count once.
  const void* owner() const { return owner_.get(); }
  size_t whole() const { return whole_; }

 private:
  std::shared_ptr<const void> owner_;
  absl::string_view view_;
  size_t whole_ = 0;
};

}  // namespace dtrain::link
