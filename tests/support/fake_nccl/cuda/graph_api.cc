// SPDX-License-Identifier: Apache-2.0
// The driver's functions for graphs.
#include "tests/support/fake_nccl/cuda/capture.h"
#include "tests/support/fake_nccl/cuda/fake_cuda.h"

namespace {

using namespace fake_cuda;

using GraphPointer = std::shared_ptr<Graph>;

// The thread's stream; an error code.
int FindAny(void* handle, StreamPointer& stream) {
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  stream = FindStream(*context, handle);
  return stream == nullptr ? kInvalidHandle : kOk;
}

}  // namespace

FAKE_EXPORT int cuStreamBeginCapture_v2(void* handle, int mode) {
  StreamPointer stream;
  if (const int code = FindAny(handle, stream)) return code;
  return BeginCapture(*stream, mode);
}

FAKE_EXPORT int cuStreamEndCapture(void* handle, void** graph) {
  StreamPointer stream;
  if (const int code = FindAny(handle, stream)) return code;
  GraphPointer made;
  const int code = EndCapture(*stream, made);
  *graph = made == nullptr ? nullptr : new GraphPointer(made);
  return code;
}

FAKE_EXPORT int cuStreamIsCapturing(void* handle, int* status) {
  StreamPointer stream;
  if (const int code = FindAny(handle, stream)) return code;
  return CaptureStatus(*stream, *status);
}

FAKE_EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < kGlobal || *mode > kRelaxed) return kInvalidValue;
  *mode = ExchangeMode(*mode);
  return kOk;
}

FAKE_EXPORT int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = new GraphPointer(*static_cast<GraphPointer*>(graph));
  return kOk;
}

FAKE_EXPORT int cuGraphLaunch(void* executable, void* handle) {
  StreamPointer stream;
  if (const int code = FindAny(handle, stream)) return code;
  const GraphPointer graph = *static_cast<GraphPointer*>(executable);
  for (const Node& node : graph->nodes) {
    if (node.launch != nullptr) node.launch();
  }
  return Submit(*stream, {nullptr, [graph] {
                            for (const Node& node : graph->nodes) {
                              if (node.run != nullptr) node.run();
                            }
                          }});
}

FAKE_EXPORT int cuGraphExecDestroy(void* executable) {
  delete static_cast<GraphPointer*>(executable);
  return kOk;
}

FAKE_EXPORT int cuGraphDestroy(void* graph) {
  delete static_cast<GraphPointer*>(graph);
  return kOk;
}

FAKE_EXPORT int fake_cuda_capturing(void* handle) {
  StreamPointer stream;
  return FindAny(handle, stream) == kOk && PointOf(*stream).capture != nullptr ? 1 : 0;
}
