// SPDX-License-Identifier: Apache-2.0
// The driver's functions for streams and events.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <utility>

#include "tests/support/fake_nccl/cuda/capture.h"
#include "tests/support/fake_nccl/cuda/fake_cuda.h"
#include "tests/support/fake_nccl/cuda/stream.h"

namespace {

using namespace fake_cuda;

constexpr int kHighestPriority = -5;

struct Event {
  explicit Event(Context& context) : context(context) {}

  Context& context;
  std::mutex mutex;
  MarkPointer mark;        // of the last recording; none: never recorded
  CapturedPoint captured;  // instead, when that was in a capture
};

int Create(void** out, unsigned flags, int priority) {
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  if (flags > 1) return kInvalidValue;
  const auto kind = flags == 0 ? Stream::Kind::kOrdered : Stream::Kind::kFree;
  const auto made = std::make_shared<Stream>(*context, kind, priority);
  const std::lock_guard lock(TheDriver().mutex);
  TheDriver().streams[made.get()] = made;
  *out = made.get();
  return kOk;
}

// The thread's context and a stream of any.
int Find(void* handle, Context*& context, StreamPointer& stream) {
  if (const int code = Enter(context)) return code;
  stream = FindStream(*context, handle);
  return stream == nullptr ? kInvalidHandle : kOk;
}

// Another thread that frees holds what a question needs.
void AwaitFreeing() {
  const char* text = getenv("FAKE_CUDA_QUERY_BLOCKS_MS");
  if (text == nullptr) return;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(atoi(text));
  while (TheDriver().freeing.load() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// What the event stands for now.
int Look(void* handle, MarkPointer& mark) {
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  auto* event = static_cast<Event*>(handle);
  if (&event->context != context) return kInvalidHandle;
  if (const int code = Forbidden()) return code;
  const std::lock_guard lock(event->mutex);
  if (event->captured.capture != nullptr) {
    Invalidate(event->captured);
    return kCaptureUnsupported;
  }
  mark = event->mark;
  return kOk;
}

}  // namespace

FAKE_EXPORT int cuStreamCreate(void** stream, unsigned flags) { return Create(stream, flags, 0); }

FAKE_EXPORT int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return Create(stream, flags, priority);
}

FAKE_EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kHighestPriority;
  return kOk;
}

FAKE_EXPORT int cuStreamGetPriority(void* handle, int* priority) {
  Context* context = nullptr;
  StreamPointer stream;
  if (const int code = Find(handle, context, stream)) return code;
  *priority = stream->priority;
  return kOk;
}

FAKE_EXPORT int cuStreamDestroy_v2(void* handle) {
  Context* context = nullptr;
  StreamPointer stream;
  const int code = Enter(context);
  if (context == nullptr) return code;
  const std::lock_guard lock(TheDriver().mutex);
  const auto found = TheDriver().streams.find(handle);
  if (found == TheDriver().streams.end()) return kInvalidHandle;
  stream = std::move(found->second);
  TheDriver().streams.erase(found);
  auto& orphans = stream->context.orphans;
  std::erase_if(orphans, [](const MarkPointer& mark) { return mark->reached(); });
  if (MarkPointer tail = stream->tail()) orphans.push_back(std::move(tail));
  stream->LetGo();
  return code;
}

FAKE_EXPORT int cuStreamQuery(void* handle) {
  Context* context = nullptr;
  StreamPointer stream;
  if (const int code = Find(handle, context, stream)) return code;
  if (const int code = Forbidden()) return code;
  const MarkPointer tail = stream->tail();
  return tail == nullptr || tail->reached() ? kOk : kNotReady;
}

FAKE_EXPORT int cuStreamSynchronize(void* handle) {
  Context* context = nullptr;
  StreamPointer stream;
  if (const int code = Find(handle, context, stream)) return code;
  if (PointOf(*stream).capture != nullptr) {
    Invalidate(PointOf(*stream));
    return kCaptureUnsupported;
  }
  if (const int code = Forbidden()) return code;
  if (const MarkPointer tail = stream->tail()) tail->Await();
  return stream->context.sticky.load();
}

FAKE_EXPORT int cuCtxSynchronize() {
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  if (const int code = ForbiddenFor(*context)) return code;
  Drain(*context);
  return context->sticky.load();
}

FAKE_EXPORT int cuStreamWaitEvent(void* handle, void* event_handle, unsigned) {
  Context* context = nullptr;
  StreamPointer stream;
  if (const int code = Find(handle, context, stream)) return code;
  auto* event = static_cast<Event*>(event_handle);
  MarkPointer mark;
  CapturedPoint point;
  {
    const std::lock_guard lock(event->mutex);
    mark = event->mark;
    point = event->captured;
  }
  if (point.capture != nullptr) return WaitFor(*stream, point);
  if (mark == nullptr) return kOk;
  return Submit(*stream, {nullptr, [mark] { mark->Await(); }});
}

FAKE_EXPORT int cuEventCreate(void** event, unsigned) {
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  *event = new Event(*context);
  return kOk;
}

FAKE_EXPORT int cuEventDestroy_v2(void* event) {
  Context* context = nullptr;
  const int code = Enter(context);
  if (context == nullptr) return code;
  delete static_cast<Event*>(event);
  return code;
}

FAKE_EXPORT int cuEventRecord(void* handle, void* stream_handle) {
  Context* context = nullptr;
  StreamPointer stream;
  if (const int code = Find(stream_handle, context, stream)) return code;
  auto* event = static_cast<Event*>(handle);
  if (&event->context != &stream->context || &stream->context != context) return kInvalidHandle;
  if (CapturedPoint point = PointOf(*stream); point.capture != nullptr) {
    const std::lock_guard lock(event->mutex);
    event->mark = nullptr;
    event->captured = std::move(point);
    return kOk;
  }
  MarkPointer mark;
  if (const int code = Submit(*stream, {}, &mark)) return code;
  const std::lock_guard lock(event->mutex);
  event->mark = std::move(mark);
  event->captured = {};
  return kOk;
}

FAKE_EXPORT int cuEventQuery(void* event) {
  AwaitFreeing();
  MarkPointer mark;
  if (const int code = Look(event, mark)) return code;
  return mark == nullptr || mark->reached() ? kOk : kNotReady;
}

FAKE_EXPORT int cuEventSynchronize(void* event) {
  MarkPointer mark;
  if (const int code = Look(event, mark)) return code;
  if (mark != nullptr) mark->Await();
  return static_cast<Event*>(event)->context.sticky.load();
}
