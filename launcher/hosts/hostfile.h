// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/source.h"

// Which machines a job may use, as people write them. Pure but for ReadHostfile: text in, values
// out. Every error of the text is InvalidArgument and reads `FILE:LINE:COL: what: "text"; what to
// do`. docs/hostfile.md has the grammar.

namespace dtrain::hosts {

// One machine. Names and users hold only characters that are harmless in any command line.
struct HostEntry {
  std::string host;               // a name, an IPv4 address, or an IPv6 address without brackets
  std::string user;               // empty: whatever ssh would take
  uint16_t port = 0;              // 0: whatever ssh would take
  std::optional<uint32_t> slots;  // none: gpus, else the GPUs the node reports, else its cores
  bool slots_asked = false;  // they are ranks that were asked for, and say nothing of the machine
  bool slots_like_port = false;       // written :22 or :2222, perhaps to give a port
  bool single_slot = false;           // of a resource manager, perhaps its default
  std::optional<uint32_t> max_slots;  // at least slots
  std::optional<uint32_t> gpus;       // GPUs of the node the job may use; 0: none of them
  // --include and --exclude, by nvidia-smi's numbers: these alone, in this order (empty: all), and
  // none of those.
  std::vector<uint32_t> only_gpus;
  std::vector<uint32_t> without_gpus;
  Way way = Way::kUnsaid;  // agent=ssh, agent=tcp
  uint32_t line = 0;       // of the first mention, both from 1
  uint32_t column = 0;
};

// Machines in the order of their first mention, each once, at least one.
struct HostList {
  std::vector<HostEntry> entries;
  std::vector<std::string> warnings;  // for people, without a trailing newline
};

inline constexpr size_t kMaxHosts = 65536;    // in one list, counted before ranges are expanded
inline constexpr uint32_t kMaxSlots = 65535;  // of one host, all its mentions together

// A host file. `name` is what messages call it, usually its path.
absl::StatusOr<HostList> ParseHostfile(absl::string_view text, absl::string_view name);

// The value of -H/--hosts: `a:4,b[1-3]:2,user@c`.
absl::StatusOr<HostList> ParseHostList(absl::string_view text, absl::string_view name = "--hosts");

// Whether `host` is a name or address the parsers above would accept, for names that come from
// elsewhere; the message has no position.
absl::Status CheckHostName(absl::string_view host);

class HostListBuilder;

// Adds every line of a host file to `builder`. A line that gives no slots has `default_slots`: a
// resource manager's node file means one slot by each line.
absl::Status AddHostfileLines(const Source& source, absl::string_view text,
                              std::optional<uint32_t> default_slots, HostListBuilder& builder);

inline constexpr size_t kMaxHostfileBytes = 10 << 20;

// The text of a host file or rankfile. Never blocks: only regular files are read. Fails, with the
// path and the reason, for anything else, for NUL bytes and beyond kMaxHostfileBytes. "-" is a
// file of that name.
absl::StatusOr<std::string> ReadHostfile(const std::string& path);

}  // namespace dtrain::hosts
