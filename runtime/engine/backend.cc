// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/backend.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "runtime/nccl/libraries.h"
#include "runtime/nccl/nccl_communicator.h"

namespace dtrain::runtime {
namespace {

// The text up to the next newline, which is removed with it.
std::string_view TakeLine(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

template <typename T>
bool ParseNumber(std::string_view text, T& value) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && rest == text.data() + text.size();
}

const char* ChoiceText(BackendChoice choice) {
  switch (choice) {
    case BackendChoice::kAuto:
      return "auto";
    case BackendChoice::kCpu:
      return "cpu";
    case BackendChoice::kNccl:
      return "nccl";
  }
  return "?";
}

std::string NameOf(const Group& group) {
  return group.id == 0 ? "" : "the group of ranks " + MembersText(group);
}

}  // namespace

std::string EncodeHello(const Hello& hello) {
  return std::to_string(static_cast<int>(hello.wanted)) + "\n" + Printable(hello.no_nccl) + "\n" +
         std::to_string(hello.fusion_threshold) + "\n" + std::to_string(hello.cycle_us);
}

bool DecodeHello(const std::string& text, Hello& hello) {
  std::string_view rest = text;
  int wanted = 0;
  if (!ParseNumber(TakeLine(rest), wanted) || wanted < 0 || wanted > 2) return false;
  hello.wanted = static_cast<BackendChoice>(wanted);
  hello.no_nccl = Printable(TakeLine(rest));
  if (!ParseNumber(TakeLine(rest), hello.fusion_threshold)) return false;
  return ParseNumber(rest, hello.cycle_us);
}

Result<bool> ChooseNccl(const std::vector<Hello>& hellos) {
  for (size_t r = 1; r < hellos.size(); ++r) {
    if (hellos[r].wanted == hellos[0].wanted) continue;
    return Error{DTRAIN_ERROR_ENVIRONMENT,
                 std::string("DTRAIN_BACKEND is ") + ChoiceText(hellos[0].wanted) +
                     " on rank 0, but " + ChoiceText(hellos[r].wanted) + " on rank " +
                     std::to_string(r) + "; it must be the same everywhere"};
  }
  if (hellos[0].wanted == BackendChoice::kCpu) return false;
  const auto cannot = [](const Hello& hello) { return !hello.no_nccl.empty(); };
  const auto first = std::find_if(hellos.begin(), hellos.end(), cannot);
  if (first == hellos.end()) return true;
  const bool wanted = hellos[0].wanted == BackendChoice::kNccl;
  if (!wanted && std::all_of(hellos.begin(), hellos.end(), cannot)) return false;
  const auto can = std::find_if_not(hellos.begin(), hellos.end(), cannot);
  const std::string rank = "rank " + std::to_string(first - hellos.begin());
  if (wanted) {
    return Error{DTRAIN_ERROR_DEVICE,
                 "DTRAIN_BACKEND=nccl is set, but " + rank + " cannot use NCCL: " + first->no_nccl};
  }
  return Error{DTRAIN_ERROR_DEVICE,
               rank + " cannot use NCCL, but rank " + std::to_string(can - hellos.begin()) +
                   " can: " + first->no_nccl +
                   ". Fix that, or set DTRAIN_BACKEND=cpu, so that no rank uses GPUs"};
}

std::string Backend::WhyNotNccl(BackendChoice wanted) {
  if (wanted == BackendChoice::kCpu) return "DTRAIN_BACKEND=cpu";
  std::string why_not;
  return NcclUsable(why_not) ? "" : why_not;
}

Result<std::unique_ptr<Communicator>> Backend::MakeCpu(Bootstrap& bootstrap, const Group& group,
                                                       Deadline deadline) {
  if (bootstrap.size() == 1) return std::unique_ptr<Communicator>();
  CpuOptions options = cpu_;
  options.node_of_rank.clear();
  options.names = group.members;
  for (const int member : group.members) {
    options.node_of_rank.push_back(cpu_.node_of_rank[static_cast<size_t>(member)]);
  }
  auto made = CpuCommunicator::Make(bootstrap, options, deadline);
  if (!made.ok()) return made.error();
  if (cpu_.arena == nullptr) cpu_.arena = (*made)->arena();
  return std::unique_ptr<Communicator>(std::move(*made));
}

Result<std::unique_ptr<DeviceCommunicator>> Backend::MakeDevice(FullBootstrap& bootstrap,
                                                                const Group& group,
                                                                Deadline deadline) {
  NcclOptions options = nccl_;
  options.group = NameOf(group);
  options.job_rank = group.members[static_cast<size_t>(group.rank)];
  auto made =
      NcclCommunicator::Make(bootstrap, group.communicator.get(), options, on_failure_, deadline);
  if (made.ok()) return std::unique_ptr<DeviceCommunicator>(std::move(*made));
  return Error{made.error().code, made.error().message + " (DTRAIN_BACKEND=cpu does without GPUs)"};
}

bool Backend::Splits(const DeviceCommunicator& world) const {
  return static_cast<const NcclCommunicator&>(world).CanSplit();
}

std::unique_ptr<DeviceCommunicator> Backend::Split(DeviceCommunicator& world, const Group& group,
                                                   Deadline deadline, MaybeError& error) {
  return static_cast<NcclCommunicator&>(world).Split(
      static_cast<int>(group.id & 0x7fffffff), group.rank,
      {group.rank, group.size, group.communicator.get(), NameOf(group)}, deadline, error);
}

MaybeError Backend::Open(DeviceCommunicator& part) {
  return static_cast<NcclCommunicator&>(part).Open();
}

}  // namespace dtrain::runtime
