// SPDX-License-Identifier: Apache-2.0
// What a worker leaves in the page that it shares with its shepherd: anything, over all of it, and
// again while the shepherd takes spans.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "agent/shepherd/page.h"
#include "launcher/job/collective_watch.h"
#include "tests/fuzz/expect.h"

namespace {

constexpr uint32_t kCapacity = 8;

void ExpectSpans(const dtrain::v1::Spans& spans, uint32_t most) {
  const int n = spans.kind_size();
  DTRAIN_CHECK(n <= static_cast<int>(std::min(most, kCapacity)));
  for (const int size :
       {spans.lane_size(), spans.number_step_size(), spans.bytes_size(), spans.begin_step_size(),
        spans.duration_nanos_size(), spans.reduce_nanos_size(), spans.name_bytes_size()}) {
    DTRAIN_CHECK(size == n);
  }
  size_t names = 0;
  for (const uint32_t bytes : spans.name_bytes()) names += bytes;
  DTRAIN_CHECK(names == spans.names().size());
  dtrain::v1::Spans sent;
  DTRAIN_CHECK(sent.ParseFromString(spans.SerializeAsString()));
}

void ExpectProgress(const dtrain::shepherd::Page& page) {
  const auto progress = page.Read();
  if (!progress) return;
  DTRAIN_CHECK(progress->inside_nanos() >= 0);
  dtrain::job::CollectiveWatch watch;
  const dtrain::TimePoint now{std::chrono::hours(24)};
  watch.OnProgress(now, *progress);
  const auto name = [](uint32_t rank) { return "rank " + std::to_string(rank); };
  for (const char c : watch.Explain(now, name)) DTRAIN_CHECK(c >= ' ' && c <= '~');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto page = dtrain::shepherd::Page::Make(kCapacity);
  DTRAIN_CHECK(page.ok());
  static const dtrain::os::UniqueFd fd = page->TakeFd();
  constexpr size_t kBytes = dtrain::WorkerPageBytes(kCapacity);
  static char* const memory =
      static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  std::memset(memory, 0, kBytes);
  // Half of the bytes before the first look, and the other half over it.
  for (size_t part = 0; part < 2; ++part) {
    const size_t begin = part * (size / 2);
    const size_t n = std::min(part == 0 ? size / 2 : size - begin, kBytes);
    if (n > 0) std::memcpy(memory, data + begin, n);
    ExpectProgress(*page);
    (void)page->spans();
    for (const uint32_t most : {3u, 100u}) {
      dtrain::v1::Spans spans;
      page->TakeSpans(most, spans);
      ExpectSpans(spans, most);
    }
  }
  return 0;
}
