// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/cuda/capture.h"

#include <set>
#include <utility>

#include "tests/support/fake_nccl/cuda/fake_cuda.h"
#include "tests/support/fake_nccl/per_thread.h"

namespace fake_cuda {
namespace {

struct Captures {
  std::mutex mutex;
  std::set<std::shared_ptr<Capture>> all;
};

Captures& All() {
  static auto* const captures = new Captures;
  return *captures;
}

int& ModeOfThread() {
  static const auto* const modes = new fake_nccl::PerThread<int>;
  return modes->Get();
}
static_assert(kGlobal == 0);

// All of these are called with the mutex held.
std::shared_ptr<Capture> Of(const Stream& stream) {
  for (const auto& capture : All().all) {
    if (capture->streams.count(&stream) != 0) return capture;
  }
  return nullptr;
}

bool IsLegacy(const Stream& stream) { return stream.kind == Stream::Kind::kLegacy; }

// Whether the legacy stream would have to wait for what is being captured.
bool Implicit(const Stream& stream) {
  if (!IsLegacy(stream)) return false;
  bool found = false;
  for (const auto& capture : All().all) {
    for (const auto& [other, progress] : capture->streams) {
      if (other->ordered() && &other->context == &stream.context) {
        capture->invalid = true;
        found = true;
      }
    }
  }
  return found;
}

}  // namespace

bool Captured(const Stream& stream, Node& node, int& code) {
  const std::lock_guard lock(All().mutex);
  const auto capture = Of(stream);
  if (capture == nullptr) {
    code = Implicit(stream) ? kCaptureImplicit : kOk;
    return code != kOk;
  }
  code = capture->invalid ? kCaptureInvalidated : kOk;
  if (code != kOk) return true;
  ++capture->streams[&stream].nodes;
  capture->graph->nodes.push_back(std::move(node));
  return true;
}

CapturedPoint PointOf(const Stream& stream) {
  const std::lock_guard lock(All().mutex);
  const auto capture = Of(stream);
  if (capture == nullptr) return {};
  return {capture, &stream, capture->streams[&stream].nodes};
}

int WaitFor(const Stream& stream, const CapturedPoint& point) {
  const std::lock_guard lock(All().mutex);
  if (All().all.count(point.capture) == 0) return kCapturedEvent;  // that capture is over
  if (point.capture->invalid) return kCaptureInvalidated;
  const auto own = Of(stream);
  if (IsLegacy(stream) || (own != nullptr && own != point.capture)) {
    point.capture->invalid = true;
    if (own != nullptr) own->invalid = true;
    return IsLegacy(stream) ? kCaptureImplicit : 905;
  }
  auto& progress = point.capture->streams[&stream];
  if (&stream != point.stream) {
    ++progress.nodes;
    auto& other = point.capture->streams[point.stream];
    if (point.nodes > other.joined) other.joined = point.nodes;
  }
  return kOk;
}

void Invalidate(const CapturedPoint& point) {
  const std::lock_guard lock(All().mutex);
  point.capture->invalid = true;
}

int Forbidden() {
  if (ModeOfThread() == kRelaxed) return kOk;
  const std::lock_guard lock(All().mutex);
  bool found = false;
  for (const auto& capture : All().all) {
    const bool mine = capture->thread == std::this_thread::get_id();
    const bool forbids =
        mine ? capture->mode != kRelaxed : capture->mode == kGlobal && ModeOfThread() == kGlobal;
    if (!forbids) continue;
    capture->invalid = true;
    found = true;
  }
  return found ? kCaptureUnsupported : kOk;
}

int ForbiddenFor(const Context& context) {
  const std::lock_guard lock(All().mutex);
  bool found = false;
  for (const auto& capture : All().all) {
    if (&capture->origin->context != &context) continue;
    capture->invalid = true;
    found = true;
  }
  return found ? kCaptureUnsupported : kOk;
}

int CaptureStatus(const Stream& stream, int& status) {
  const std::lock_guard lock(All().mutex);
  status = 0;
  if (const auto capture = Of(stream)) {
    status = capture->invalid ? 2 : 1;
    return kOk;
  }
  return Implicit(stream) ? kCaptureImplicit : kOk;
}

int BeginCapture(const Stream& stream, int mode) {
  const std::lock_guard lock(All().mutex);
  if (mode < kGlobal || mode > kRelaxed) return kInvalidValue;
  if (IsLegacy(stream)) return kCaptureUnsupported;
  if (Of(stream) != nullptr) return kInvalidValue;
  auto capture = std::make_shared<Capture>();
  capture->origin = &stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->streams[&stream] = {};
  All().all.insert(std::move(capture));
  return kOk;
}

int EndCapture(const Stream& stream, std::shared_ptr<Graph>& graph) {
  const std::lock_guard lock(All().mutex);
  graph = nullptr;
  const auto capture = Of(stream);
  if (capture == nullptr) return kInvalidValue;
  if (capture->origin != &stream) return kCaptureUnmatched;
  if (capture->mode != kRelaxed && capture->thread != std::this_thread::get_id()) {
    return kCaptureWrongThread;
  }
  All().all.erase(capture);
  if (capture->invalid) return kCaptureInvalidated;
  for (const auto& [other, progress] : capture->streams) {
    if (other != &stream && progress.joined < progress.nodes) return kCaptureUnjoined;
  }
  graph = capture->graph;
  return kOk;
}

int ExchangeMode(int mode) { return std::exchange(ModeOfThread(), mode); }

}  // namespace fake_cuda
