// SPDX-License-Identifier: Apache-2.0
#include "common/base/cpulist.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/rankfile.h"
#include "tests/fuzz/expect.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto places = dtrain::hosts::ParseRankfile(dtrain::fuzz::Text(data, size), "F");
  if (!places.ok()) {
    dtrain::fuzz::ExpectPrintable(places.status());
    return 0;
  }
  DTRAIN_CHECK(!places->empty());
  for (size_t i = 0; i < places->size(); ++i) {
    const dtrain::hosts::RankPlace& place = (*places)[i];
    DTRAIN_CHECK(place.rank == i && dtrain::hosts::CheckHostName(place.host).ok());
    if (!place.cpus) continue;
    auto cpus = dtrain::ParseCpuList(*place.cpus);
    DTRAIN_CHECK(cpus.ok() && !cpus->empty());
    DTRAIN_CHECK(*dtrain::ParseCpuList(dtrain::FormatCpuList(*cpus)) == *cpus);
  }
  return 0;
}
