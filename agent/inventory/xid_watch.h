// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/node.pb.h"

namespace dtrain::inventory {

// NVIDIA's driver tells GPU errors ("Xid 79: GPU has fallen off the bus") by events of NVML, for
// which a process would have to keep the driver open all the time, and by the kernel log. This
// reads the log, as far as it may (CAP_SYSLOG, unless kernel.dmesg_restrict is 0): only when asked,
// and then what has come since the last time. One thread at a time.
class XidWatch {
 public:
  // Counts what comes from now on.
  explicit XidWatch(const std::string& kernel_log = "/dev/kmsg");
  // Sets the last Xid of those GPUs that have had one.
  void Note(v1::Inventory& inventory);
  // Each that has come since the last call of this or of Note, with the PCI address without the
  // function, in order.
  using Found = std::vector<std::pair<std::string, uint32_t>>;
  Found TakeNew();
  // -1: it may not be read. Readable when something has come.
  int fd() const { return log_.get(); }

 private:
  os::UniqueFd log_;                                   // -1: it may not be read
  std::string rest_;                                   // of a line that was not whole
  std::map<std::string, uint32_t, std::less<>> last_;  // by PCI address without the function
};

// PCI address ("0000:3b:00") and number of a record of the kernel log that tells of an Xid, such as
// "4,1234,5678,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=...". Records that programs have written are
// none. Pure.
std::optional<std::pair<std::string, uint32_t>> ParseXid(absl::string_view record);

}  // namespace dtrain::inventory
