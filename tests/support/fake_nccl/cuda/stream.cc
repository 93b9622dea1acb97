// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/cuda/stream.h"

#include <cstdint>
#include <utility>

#include "tests/support/fake_nccl/cuda/capture.h"
#include "tests/support/fake_nccl/cuda/fake_cuda.h"
#include "tests/support/fake_nccl/per_thread.h"

namespace fake_cuda {
namespace {

// Called with the driver's mutex held.
StreamPointer Legacy(Context& context) {
  if (context.legacy == nullptr) {
    context.legacy = std::make_shared<Stream>(context, Stream::Kind::kLegacy, 0);
    TheDriver().streams[context.legacy.get()] = context.legacy;
  }
  return context.legacy;
}

StreamPointer OwnOfThread(Context& context) {
  static const auto* const all = new fake_nccl::PerThread<std::map<Context*, StreamPointer>>;
  StreamPointer& stream = all->Get()[&context];
  if (stream == nullptr) {
    stream = std::make_shared<Stream>(context, Stream::Kind::kOrdered, 0);
    TheDriver().streams[stream.get()] = stream;
  }
  return stream;
}

// What an entry of `stream` waits for beside the stream itself.
std::vector<MarkPointer> Before(const Stream& stream) {
  std::vector<MarkPointer> before;
  if (!stream.ordered()) return before;
  const std::lock_guard lock(TheDriver().mutex);
  const StreamPointer legacy = Legacy(stream.context);
  if (legacy.get() != &stream) {
    if (MarkPointer mark = legacy->tail()) before.push_back(std::move(mark));
    return before;
  }
  for (const auto& [handle, other] : TheDriver().streams) {
    if (&other->context != &stream.context || !other->ordered() || other == legacy) continue;
    if (MarkPointer mark = other->tail()) before.push_back(std::move(mark));
  }
  return before;
}

}  // namespace

void Mark::Reach() {
  const std::lock_guard lock(mutex_);
  reached_ = true;
  changed_.notify_all();
}

void Mark::Await() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return reached_; });
}

bool Mark::reached() {
  const std::lock_guard lock(mutex_);
  return reached_;
}

MarkPointer Stream::Push(std::function<void()> run, std::vector<MarkPointer> before) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.size() < kMostEntries; });
  tail_ = std::make_shared<Mark>();
  queue_.push_back({std::move(run), std::move(before), tail_});
  if (!running_) {
    running_ = true;
    std::thread([self = shared_from_this()] { self->Loop(); }).detach();
  }
  changed_.notify_all();
  return tail_;
}

MarkPointer Stream::tail() {
  const std::lock_guard lock(mutex_);
  return tail_;
}

void Stream::LetGo() {
  const std::lock_guard lock(mutex_);
  let_go_ = true;
  changed_.notify_all();
}

void Stream::Loop() {
  for (;;) {
    Entry entry;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return let_go_ || !queue_.empty(); });
      if (queue_.empty()) {
        running_ = false;
        return;
      }
      entry = std::move(queue_.front());
    }
    for (const MarkPointer& mark : entry.before) mark->Await();
    if (context.sticky.load() == 0 && entry.run != nullptr) entry.run();
    entry.run = nullptr;
    {
      const std::lock_guard lock(mutex_);
      queue_.pop_front();
      changed_.notify_all();
    }
    entry.mark->Reach();
  }
}

StreamPointer FindStream(Context& context, void* handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  const std::lock_guard lock(TheDriver().mutex);
  if (number <= 1) return Legacy(context);
  if (number == 2) return OwnOfThread(context);
  const auto found = TheDriver().streams.find(handle);
  return found == TheDriver().streams.end() ? nullptr : found->second;
}

int Submit(Stream& stream, Node node, MarkPointer* mark) {
  CountSubmission(stream.context);
  if (const int lost = stream.context.sticky.load()) return lost;
  int code = kOk;
  if (Captured(stream, node, code)) return code;
  if (node.launch != nullptr) node.launch();
  MarkPointer made = stream.Push(std::move(node.run), Before(stream));
  if (mark != nullptr) *mark = std::move(made);
  return kOk;
}

void Drain(Context& context) {
  std::vector<MarkPointer> marks;
  {
    const std::lock_guard lock(TheDriver().mutex);
    marks = context.orphans;
    for (const auto& [handle, stream] : TheDriver().streams) {
      if (&stream->context != &context) continue;
      if (MarkPointer mark = stream->tail()) marks.push_back(std::move(mark));
    }
  }
  for (const MarkPointer& mark : marks) mark->Await();
}

}  // namespace fake_cuda

FAKE_EXPORT int fake_cuda_submit(void* handle, const fake_cuda_kernel* kernel) {
  using namespace fake_cuda;
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  const StreamPointer stream = FindStream(*context, handle);
  if (stream == nullptr || &stream->context != context) return kInvalidHandle;
  const std::shared_ptr<void> argument(kernel->argument, kernel->release);
  const auto launch = kernel->launch;
  const auto run = kernel->run;
  return Submit(*stream, {[launch, argument] { launch(argument.get()); },
                          [run, argument] { run(argument.get()); }});
}

FAKE_EXPORT void fake_cuda_drain(int device) { fake_cuda::Drain(fake_cuda::ContextOf(device)); }
