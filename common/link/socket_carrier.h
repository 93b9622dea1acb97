// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "common/link/carrier.h"
#include "common/link/frame.h"
#include "common/loop/loop.h"
#include "common/loop/stray_descriptors.h"
#include "common/os/unique_fd.h"

namespace dtrain::link {

// Carries frames over a connected stream socket, unix or TCP. What is to be sent stays where it is
// until the socket takes it: the carrier asks for the next frame, and holds less than kMostQueued
// and one frame. It takes no descriptors: the kernel drops what comes with one, and a peer that
// sends one is broken. Loop thread.
//
// The peer is not trusted: an invalid frame, a descriptor, half a frame at the end or an error
// closes the carrier. on_closed says OK when the stream ended in an orderly way, and is never
// called from inside Pump.
class SocketCarrier {
 public:
  static constexpr size_t kMostQueued = 32 << 10;
  // Of one peer in one turn of the loop: others have theirs.
  static constexpr size_t kBytesPerTurn = 64 << 10;
  static constexpr int kFramesPerTurn = 64;

  SocketCarrier(loop::Loop& loop, os::UniqueFd socket, CarrierHandlers handlers);
  ~SocketCarrier();
  SocketCarrier(const SocketCarrier&) = delete;
  SocketCarrier& operator=(const SocketCarrier&) = delete;

  // There may be a next frame. Called after on_frame by the carrier itself.
  void Pump();
  // Paused, it hands over no frame and does not read, so that the peer must wait; it sends as ever.
  // Also from inside a callback.
  void SetPaused(bool paused);
  // Hands over what has arrived, and the close, before it returns: for when the peer's process is
  // known to have ended. Paused or not. Not from inside a callback.
  void ReadToEnd();
  // Of the frames that `next` gave, what the socket has not taken.
  size_t queued_bytes() const { return queued_; }

 private:
  struct Outgoing {
    std::array<char, kHeaderBytes> header;
    SharedBytes payload;
  };

  void Fill();
  bool WriteOnce();
  void Written(size_t bytes);
  void Turn();
  void AwaitTurn();
  void ReadRest();
  bool ReadOnce();
  bool DeliverSome();
  void Close(absl::Status why);

  loop::Loop& loop_;
  loop::StrangersSocket socket_;
  loop::FdWatch watch_;
  loop::Timer again_;
  // One of them that destroys the carrier still runs to its end.
  const std::shared_ptr<CarrierHandlers> handlers_;
  bool closed_ = false;
  bool waiting_to_write_ = false;
  bool broken_ = false;  // the socket takes nothing; the reading side tells
  std::deque<Outgoing> out_;
  size_t front_written_ = 0;
  size_t queued_ = 0;
  FrameReader in_;
  bool more_in_ = false;  // whole frames may be left in it
  bool paused_ = false;
  bool idle_ = false;        // as it was paused: no turn is due
  bool to_the_end_ = false;  // in ReadToEnd
  uint64_t received_ = 0;    // bytes
  std::shared_ptr<bool> alive_;
};

}  // namespace dtrain::link
