// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/fake_nccl/cuda/stream.h"

// Streams whose work goes into a graph.
namespace fake_cuda {

enum CaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

// The nodes in the order in which they were captured, which is one that all dependencies allow.
struct Graph {
  std::vector<Node> nodes;
};

struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  const Stream* origin = nullptr;
  int mode = kGlobal;
  std::thread::id thread;
  bool invalid = false;
  // Of each of its streams: how much it has, and how much of that another stream has waited for.
  struct Progress {
    int nodes = 0, joined = 0;
  };
  std::map<const Stream*, Progress> streams;
};

// A point in a capture, for an event.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  const Stream* stream = nullptr;
  int nodes = 0;
};

// Whether the node went into a capture, or was refused for one (then `code` says why).
bool Captured(const Stream& stream, Node& node, int& code);
// Where an event that is recorded now lies; no capture: an ordinary stream.
CapturedPoint PointOf(const Stream& stream);
// `stream` waits for the point and thereby belongs to its capture. An error code.
int WaitFor(const Stream& stream, const CapturedPoint& point);
void Invalidate(const CapturedPoint& point);

// What a call that may not be made during a capture returns; it spoils the capture.
int Forbidden();
// The same, of a call that waits for all of a context.
int ForbiddenFor(const Context& context);
// 0 none, 1 active, 2 invalidated. An error code for the legacy stream beside a captured one.
int CaptureStatus(const Stream& stream, int& status);

int BeginCapture(const Stream& stream, int mode);
int EndCapture(const Stream& stream, std::shared_ptr<Graph>& graph);
int ExchangeMode(int mode);  // of this thread

}  // namespace fake_cuda
