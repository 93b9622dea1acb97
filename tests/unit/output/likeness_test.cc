// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/likeness.h"

#include <gtest/gtest.h>

namespace dtrain::output {
namespace {

TEST(LikenessTest, WhatRanksDoNotShare) {
  const struct {
    const char* text;
    const char* likeness;
  } cases[] = {
      {"RuntimeError: [./gloo/transport/tcp/pair.cc:598] Connection closed by peer "
       "[127.0.0.1]:4711",
       "RuntimeError: [./gloo/transport/tcp/pair.cc:598] Connection closed by peer #"},
      {"Read error [::1]:99: Connection reset by peer", "Read error #: Connection reset by peer"},
      {"connect to 10.0.0.2:12 failed, 10.0.0.2 is gone", "connect to # failed, # is gone"},
      {"recvValue failed on SocketImpl(fd=84, addr=[localhost]:36720, remote=[node1]:29500)",
       "recvValue failed on SocketImpl(fd=#, addr=#, remote=#)"},
      {"localhost:8080", "localhost:#"},
      {"<Model object at 0x7f1c2d3e>", "<Model object at #>"},
      {"frame #0: c10::Error::Error + 0x57 (0x7f12ab in /usr/lib/libc10.so)",
       "frame #0: c10::Error::Error + # (# in /usr/lib/libc10.so)"},
      {"DataLoader worker (pid 4711) is killed", "DataLoader worker (pid #) is killed"},
      {"DataLoader worker (pid(s) 4711, 4712) exited", "DataLoader worker (pid(s) #) exited"},
      {"[Rank 3] of 8: rank3 LOCAL_RANK=1, ranks: 4",
       "[Rank #] of 8: rank# LOCAL_RANK=#, ranks: #"},
      {"Process 3 terminated on cuda:1, GPU 1", "Process # terminated on cuda:#, GPU #"},
      // The cause may be in a number.
      {"size mismatch: 3 vs 4 in line 17", "size mismatch: 3 vs 4 in line 17"},
      {"loss 0.25 at step 900, train.py:17", "loss 0.25 at step 900, train.py:17"},
      {"torch 1.13.0.1.2 and 12.1", "torch 1.13.0.1.2 and 12.1"},
      {"Frank 3, rapid 3, my_rank 3", "Frank 3, rapid 3, my_rank #"},
      {"indices [1]: out of range", "indices [1]: out of range"},
      {"shape [4, 3]:2 of x[17]", "shape [4, 3]:2 of x[17]"},
      {"0x 0xyz [] []:3 [", "0x 0xyz [] []:3 ["},
      {"", ""},
  };
  for (const auto& each : cases) EXPECT_EQ(Likeness(each.text), each.likeness);
}

}  // namespace
}  // namespace dtrain::output
