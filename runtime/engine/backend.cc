// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/backend.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "runtime/nccl/libraries.h"
#include "runtime/nccl/nccl_communicator.h"

namespace dtrain::runtime {
namespace {

constexpr std::string_view kVersion = "dtrain-2";

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

}  // namespace

std::string EncodeHello(const Hello& hello) {
  return std::string(kVersion) + "\n" + std::to_string(static_cast<int>(hello.wanted)) + "\n" +
         Printable(hello.no_nccl) + "\n" + std::to_string(hello.fusion_threshold) + "\n" +
         std::to_string(hello.cycle_us) + "\n" + Printable(hello.node);
}

bool DecodeHello(const std::string& text, Hello& hello) {
  std::string_view rest = text;
  if (TakeLine(rest) != kVersion) return false;
  int wanted = 0;
  if (!ParseNumber(TakeLine(rest), wanted) || wanted < 0 || wanted > 2) return false;
  hello.wanted = static_cast<BackendChoice>(wanted);
  hello.no_nccl = TakeLine(rest);
  if (!ParseNumber(TakeLine(rest), hello.fusion_threshold)) return false;
  if (!ParseNumber(TakeLine(rest), hello.cycle_us)) return false;
  hello.node = rest;
  return true;
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
  for (size_t r = 0; r < hellos.size(); ++r) {
    if (hellos[r].no_nccl.empty()) continue;
    if (hellos[0].wanted == BackendChoice::kAuto) return false;
    return Error{DTRAIN_ERROR_DEVICE, "DTRAIN_BACKEND=nccl was asked for, but rank " +
                                          std::to_string(r) +
                                          " cannot use NCCL: " + hellos[r].no_nccl};
  }
  return true;
}

std::string Backend::WhyNotNccl(BackendChoice wanted) {
  if (wanted == BackendChoice::kCpu) return "DTRAIN_BACKEND=cpu";
  std::string why_not;
  return NcclUsable(why_not) ? "" : why_not;
}

Result<std::unique_ptr<Communicator>> Backend::MakeCpu(Bootstrap& bootstrap, Deadline deadline) {
  auto made = CpuCommunicator::Make(bootstrap, cpu_, deadline);
  if (!made.ok()) return made.error();
  if (cpu_.arena == nullptr) cpu_.arena = (*made)->arena();
  return std::unique_ptr<Communicator>(std::move(*made));
}

MaybeError Backend::Make(Bootstrap& bootstrap, Deadline deadline,
                         std::unique_ptr<Communicator>& communicator,
                         std::unique_ptr<Communicator>& control, bool splits) {
  if (bootstrap.size() > 1) {
    auto made = MakeCpu(bootstrap, deadline);
    if (!made.ok()) return made.error();
    (use_nccl_ ? control : communicator) = std::move(*made);
  }
  if (!use_nccl_) return std::nullopt;
  auto made = splits ? NcclCommunicator::MakePart(bootstrap, nccl_, deadline)
                     : NcclCommunicator::Make(bootstrap, nccl_, deadline);
  if (!made.ok()) {
    return Error{made.error().code,
                 made.error().message + " (DTRAIN_BACKEND=cpu does without GPUs)"};
  }
  communicator = std::move(*made);
  return std::nullopt;
}

bool Backend::Splits(const Communicator& world) const {
  return use_nccl_ && static_cast<const NcclCommunicator&>(world).CanSplit();
}

MaybeError Backend::Split(Communicator& world, uint32_t color, Communicator* part,
                          Deadline deadline) {
  return static_cast<NcclCommunicator&>(world).Split(color, static_cast<NcclCommunicator*>(part),
                                                     deadline);
}

}  // namespace dtrain::runtime
