// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/xid_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace dtrain::inventory {
namespace {

// A record is at most this long, and a read that has no room for one fails.
constexpr size_t kRecord = 8192;
// Of one look: more than the kernel's buffer holds. Somebody writes as fast as we read.
constexpr int kMostReads = 100'000;
constexpr size_t kMostFound = 1000;  // of one look; a GPU in trouble repeats itself

bool IsPciAddress(absl::string_view text) {
  for (const char c : text) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c)) && c != ':') return false;
  }
  return text.size() >= 10 && text.size() <= 16;
}

}  // namespace

std::optional<std::pair<std::string, uint32_t>> ParseXid(absl::string_view record) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(record, absl::MaxSplits(';', 1));
  const std::pair<absl::string_view, absl::string_view> head =
      absl::StrSplit(halves.first, absl::MaxSplits(',', 1));
  uint32_t priority = 0;
  // Priorities from 8 on are of other facilities than the kernel.
  if (!absl::SimpleAtoi(head.first, &priority) || priority >= 8) return std::nullopt;
  absl::string_view text = halves.second;
  if (!absl::ConsumePrefix(&text, "NVRM: Xid (PCI:")) return std::nullopt;
  const size_t close = text.find("): ");
  if (close == text.npos) return std::nullopt;
  const absl::string_view address = text.substr(0, close);
  text.remove_prefix(close + 3);
  uint32_t number = 0;
  if (!IsPciAddress(address) || !absl::SimpleAtoi(text.substr(0, text.find(',')), &number)) {
    return std::nullopt;
  }
  return std::pair(absl::AsciiStrToLower(address), number);
}

XidWatch::XidWatch(const std::string& kernel_log)
    : log_(open(kernel_log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)) {
  if (log_) (void)lseek(log_.get(), 0, SEEK_END);
}

XidWatch::Found XidWatch::TakeNew() {
  Found found;
  char buffer[kRecord];
  for (int i = 0; log_ && i < kMostReads; ++i) {
    const ssize_t n = read(log_.get(), buffer, sizeof(buffer));
    // EPIPE: records were overwritten before we had read them; the next read goes on behind.
    if (n < 0 && (errno == EINTR || errno == EPIPE)) continue;
    if (n <= 0) break;
    rest_.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = rest_.find('\n')) != rest_.npos; rest_.erase(0, end + 1)) {
      if (auto xid = ParseXid(absl::string_view(rest_).substr(0, end))) {
        last_[xid->first] = xid->second;
        if (found.size() < kMostFound) found.push_back(*std::move(xid));
      }
    }
    if (rest_.size() > kRecord) rest_.clear();
  }
  return found;
}

void XidWatch::Note(v1::Inventory& inventory) {
  TakeNew();
  for (v1::Gpu& gpu : *inventory.mutable_gpus()) {
    absl::string_view address = gpu.pci_address();
    auto found = last_.find(address.substr(0, address.rfind('.')));
    if (found != last_.end()) gpu.set_last_xid(found->second);
  }
}

}  // namespace dtrain::inventory
